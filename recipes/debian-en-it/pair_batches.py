"""Pairs of token ids in batches of about equal length, as an endless sequence that is the same for everyone."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from corpus_files import read_pairs
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoTokenizer

from spec2seq.errors import InputError
from spec2seq.training.shards import read_pairs as read_distilled
from spec2seq.types import pad_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_TOKENS = 160  # of either side, end of sequence included
SORTED_TOGETHER = 8000  # pairs; the larger, the less padding, and the less chance in who meets whom
PARAGRAPH_SHARE = 0.2  # of the paragraphs in an epoch: their sentences are there too
IGNORED = -100  # target positions without a loss
Batch = dict[str, Tensor]


class IdPair(NamedTuple):
    """Token ids of both sides, ends of sequence included; `is_paragraph` where its sentences are pairs too."""

    source: list[int]
    target: list[int]
    is_paragraph: bool = False


@dataclass(frozen=True)
class TrainingData:
    """What to train on and what to validate on."""

    train: list[IdPair]
    valid: list[IdPair]


def read_corpus(folder: Path, tokenizer: Path) -> TrainingData:
    """The parts train and valid of a corpus in the pieces of a tokenizer; pairs with a long side are left out.

    Raises:
        InputError: a part is missing or holds no pair.
    """
    to_ids = AutoTokenizer.from_pretrained(tokenizer)
    parts = []
    for name in ("train", "valid"):
        pairs = list(read_pairs(folder / f"{name}.tsv.gz"))
        sources = to_ids([pair.source for pair in pairs])["input_ids"]
        targets = to_ids(text_target=[pair.target for pair in pairs])["input_ids"]
        ids = [
            IdPair(source, target, pair.kind == "paragraph")
            for source, target, pair in zip(sources, targets, pairs, strict=True)
        ]
        parts.append(_short(ids, folder / f"{name}.tsv.gz"))
    return TrainingData(*parts)


def read_outputs(folder: Path, every: int = 50) -> TrainingData:
    """A verifier's own outputs, for a small model that is to say the same; one in `every` is to validate on.

    Raises:
        InputError: there are too few.
        ModelNotFoundError, CheckpointError: the distillation is missing, damaged or not complete.
    """
    pairs = [IdPair(pair.source_ids, pair.target_ids) for pair in read_distilled(folder) if not pair.is_degenerate]
    pairs = _short(pairs, folder)
    every = min(every, len(pairs))
    return TrainingData(
        _short([pair for i, pair in enumerate(pairs) if i % every], folder),
        pairs[::every],
    )


def _short(pairs: Sequence[IdPair], origin: Path) -> list[IdPair]:
    kept = [pair for pair in pairs if max(len(pair.source), len(pair.target)) <= MAX_TOKENS]
    if not kept:
        raise InputError(f"{origin} holds no pair of at most {MAX_TOKENS} tokens a side; give more text")
    return kept


def group_pairs(pairs: Sequence[IdPair], max_tokens: int, order: Sequence[int]) -> Iterator[list[int]]:
    """Batches of indices: pairs of like length together, at most `max_tokens` tokens a side with padding.

    Args:
        pairs: to be put into batches.
        max_tokens: one pair at least, however long.
        order: of the pairs; those that stand near each other may meet.
    """
    for start in range(0, len(order), SORTED_TOGETHER):
        batch: list[int] = []
        longest = 0
        near = order[start : start + SORTED_TOGETHER]
        for i in sorted(near, key=lambda i: (len(pairs[i].target), len(pairs[i].source))):
            longest = max(longest, len(pairs[i].source), len(pairs[i].target))
            if batch and longest * (len(batch) + 1) > max_tokens:
                yield batch
                batch, longest = [], max(len(pairs[i].source), len(pairs[i].target))
            batch.append(i)
        yield batch


def make_batch(pairs: Sequence[IdPair], pad_token_id: int) -> Batch:
    """input_ids and attention_mask [B, S], labels [B, T]; `IGNORED` behind the end of a target."""
    source, lengths = pad_rows([pair.source for pair in pairs], pad_token_id)
    labels, _ = pad_rows([pair.target for pair in pairs], IGNORED)
    mask = torch.arange(source.shape[1]) < lengths[:, None]
    return {"input_ids": source, "attention_mask": mask.long(), "labels": labels}


class EndlessBatches(Dataset[Batch]):
    """Batch after batch, epoch after epoch. Item i is the same in every run and in every process, so that a run that
    is resumed or divided among processes finds its place by counting.

    Args:
        pairs: to train on.
        max_tokens: most tokens of one side of a batch, with padding.
        count: length; as many as will be asked for.
        seed: of the order.
    """

    def __init__(self, pairs: Sequence[IdPair], max_tokens: int, pad_token_id: int, count: int, seed: int = 0) -> None:
        self._pairs = pairs
        self._max_tokens = max_tokens
        self._pad_token_id = pad_token_id
        self._count = count
        self._seed = seed
        self._epoch_sizes: list[int] = []
        self._last_epoch: list[list[int]] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Batch:
        while index >= sum(self._epoch_sizes):
            self._last_epoch = self._epoch(len(self._epoch_sizes))
            self._epoch_sizes.append(len(self._last_epoch))
        ends = list(accumulate(self._epoch_sizes))
        epoch = bisect_right(ends, index)
        batches = self._last_epoch if epoch == len(ends) - 1 else self._epoch(epoch)
        rows = batches[index - (ends[epoch - 1] if epoch else 0)]
        return make_batch([self._pairs[i] for i in rows], self._pad_token_id)

    def _epoch(self, number: int) -> list[list[int]]:
        chance = random.Random(f"{self._seed} {number}")
        order = [i for i, pair in enumerate(self._pairs) if not pair.is_paragraph or chance.random() < PARAGRAPH_SHARE]
        chance.shuffle(order)
        batches = list(group_pairs(self._pairs, self._max_tokens, order))
        chance.shuffle(batches)
        return batches
