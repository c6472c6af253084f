"""What the drafter on the verifier's states has read of them, and what it still has to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from spec2seq.backends.openvino.cache import EngineCache

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Array = np.ndarray[Any, Any]


class Latest(NamedTuple):
    """The states that came last: [B, m, N, D], at positions from `firsts` [B] on, one after the other."""

    states: Array
    firsts: Array


class FeatureCache(EngineCache):
    """Keys and values of the states that were read, and the latest states, which the next draft reads on the way.

    Attributes:
        latest: those, zeros in rows that had none yet.
        is_read: whether keys and values were made of them. Whoever makes them again makes the same.
    """

    def __init__(
        self, num_layers: int, shape: tuple[int, int], dtype: torch.dtype, num_rows: int, state_shape: tuple[int, int]
    ) -> None:
        """As for an `EngineCache`, and states of this shape (N, D)."""
        super().__init__(num_layers, shape, dtype, num_rows)
        self.latest = Latest(np.zeros((num_rows, 1, *state_shape), np.float32), np.zeros(num_rows, np.int64))
        self.is_read = True

    def store(self, new: Array, firsts: Array) -> None:
        """Keep keys and values [B', m, L, 2, H, d] of positions from `firsts` [B] on; rows beyond B only pad."""
        num_rows, width = len(firsts), new.shape[1]
        if num_rows == 1:
            first = int(firsts[0])
            self._array[:, :, 0, first : first + width] = new[0].transpose(1, 2, 0, 3, 4)
        else:
            slots = firsts[:, None] + np.arange(width)
            self._array[:, :, np.arange(num_rows)[:, None], slots] = new[:num_rows].transpose(2, 3, 0, 1, 4, 5)

    def select_rows(self, rows: Tensor) -> Self:
        """As `EngineCache.select_rows`."""
        chosen = rows.numpy()
        self.latest = Latest(self.latest.states[chosen], self.latest.firsts[chosen])
        return super().select_rows(rows)

    def append_rows(self, count: int) -> Self:
        """As `EngineCache.append_rows`."""
        states, firsts = self.latest  # what is made of zeros lies behind all that the new rows know
        zeros = np.zeros((count, *states.shape[1:]), dtype=states.dtype)
        self.latest = Latest(
            np.concatenate([states, zeros]), np.concatenate([firsts, np.zeros_like(firsts, shape=count)])
        )
        return super().append_rows(count)
