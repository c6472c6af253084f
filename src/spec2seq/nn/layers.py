"""Feed-forward, encoder and decoder layers, and the embeddings that feed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spec2seq.nn.attention import CrossAttention, SelfAttention
from spec2seq.nn.positions import position_table
from spec2seq.nn.sublayer import Norm, Sublayer, nan_parameter, nan_projection, without_infinities

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.config import Activation, ModelConfig
    from spec2seq.nn.kv_cache import LayerWindow


def activation_function(name: Activation) -> Callable[[Tensor], Tensor]:
    """The function of that name; "gelu_new" is the approximation by tanh."""
    functions: dict[Activation, Callable[[Tensor], Tensor]] = {
        "relu": torch.relu,
        "gelu": F.gelu,
        "gelu_new": lambda states: F.gelu(states, approximate="tanh"),
        "silu": F.silu,
    }
    return functions[name]


class FeedForward(Sublayer):
    """Two linear layers with an activation between. The gated kind multiplies the activation by a second input
    projection, which is fused with the first."""

    def __init__(self, config: ModelConfig, inner: int, dtype: torch.dtype) -> None:
        super().__init__(config, dtype)
        self.is_gated = config.is_gated_ffn
        self.activation = activation_function(config.activation)
        # T5 overflows fp16 here, so this product and the residuals after it are fp32, as in transformers.
        output_dtype = torch.float32 if self.clamps else dtype
        self.input_weight = nan_projection(dtype, inner * (2 if self.is_gated else 1), config.d_model)
        self.input_bias = nan_parameter(dtype, inner) if config.has_bias else None
        self.output_weight = nan_projection(output_dtype, config.d_model, inner)
        self.output_bias = nan_parameter(output_dtype, config.d_model) if config.has_bias else None
        self.remember(self.input_weight, self.input_bias, self.output_weight, self.output_bias)

    def forward(self, states: Tensor) -> Tensor:
        """[B, n, D] -> [B, n, D]."""
        input_weight, input_bias, output_weight, output_bias = self.weights
        inner = F.linear(self.enter(states), input_weight, input_bias)
        if self.is_gated:
            gate, linear = inner.chunk(2, dim=-1)
            inner = self.activation(gate) * linear
        else:
            inner = self.activation(inner)
        if self.clamps:
            inner = inner.to(output_weight.dtype)
        return self.leave(states, F.linear(inner, output_weight, output_bias))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        head_dim = config.encoder_head_dim or config.head_dim
        self.attention = SelfAttention(config, config.encoder_heads, head_dim, dtype)
        self.ffn = FeedForward(config, config.encoder_ffn_dim, dtype)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """states [B, S, D]; mask broadcastable to [B, H, S, S] or None. Returns [B, S, D]."""
        states = self.ffn.forward(self.attention.forward(states, mask))
        return without_infinities(states) if states.dtype == torch.float16 else states


class DecoderLayer(nn.Module):
    """Self-attention over cached tokens, cross-attention over the source, feed-forward."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention = SelfAttention(config, config.decoder_heads, config.head_dim, dtype)
        self.cross_attention = CrossAttention(config, dtype)
        self.ffn = FeedForward(config, config.decoder_ffn_dim, dtype)
        self._steps = (self.attention.forward, self.cross_attention.forward, self.ffn.forward)

    def forward(
        self,
        states: Tensor,
        mask: Tensor | None,
        window: LayerWindow | None,
        source: tuple[Tensor, Tensor],
        source_mask: Tensor | None,
    ) -> Tensor:
        """states [B, n, D]; mask broadcastable to [B, H, n, T]; source: keys and values [B, H, S, d].

        Without a window the n tokens attend to each other. Returns [B, n, D].
        """
        attention, cross_attention, ffn = self._steps
        states = attention(states, mask, window)
        states = cross_attention(states, *source, source_mask)
        return ffn(states)


class InputEmbedding(nn.Module):
    """Token embedding, scaled, plus the position's, normalised where the family does that."""

    def __init__(
        self, config: ModelConfig, max_positions: int | None, tokens: nn.Parameter, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = config.embedding_scale
        self.offset = config.position_offset
        self.pad_row = config.pad_token_id if config.positions == "fairseq_sinusoidal" else None
        self.norm = Norm(config, dtype) if config.has_embedding_norm else None
        self.positions: Tensor | None
        if config.positions == "learned":
            self.positions = nan_parameter(dtype, (max_positions or 0) + config.position_offset, config.d_model)
        else:
            table = position_table(config, max_positions)
            self.register_buffer("positions", None if table is None else table.to(dtype), persistent=False)

    def forward(self, ids: Tensor, positions: Tensor, first: int | None = None) -> Tensor:
        """ids [B, n] at positions [B, n] -> [B, n, D]. `first` where every row's positions are first, first + 1, ..."""
        states = F.embedding(ids, self.tokens)
        if self.positions is not None:
            states = torch.add(self._rows(self.positions, ids, positions, first), states, alpha=self.scale)
        elif self.scale != 1.0:
            states = states * self.scale
        return states if self.norm is None else self.norm.forward(states)

    def _rows(self, table: Tensor, ids: Tensor, positions: Tensor, first: int | None) -> Tensor:
        num_rows = table.shape[0]
        if self.pad_row is None and first is not None and first + self.offset + ids.shape[1] <= num_rows:
            return table[first + self.offset : first + self.offset + ids.shape[1]]
        # Positions beyond the table belong to padded queries, whose result nobody reads.
        rows = (positions + self.offset).clamp(max=num_rows - 1)
        if self.pad_row is not None:
            rows = rows.masked_fill(ids == self.pad_row, self.pad_row)
        return F.embedding(rows, table)
