"""Additive attention masks: 0 where a query may look, minus infinity where it may not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Placement:
    """Where the queries of one decoder call stand.

    Attributes:
        positions: [B, n] absolute positions.
        slots: [B, n] cache slots that their keys and values go to.
        first: start of the positions where every row has the same n consecutive ones, which are the slots; else None.
        num_slots: T, how many slots the call deals with.
        has_own_slots: whether slots were given apart from positions.
    """

    positions: Tensor
    slots: Tensor
    first: int | None
    num_slots: int
    has_own_slots: bool

    @classmethod
    def read(cls, positions: Tensor, slots: Tensor | None, visible: Tensor | None) -> Placement:
        """Look at positions [B, n] that increase along every row, slots [B, n] or None, visible [B, n, T'] or None."""
        num_visible = 0 if visible is None else visible.shape[2]
        if slots is not None:
            return cls(positions, slots, None, max(int(slots.max()) + 1, num_visible), True)
        lowest, highest = _range(positions)
        # Increasing runs of n numbers within a range of n numbers are that range, in every row.
        first = lowest if highest - lowest == positions.shape[1] - 1 else None
        return cls(positions, positions, first, max(highest + 1, num_visible), False)

    def to(self, device: torch.device) -> Placement:
        """The same with its tensors on `device`. Read where they come from: asking a GPU means waiting for it."""
        if self.positions.device == device:
            return self
        positions = self.positions.to(device, non_blocking=True)
        slots = self.slots.to(device, non_blocking=True) if self.has_own_slots else positions
        return replace(self, positions=positions, slots=slots)


def _range(positions: Tensor) -> tuple[int, int]:
    if positions.numel() == 1:
        position = int(positions)
        return position, position
    lowest, highest = positions.aminmax()
    return int(lowest), int(highest)


def length_mask(lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor | None:
    """Hides padding: [B, 1, 1, width], or None when there is none. lengths [B]."""
    if not len(lengths) or int(lengths.min()) == width:
        return None
    is_padding = torch.arange(width, device=lengths.device) >= lengths[:, None]
    return _additive(~is_padding, dtype)[:, None, None]


def decoder_mask(placement: Placement, lengths: Tensor, visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What each query may look at, [B or 1, 1, n, T]; None when every query sees all T slots.

    Args:
        placement: of the queries.
        lengths: [B] real queries of each row.
        visible: [B, n, T'] where a query sees a slot; slot <= position when None.
    """
    num_queries, device = placement.positions.shape[1], placement.positions.device
    if visible is not None:
        return _visible_mask(visible, lengths, placement.num_slots, dtype)
    if placement.first is not None:
        if num_queries == 1:
            return None
        hidden = torch.full((num_queries, placement.num_slots), -torch.inf, dtype=dtype, device=device)
        return hidden.triu_(placement.first + 1)[None, None]
    slots = torch.arange(placement.num_slots, device=device)
    return _additive(slots <= placement.positions[..., None], dtype)[:, None]


def block_mask(placement: Placement, num_known: Tensor, is_causal: bool, dtype: torch.dtype) -> Tensor | None:
    """What the k places of a block may look at, [B, 1, k, T]; None when every place sees all T slots.

    Args:
        placement: of the block, whose places are consecutive.
        num_known: [B] slots from 0 on that hold what precedes the block.
        is_causal: whether a place sees only the places before it, and itself.
    """
    positions = placement.positions
    if placement.first is not None and not is_causal and bool((num_known == placement.first).all()):
        return None
    slots = torch.arange(placement.num_slots, device=positions.device)
    last = positions if is_causal else positions[:, -1:]
    is_in_block = (slots >= positions[:, :1, None]) & (slots <= last[..., None])
    visible = (slots < num_known[:, None, None]) | is_in_block
    return _additive(visible, dtype)[:, None]


def _visible_mask(visible: Tensor, lengths: Tensor, num_slots: int, dtype: torch.dtype) -> Tensor:
    visible = F.pad(visible, (0, num_slots - visible.shape[2]))
    # A padded query that sees nothing would be NaN, and be stored as such: let it see the first slot.
    is_padding = torch.arange(visible.shape[1], device=visible.device) >= lengths[:, None]
    is_first = torch.arange(num_slots, device=visible.device) == 0
    return _additive(visible | is_padding[..., None] & is_first, dtype)[:, None]


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    # no finfo.min: a stale slot may hold 1e30, and only minus infinity hides that for certain
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
