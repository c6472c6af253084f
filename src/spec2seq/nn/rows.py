"""Keeping some rows of a batch, in place where that is enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

# Up to so many rows, a freed row gives its memory back at once; beyond, when a quarter of the rows is free.
SMALL_BATCH = 4


@dataclass(frozen=True)
class RowMove:
    """How the rows of a batch become others.

    Attributes:
        num_rows: rows afterwards.
        targets, sources: rows to overwrite, and with which rows; all others up to `num_rows` stay. No source is a
            target. Both None where the new order is not of this kind and everything must be gathered.
    """

    num_rows: int
    targets: Tensor | None = None
    sources: Tensor | None = None

    @classmethod
    def plan(cls, rows: Tensor) -> RowMove:
        """Read `rows` [B'] (old row of every new one): some leave and rows from behind take their places, or not."""
        num_rows = rows.shape[0]
        places = torch.arange(num_rows, device=rows.device)
        is_moved = rows != places
        if bool((is_moved & (rows < num_rows)).any()):
            return cls(num_rows)
        targets = is_moved.nonzero().squeeze(1)
        return cls(num_rows, targets, rows[targets])

    @property
    def is_in_place(self) -> bool:
        return self.targets is not None


def has_much_free(num_rows: int, capacity: int) -> bool:
    """Whether a buffer of `capacity` rows that uses `num_rows` of them should give memory back."""
    free = capacity - num_rows
    return free > 0 and (num_rows <= SMALL_BATCH or 4 * free >= capacity)


def move_rows(tensor: Tensor, move: RowMove, dim: int) -> None:
    """Overwrite the target rows of `tensor` along `dim`, in place. `move` must be in place."""
    if move.targets is not None and move.sources is not None and move.targets.numel():
        tensor.index_copy_(dim, move.targets, tensor.index_select(dim, move.sources))
