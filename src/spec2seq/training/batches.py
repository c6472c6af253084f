"""Pairs in batches of about equal length: one item of the data set is one batch that is ready for the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from spec2seq.errors import InputError, OptionError
from spec2seq.types import pad_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spec2seq.training.records import DistilledPair


@dataclass(frozen=True)
class TrainingBatch:
    """Sources and targets, padded on the right.

    Attributes:
        source_ids, source_lengths: [B, S], [B].
        target_ids, target_lengths: [B, T], [B]; without the decoder start token, ends of sequence included.
        num_forced: [B] first target tokens that are never drafted.
        decoder_starts: [B] what stands before the targets.
    """

    source_ids: Tensor
    source_lengths: Tensor
    target_ids: Tensor
    target_lengths: Tensor
    num_forced: Tensor
    decoder_starts: Tensor


class PairTable:
    """Pairs to train on, as packed ids: 4 bytes per token instead of a Python object.

    Left out are outputs that run in circles, and those that consist of forced tokens.

    Args:
        max_source_positions: longer sources lose their end, as they do in decoding; None: no limit.
        decoder_start: what stands before the targets unless a pair says otherwise.

    Raises:
        InputError: there is no pair to train on.
    """

    def __init__(self, pairs: Iterable[DistilledPair], max_source_positions: int | None, decoder_start: int) -> None:
        self.sources: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.num_forced: list[int] = []
        self.decoder_starts: list[int] = []
        self.num_left_out = 0
        self.max_source_positions = max_source_positions
        for pair in pairs:
            if pair.is_degenerate or len(pair.target_ids) <= pair.num_forced:
                self.num_left_out += 1
                continue
            self.sources.append(torch.tensor(pair.source_ids[:max_source_positions], dtype=torch.int32))
            self.targets.append(torch.tensor(pair.target_ids, dtype=torch.int32))
            self.num_forced.append(pair.num_forced)
            self.decoder_starts.append(decoder_start if pair.decoder_start is None else pair.decoder_start)
        if not self.sources:
            raise InputError(
                f"there are no pairs to train on ({self.num_left_out} run in circles or are empty): distil more lines"
            )

    def __len__(self) -> int:
        return len(self.sources)


# Sources and targets are padded to multiples of so many: a CPU prepares its products for each size they come in, which
# takes as long as some dozen of them.
WIDTH_STEP = 8


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
            (_rounded(len(source)), _rounded(len(target)) + block_size)
            for source, target in zip(table.sources, table.targets, strict=True)
        ]
        self.groups = group_rows(widths, batch_tokens, seed)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> TrainingBatch:
        rows, table = self.groups[index], self._table
        source_ids, source_lengths = self._padded([table.sources[i] for i in rows], table.max_source_positions)
        target_ids, target_lengths = self._padded([table.targets[i] for i in rows], None)
        num_forced, starts = (torch.tensor([of[i] for i in rows]) for of in (table.num_forced, table.decoder_starts))
        return TrainingBatch(source_ids, source_lengths, target_ids, target_lengths, num_forced, starts)

    def _padded(self, rows: Sequence[Tensor], limit: int | None) -> tuple[Tensor, Tensor]:
        """Ids of a rounded width, but at most `limit`, and lengths."""
        ids, lengths = pad_rows([row.tolist() for row in rows], self._pad_token_id)
        width = _rounded(ids.shape[1]) if limit is None else min(_rounded(ids.shape[1]), limit)
        return F.pad(ids, (0, width - ids.shape[1]), value=self._pad_token_id), lengths


def _rounded(width: int) -> int:
    return -(-width // WIDTH_STEP) * WIDTH_STEP


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
