"""One encoder-decoder Transformer for every family."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spec2seq.nn.attention import CrossProjection
from spec2seq.nn.layers import DecoderLayer, EncoderLayer, InputEmbedding
from spec2seq.nn.masks import Placement, decoder_mask, length_mask
from spec2seq.nn.positions import RelativeBias
from spec2seq.nn.sublayer import Norm, WithDropout, nan_parameter, nan_projection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.config import ModelConfig
    from spec2seq.nn.kv_cache import KeyValueCache

MAX_BANNED_SETS = 16  # output biases kept for different sets of banned ids


class Encoder(WithDropout):
    """Source ids to source states."""

    def __init__(self, config: ModelConfig, tokens: nn.Parameter, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = InputEmbedding(config, config.max_source_positions, tokens, dtype)
        self.layers = nn.ModuleList(EncoderLayer(config, dtype) for _ in range(config.encoder_layers))
        self.final_norm = Norm(config, dtype) if config.has_final_norm else None
        is_relative = config.positions == "relative"
        self.relative_bias = RelativeBias(config, config.encoder_heads, True, dtype) if is_relative else None
        self.pad_token_id = config.pad_token_id
        self.skips_padding = config.positions == "fairseq_sinusoidal"
        self.dtype = dtype

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """ids [B, S], real lengths [B] -> [B, S, D]; the states of padding mean nothing."""
        return self.states(ids, length_mask(lengths, ids.shape[1], self.dtype))

    def states(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """The same with a mask [B, 1, 1, S] that hides padding; None where there is none."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        states = self._embed(ids, positions)
        if self.dropout and self.training:
            states = F.dropout(states, self.dropout)
        if self.relative_bias is not None:
            bias = self.relative_bias.forward(positions, positions)[None]
            mask = (bias if mask is None else bias + mask).contiguous()
        for layer in self.layers:
            states = layer(states, mask)
        return states if self.final_norm is None else self.final_norm.forward(states)

    def _embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        if not self.skips_padding:
            return self.embedding.forward(ids, positions, first=0)
        positions = (ids != self.pad_token_id).cumsum(1) - 1
        return self.embedding.forward(ids, positions)


class Decoder(nn.Module):
    """Target ids to target states, with a cache."""

    def __init__(self, config: ModelConfig, tokens: nn.Parameter, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = InputEmbedding(config, config.max_target_positions, tokens, dtype)
        self.layers = nn.ModuleList(DecoderLayer(config, dtype) for _ in range(config.decoder_layers))
        self.final_norm = Norm(config, dtype) if config.has_final_norm else None
        is_relative = config.positions == "relative"
        self.relative_bias = RelativeBias(config, config.decoder_heads, False, dtype) if is_relative else None
        self.dtype = dtype

    def forward(
        self,
        tokens: Tensor,
        placement: Placement,
        mask: Tensor | None,
        cache: KeyValueCache,
        source: Sequence[tuple[Tensor, Tensor]],
        source_mask: Tensor | None,
    ) -> list[Tensor]:
        """tokens [B, n], source keys and values per layer. Returns L + 1 states [B, n, D]: the embeddings, then every
        layer's output, the last one after the final norm."""
        is_final = not placement.has_own_slots
        windows = cache.open(placement.slots, placement.num_slots, placement.first, is_final)
        mask = self._with_bias(mask, placement, cache)
        states = [self.embedding.forward(tokens, placement.positions, placement.first)]
        for layer, window, keys_values in zip(self.layers, windows, source, strict=True):
            states.append(layer.forward(states[-1], mask, window, keys_values, source_mask))
        if self.final_norm is not None:
            states[-1] = self.final_norm.forward(states[-1])
        return states

    def _with_bias(self, mask: Tensor | None, placement: Placement, cache: KeyValueCache) -> Tensor | None:
        if self.relative_bias is None:
            return mask
        if placement.has_own_slots or cache.slot_positions is not None:
            keys = cache.remember_positions(placement.slots, placement.positions, placement.num_slots)
        else:
            keys = torch.arange(placement.num_slots, device=placement.positions.device)[None]
        # where all rows are alike, one row's bias serves all
        queries = placement.positions if placement.first is None or len(keys) > 1 else placement.positions[:1]
        bias = self.relative_bias.forward(queries, keys)
        return (bias if mask is None else bias + mask).contiguous()


class Seq2Seq(nn.Module):
    """The encoder-decoder of a configuration, its weights NaN until somebody loads them.

    Attributes:
        source_tokens, target_tokens: embeddings [V, D]; one parameter when source and target share them.
        output_weight: [V, D]; the target embedding when tied.
        output_bias: [V] or None.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        target = nan_parameter(dtype, config.target_vocab_size, config.d_model)
        is_shared = config.shares_embeddings
        source = target if is_shared else nan_parameter(dtype, config.source_vocab_size, config.d_model)
        self.encoder = Encoder(config, source, dtype)
        self.decoder = Decoder(config, target, dtype)
        self.cross = CrossProjection(config, dtype)
        is_tied = config.ties_output
        self.output_weight = target if is_tied else nan_projection(dtype, config.target_vocab_size, config.d_model)
        self.output_bias = nan_parameter(dtype, config.target_vocab_size) if config.has_output_bias else None
        self._banned_bias: dict[tuple[int, ...], Tensor] = {}

    def encode(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Source ids [B, S] with real lengths [B] (each at least 1) -> states [B, S, D]."""
        return self.encoder.forward(ids, lengths)

    def cross_keys_values(self, hidden: Tensor) -> Tensor:
        """Source states [B, S, D] -> keys and values of all decoder layers [L, 2, B, H, S, d]."""
        return self.cross.forward(hidden)

    def decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        lengths: Tensor,
        cache: KeyValueCache,
        source: Sequence[tuple[Tensor, Tensor]],
        source_mask: Tensor | None,
        *,
        slots: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> list[Tensor]:
        """States of n target tokens per row, whose keys and values go into the cache.

        Args:
            tokens, positions: [B, n]; positions increase along every row, and may be on the host.
            lengths: [B] real tokens of each row; padded ones come last.
            cache: of the same rows.
            source: per layer, keys and values [B, H, S, d].
            source_mask: [B, 1, 1, S] added to cross-attention scores, or None.
            slots: [B, n] where keys and values are written; `positions` when None.
            visible: [B, n, T'] bool, True where a query sees a slot; slot <= position when None.

        Returns:
            L + 1 tensors [B, n, D]: embeddings, then the output of every layer, the last one after the final norm.
        """
        placement = Placement.read(positions, slots, visible).to(tokens.device)
        mask = decoder_mask(placement, lengths, visible, self.dtype)
        return self.decoder.forward(tokens, placement, mask, cache, source, source_mask)

    def project(self, states: Tensor, banned: tuple[int, ...] = ()) -> Tensor:
        """Final decoder states [..., D] -> logits [..., V] in the network's type; `banned` ids get minus infinity."""
        if self.config.output_scale != 1.0:
            states = states * self.config.output_scale
        return F.linear(states, self.output_weight, self._bias(banned))

    def _bias(self, banned: tuple[int, ...]) -> Tensor | None:
        if not banned:
            return self.output_bias
        bias = self._banned_bias.get(banned)
        if bias is None or bias.device != self.output_weight.device:
            plain = self.output_bias
            bias = self.output_weight.new_zeros(self.config.target_vocab_size) if plain is None else plain.clone()
            bias[list(banned)] = -torch.inf
            if len(self._banned_bias) >= MAX_BANNED_SETS:
                self._banned_bias.clear()
            self._banned_bias[banned] = bias
        return bias
