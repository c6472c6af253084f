"""Pairs in batches of about equal length: one item of the data set is one batch that is ready for the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import Dataset

from spec2seq.errors import InputError, OptionError
from spec2seq.types import pad_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spec2seq.drafter_config import SpecDrafterConfig
    from spec2seq.training.records import DistilledPair


@dataclass(frozen=True)
class TrainingBatch:
    """Sources and targets, padded on the right.

    Attributes:
        source_ids, source_lengths: [B, S], [B].
        target_ids, target_lengths: [B, T], [B]; without the decoder start token, ends of sequence included.
        num_forced: [B] first target tokens that are never drafted.
    """

    source_ids: Tensor
    source_lengths: Tensor
    target_ids: Tensor
    target_lengths: Tensor
    num_forced: Tensor


class PairTable:
    """Pairs to train on, as packed ids: 4 bytes per token instead of a Python object.

    Left out are outputs that run in circles, and those that consist of forced tokens. Sources longer than the drafter's
    positions lose their end, as they do in decoding.

    Raises:
        InputError: there is no pair to train on.
    """

    def __init__(self, pairs: Iterable[DistilledPair], config: SpecDrafterConfig) -> None:
        self.sources: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.num_forced: list[int] = []
        self.num_left_out = 0
        for pair in pairs:
            if pair.is_degenerate or len(pair.target_ids) <= pair.num_forced:
                self.num_left_out += 1
                continue
            self.sources.append(torch.tensor(pair.source_ids[: config.max_source_positions], dtype=torch.int32))
            self.targets.append(torch.tensor(pair.target_ids, dtype=torch.int32))
            self.num_forced.append(pair.num_forced)
        if not self.sources:
            raise InputError(
                f"there are no pairs to train on ({self.num_left_out} run in circles or are empty): distil more lines"
            )

    def __len__(self) -> int:
        return len(self.sources)


class BatchDataset(Dataset[TrainingBatch]):
    """Batches of a table. Which pairs share a batch is drawn once by `seed`, so that a resumed run finds the same.

    Args:
        batch_tokens: most rows x (source + target + block) tokens in one batch, with padding; one row at least.
        block_size: slots that are laid behind each target.
        pad_token_id: fills the rows up.
    """

    def __init__(self, table: PairTable, batch_tokens: int, block_size: int, pad_token_id: int, seed: int = 0) -> None:
        if batch_tokens < 1:
            raise OptionError(f"batch_tokens={batch_tokens} is not allowed: use 1 or more")
        self._table = table
        self._pad_token_id = pad_token_id
        widths = [
            (len(source), len(target) + block_size) for source, target in zip(table.sources, table.targets, strict=True)
        ]
        self.groups = group_rows(widths, batch_tokens, seed)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> TrainingBatch:
        rows, table = self.groups[index], self._table
        source = pad_rows([table.sources[i].tolist() for i in rows], self._pad_token_id)
        target = pad_rows([table.targets[i].tolist() for i in rows], self._pad_token_id)
        return TrainingBatch(*source, *target, torch.tensor([table.num_forced[i] for i in rows]))


def group_rows(widths: Sequence[tuple[int, int]], batch_tokens: int, seed: int) -> list[list[int]]:
    """Indices of rows of about equal length, each in one group; rows x (widest source + widest target) is limited.

    Args:
        widths: of source and target of each row.
        seed: shuffles rows of equal lengths.
    """
    shuffled: list[int] = torch.randperm(len(widths), generator=torch.Generator().manual_seed(seed)).tolist()
    groups: list[list[int]] = []
    widest = 0, 0
    for i in sorted(shuffled, key=lambda i: (sum(widths[i]), widths[i])):
        grown = max(widest[0], widths[i][0]), max(widest[1], widths[i][1])
        if not groups or (len(groups[-1]) + 1) * sum(grown) > batch_tokens:
            groups.append([])
            grown = widths[i]
        groups[-1].append(i)
        widest = grown
    return groups
