"""Glancing: some slots are revealed in training, fewer the better the drafter guesses (Qian et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def glancing_ratio(progress: float, first: float, last: float) -> float:
    """Revealed slots per wrong one, falling linearly. `progress` goes from 0 to 1 over the training."""
    return first + (last - first) * progress


def num_revealed(guesses: Tensor, targets: Tensor, has_target: Tensor, ratio: float) -> Tensor:
    """How many slots of each row to reveal: int((m - c) * ratio) for m slots with a target, c of them guessed, [B].

    Args:
        guesses, targets: [B, k] ids.
        has_target: [B, k].
    """
    num_wrong = ((guesses != targets) & has_target).sum(1)
    return (num_wrong.double() * ratio).long()


def choose_revealed(counts: Tensor, has_target: Tensor, noise: Tensor) -> Tensor:
    """Which slots to reveal, [B, k] bool: of all slots with a target, the right guesses too, counts [B] at random.

    Args:
        noise: [B, k] random numbers in [0, 1); the slots with the lowest are chosen.
    """
    order = noise.masked_fill(~has_target, 2.0).argsort(1)
    ranks = order.argsort(1)
    return (ranks < counts[:, None]) & has_target
