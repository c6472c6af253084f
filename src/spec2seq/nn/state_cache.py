"""What the drafter on the verifier's states keeps of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch.nn import functional as F

from spec2seq.nn.kv_cache import KeyValueCache

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.config import ModelConfig


class StateCache(KeyValueCache):
    """Keys and values made of states, and the latest states themselves: a block starts from one of them.

    Attributes:
        latest: [B, m, D] mixed; zeros in rows that had none yet.
        firsts: [B] position of the first of them.
    """

    def __init__(
        self, config: ModelConfig, num_rows: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """For states of this width D."""
        super().__init__(config, num_rows, dtype, device)
        self.latest = torch.zeros((num_rows, 1, width), dtype=dtype, device=device)
        self.firsts = torch.zeros(num_rows, dtype=torch.long, device=device)

    def last_known(self, num_known: Tensor) -> Tensor:
        """The state [B, D] at the last of the known positions [B], one of the latest; zeros where none was."""
        rows = torch.arange(len(num_known), device=num_known.device)
        return self.latest[rows, (num_known - self.firsts - 1).clamp(min=0)]

    def select_rows(self, rows: Tensor) -> Self:
        """As `KeyValueCache.select_rows`."""
        self.latest, self.firsts = self.latest[rows], self.firsts[rows]
        return super().select_rows(rows)

    def append_rows(self, count: int) -> Self:
        """As `KeyValueCache.append_rows`."""
        self.latest, self.firsts = F.pad(self.latest, (0, 0, 0, 0, 0, count)), F.pad(self.firsts, (0, count))
        return super().append_rows(count)
