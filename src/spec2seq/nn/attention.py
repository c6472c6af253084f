"""Multi-head attention with fused projections, over the source, over itself, or over cached keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spec2seq.nn.sublayer import Sublayer, nan_parameter, nan_projection

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.nn.kv_cache import LayerWindow


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Scaled dot-product attention.

    Args:
        queries: [B, H, n, d].
        keys, values: [B, H, T, d], any strides.
        mask: added to the scores, broadcastable to [B, H, n, T]; None where every query sees every key.
        scale: factor of query . key.

    Returns:
        [B, n, H * d].
    """
    batch, heads, num_queries, head_dim = queries.shape
    if batch == 1 and queries.device.type == "cpu" and queries.dtype in (torch.float32, torch.float64):
        # Three plain products beat the fused kernel's set-up for the few queries of one row (by a third, measured).
        queries, keys = queries[0], keys[0].transpose(1, 2)
        if mask is None:  # beta=0: the first argument is not read
            scores = torch.baddbmm(queries[..., :1], queries, keys, beta=0, alpha=scale)
        else:
            scores = torch.baddbmm(mask[0], queries, keys, alpha=scale)
        attended = torch.bmm(scores.softmax(-1), values[0])[None]
    elif queries.device.type == "cpu" and queries.requires_grad and torch.is_grad_enabled():
        # backwards the fused kernel takes four times as long as plain products (two fifths of a training step)
        scores = (queries * scale) @ keys.transpose(2, 3)
        attended = (scores if mask is None else scores + mask).softmax(-1) @ values
    else:
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
    return attended.transpose(1, 2).reshape(batch, num_queries, heads * head_dim)


class SelfAttention(Sublayer):
    """Attention of a stack's tokens over each other. Queries, keys and values come from one product."""

    def __init__(self, config: ModelConfig, num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        super().__init__(config, dtype)
        inner = num_heads * head_dim
        self.num_heads, self.head_dim = num_heads, head_dim
        self.scale = head_dim**-0.5 if config.is_attention_scaled else 1.0
        self.qkv_weight = nan_projection(dtype, 3 * inner, config.d_model)
        self.qkv_bias = nan_parameter(dtype, 3 * inner) if config.has_bias else None
        self.output_weight = nan_projection(dtype, config.d_model, inner)
        self.output_bias = nan_parameter(dtype, config.d_model) if config.has_bias else None
        self.remember(self.qkv_weight, self.qkv_bias, self.output_weight, self.output_bias)

    def forward(self, states: Tensor, mask: Tensor | None, window: LayerWindow | None = None) -> Tensor:
        """states [B, n, D] -> [B, n, D]. With a window, keys and values are stored in it and read from it."""
        qkv_weight, qkv_bias, output_weight, output_bias = self.weights
        batch, num_queries, _ = states.shape
        qkv = F.linear(self.enter(states), qkv_weight, qkv_bias)
        qkv = qkv.view(batch, num_queries, 3, self.num_heads, self.head_dim)
        if window is None:
            queries, keys, values = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            queries, keys, values = window.exchange(qkv)
        attended = attend(queries, keys, values, mask, self.scale)
        return self.leave(states, F.linear(attended, output_weight, output_bias))


class CrossAttention(Sublayer):
    """Attention of target tokens over the source. Keys and values were made once, for all layers together."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__(config, dtype)
        inner = config.decoder_heads * config.head_dim
        self.num_heads, self.head_dim = config.decoder_heads, config.head_dim
        self.scale = config.head_dim**-0.5 if config.is_attention_scaled else 1.0
        self.query_weight = nan_projection(dtype, inner, config.d_model)
        self.query_bias = nan_parameter(dtype, inner) if config.has_bias else None
        self.output_weight = nan_projection(dtype, config.d_model, inner)
        self.output_bias = nan_parameter(dtype, config.d_model) if config.has_bias else None
        self.remember(self.query_weight, self.query_bias, self.output_weight, self.output_bias)

    def forward(self, states: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """states [B, n, D]; keys, values [B, H, S, d]; mask [B, 1, 1, S] or None. Returns [B, n, D]."""
        query_weight, query_bias, output_weight, output_bias = self.weights
        batch, num_queries, _ = states.shape
        queries = F.linear(self.enter(states), query_weight, query_bias)
        queries = queries.view(batch, num_queries, self.num_heads, self.head_dim).transpose(1, 2)
        attended = attend(queries, keys, values, mask, self.scale)
        return self.leave(states, F.linear(attended, output_weight, output_bias))


class CrossProjection(nn.Module):
    """Keys and values of the source for the cross-attention of every decoder layer, in one product."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = (config.decoder_layers, 2, config.decoder_heads, config.head_dim)
        rows = config.decoder_layers * 2 * config.decoder_heads * config.head_dim
        self.weight = nan_projection(dtype, rows, config.d_model)
        self.bias = nan_parameter(dtype, rows) if config.has_bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [B, S, D] -> [L, 2, B, H, S, d]."""
        batch, length, _ = hidden.shape
        projected = F.linear(hidden, self.weight, self.bias).view(batch, length, *self.shape)
        return projected.permute(2, 3, 0, 4, 1, 5).contiguous()
