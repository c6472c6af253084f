"""Sources as the decoders of drafting networks read them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch.nn import functional as F

from spec2seq.nn.masks import length_mask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CrossSource:
    """Sources of a batch as the cross-attention of a decoder sees them.

    Attributes:
        lengths: [B].
        cross: [L, 2, B, H, S, d] keys and values of every decoder layer.
    """

    lengths: Tensor
    cross: Tensor

    # which dimensions of every tensor are the rows and the source positions
    _DIMENSIONS: ClassVar[dict[str, tuple[int, int]]] = {"cross": (2, 4)}

    @property
    def width(self) -> int:
        """S, source positions with padding."""
        return self.cross.shape[4]

    @cached_property
    def mask(self) -> Tensor | None:
        """Added to scores over the source, [B, 1, 1, S]; None when no source is padded."""
        return length_mask(self.lengths, self.width, self.cross.dtype)

    @cached_property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [B, H, S, d] of every decoder layer."""
        return list(zip(self.cross[:, 0].unbind(0), self.cross[:, 1].unbind(0), strict=True))

    def select_rows(self, rows: Tensor) -> Self:
        """The rows `rows` [B'] in that order; may repeat rows. Columns that no row needs are dropped."""
        lengths = self.lengths[rows]
        width = int(lengths.max()) if len(rows) else 0
        parts = {
            name: getattr(self, name).narrow(columns, 0, width).index_select(dim, rows)
            for name, (dim, columns) in self._DIMENSIONS.items()
        }
        return replace(self, lengths=lengths, **parts)

    def concat(self, other: Self) -> Self:
        """Both batches, self first; the shorter sources are padded."""
        width = max(self.width, other.width)
        parts = {}
        for name, (dim, columns) in self._DIMENSIONS.items():
            both = [_widened(getattr(source, name), columns, width) for source in (self, other)]
            parts[name] = torch.cat(both, dim)
        return replace(self, lengths=torch.cat([self.lengths, other.lengths]), **parts)


@dataclass(frozen=True)
class EncodedDraftSource(CrossSource):
    """Sources that the Spec-Drafter encoded.

    Attributes:
        copy_keys, copy_values: [B, S, D] what the soft copy compares with, and what it copies.
    """

    copy_keys: Tensor
    copy_values: Tensor

    _DIMENSIONS: ClassVar[dict[str, tuple[int, int]]] = {"cross": (2, 4), "copy_keys": (0, 1), "copy_values": (0, 1)}


def _widened(tensor: Tensor, dim: int, width: int) -> Tensor:
    """`tensor` with zeros up to `width` behind its numbers along `dim`."""
    padding = [0, 0] * (tensor.dim() - dim)
    padding[-1] = width - tensor.shape[dim]
    return F.pad(tensor, padding)
