"""Sources as the Spec-Drafter's decoder reads them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

import torch
from torch.nn import functional as F

from spec2seq.nn.masks import length_mask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class EncodedDraftSource:
    """Encoded sources of a batch.

    Attributes:
        lengths: [B].
        cross: [L, 2, B, H, S, d] cross-attention keys and values of every decoder layer.
        copy_keys, copy_values: [B, S, D] what the soft copy compares with, and what it copies.
    """

    lengths: Tensor
    cross: Tensor
    copy_keys: Tensor
    copy_values: Tensor

    @cached_property
    def mask(self) -> Tensor | None:
        """Added to scores over the source, [B, 1, 1, S]; None when no source is padded."""
        return length_mask(self.lengths, self.copy_keys.shape[1], self.copy_keys.dtype)

    @cached_property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B, H, S, d] of every decoder layer."""
        return list(zip(self.cross[:, 0].unbind(0), self.cross[:, 1].unbind(0), strict=True))

    def select_rows(self, rows: Tensor) -> Self:
        """The rows `rows` [B'] in that order; may repeat rows. Columns that no row needs are dropped."""
        lengths = self.lengths[rows]
        width = int(lengths.max()) if len(rows) else 0
        cross = self.cross[..., :width, :].index_select(2, rows)
        return type(self)(lengths, cross, self.copy_keys[rows, :width], self.copy_values[rows, :width])

    def concat(self, other: Self) -> Self:
        """Both batches, self first; the shorter sources are padded."""
        width = max(self.copy_keys.shape[1], other.copy_keys.shape[1])
        one, two = self._widened(width), other._widened(width)
        return type(self)(
            torch.cat([one.lengths, two.lengths]),
            torch.cat([one.cross, two.cross], dim=2),
            torch.cat([one.copy_keys, two.copy_keys]),
            torch.cat([one.copy_values, two.copy_values]),
        )

    def _widened(self, width: int) -> Self:
        extra = width - self.copy_keys.shape[1]
        padded = (F.pad(x, (0, 0, 0, extra)) for x in (self.cross, self.copy_keys, self.copy_values))
        return type(self)(self.lengths, *padded)
