"""Where a token stands: tables of absolute positions, and T5's bias by relative position."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig


def sinusoidal_table(num_rows: int, width: int) -> Tensor:
    """Sines in the left half of each row, cosines in the right (Vaswani et al. 2017, section 3.5). [num_rows, width]"""
    frequencies = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    angles = torch.arange(num_rows, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()[:, : width // 2]], dim=1).float()


def fairseq_sinusoidal_table(num_rows: int, width: int, pad_token_id: int) -> Tensor:
    """fairseq's table: frequencies spread over one column less, an odd last column and the pad's row are zero.

    Computed in fp32 as fairseq does, whose rounding the trained weights have seen. [num_rows, width]
    """
    half = width // 2
    frequencies = torch.exp(torch.arange(half).float() * (-math.log(10000.0) / (half - 1)))
    angles = torch.arange(num_rows).float()[:, None] * frequencies
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    table = F.pad(table, (0, width % 2))
    table[pad_token_id] = 0.0
    return table


def position_table(config: ModelConfig, max_positions: int | None) -> Tensor | None:
    """The fixed table of one side [max_positions + offset, D] in fp32; None where positions are learned or relative."""
    num_rows = (max_positions or 0) + config.position_offset
    if config.positions == "sinusoidal":
        return sinusoidal_table(num_rows, config.d_model)
    if config.positions == "fairseq_sinusoidal":
        return fairseq_sinusoidal_table(num_rows, config.d_model, config.pad_token_id)
    return None


def relative_buckets(distances: Tensor, num_buckets: int, max_distance: int, is_bidirectional: bool) -> Tensor:
    """T5's bucket of every distance query position - key position (Raffel et al. 2020, section 2.1).

    Half of the buckets are one distance each, the other half grow logarithmically up to `max_distance`. Going both
    ways, later keys have the upper half of all buckets to themselves; going one way, later keys count as distance 0.
    """
    buckets = torch.zeros_like(distances)
    if is_bidirectional:
        num_buckets //= 2
        buckets = (distances < 0).long() * num_buckets
        distances = distances.abs()
    distances = distances.clamp(min=0)
    num_exact = num_buckets // 2
    # fp32 and this order of operations: another rounding would move distances at the edges into the next bucket
    growth = torch.log(distances.clamp(min=1).float() / num_exact) / math.log(max_distance / num_exact)
    logarithmic = num_exact + (growth * (num_buckets - num_exact)).long()
    logarithmic = logarithmic.clamp(max=num_buckets - 1)
    return buckets + torch.where(distances < num_exact, distances, logarithmic)


class RelativeBias(nn.Module):
    """T5's learned bias of attention scores: one number per head and bucket of relative positions."""

    def __init__(self, config: ModelConfig, num_heads: int, is_bidirectional: bool, dtype: torch.dtype) -> None:
        super().__init__()
        reach = config.relative_max_distance
        distances = torch.arange(-reach if is_bidirectional else 0, reach + 1)
        table = relative_buckets(distances, config.relative_buckets, reach, is_bidirectional)
        self.min_distance, self.max_distance = int(distances[0]), reach
        self.weight = nn.Parameter(torch.full((config.relative_buckets, num_heads), torch.nan, dtype=dtype))
        self.buckets: Tensor
        self.register_buffer("buckets", table, persistent=False)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """The bias [..., H, n, T] of queries at positions [..., n] and keys at positions [..., T]."""
        distances = query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)
        rows = distances.clamp_(self.min_distance, self.max_distance).sub_(self.min_distance)
        return F.embedding(self.buckets[rows], self.weight).movedim(-1, -3)
