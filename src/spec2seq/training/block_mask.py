"""What the drafter sees of a target in training: a beginning of it, then masked slots (the paper, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MaskedBlock:
    """Beginnings of targets with k slots behind each.

    Attributes:
        ids: [B, n] target tokens; in masked slots whatever.
        is_slot: [B, n] where a token is to be guessed.
        lengths: [B] tokens and slots of each row: prefix length + k.
        prefix_lengths: [B] tokens before the block.
        targets: [B, k] what belongs into the slots.
        has_target: [B, k] False behind the end of the target.
    """

    ids: Tensor
    is_slot: Tensor
    lengths: Tensor
    prefix_lengths: Tensor
    targets: Tensor
    has_target: Tensor

    @property
    def slots(self) -> Tensor:
        """[B, k] columns of `ids` that are the block."""
        return self.prefix_lengths[:, None] + torch.arange(self.targets.shape[1], device=self.targets.device)

    @property
    def is_masked(self) -> Tensor:
        """[B, k] slots that have a target and do not show it."""
        return self.is_slot.gather(1, self.slots) & self.has_target

    def reveal(self, is_revealed: Tensor) -> MaskedBlock:
        """The same with the targets of these slots [B, k] in place: ordinary tokens from now on."""
        slots = self.slots
        shown = torch.where(is_revealed, self.targets, self.ids.gather(1, slots))
        is_slot = self.is_slot.gather(1, slots) & ~is_revealed
        return replace(self, ids=self.ids.scatter(1, slots, shown), is_slot=self.is_slot.scatter(1, slots, is_slot))


def prefix_lengths(lengths: Tensor, num_forced: Tensor, limit: int, uniform: Tensor) -> Tensor:
    """Where the blocks start: n - int(n * u) - 1 for the n tokens of a target that are not forced, behind the forced.

    Args:
        lengths: [B] of the targets, each above its forced tokens.
        num_forced: [B] first tokens that are never drafted.
        limit: most tokens before a block: positions of the drafter less the block. Starts behind it are not drawn.
        uniform: [B] random numbers in [0, 1).
    """
    num_starts = (lengths.clamp(max=limit + 1) - num_forced).clamp(min=1)
    # in double precision: n * u must not be rounded up to n
    return num_forced + num_starts - 1 - (num_starts * uniform.double()).long()


def mask_block(targets: Tensor, lengths: Tensor, starts: Tensor, block_size: int) -> MaskedBlock:
    """Targets [B, T] of lengths [B], cut at starts [B], with `block_size` masked slots instead of the rest."""
    width = int(starts.max()) + block_size
    ids = F.pad(targets, (0, max(0, width - targets.shape[1])))[:, :width]
    columns = torch.arange(width, device=targets.device)
    is_slot = (columns >= starts[:, None]) & (columns < starts[:, None] + block_size)
    slots = starts[:, None] + torch.arange(block_size, device=targets.device)
    answers = ids.gather(1, slots)
    # a masked slot holds nothing of the answer
    return MaskedBlock(
        ids.masked_fill(columns >= starts[:, None], 0),
        is_slot,
        starts + block_size,
        starts,
        answers,
        slots < lengths[:, None],
    )
