"""An encoder, and the projection of its states to the decoder's keys and values, as machine code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spec2seq.backends.native.bfloat16_products import packed_bfloat16
from spec2seq.backends.native.decoder_step import Factors, Sizes
from spec2seq.backends.native.encoder_pass import encoder_pass, encoder_room, project_source
from spec2seq.backends.native.network_numbers import aligned_bytes, array, matrices, norm_numbers, padded_bias, vectors
from spec2seq.backends.native.packing import PackedWeights, padded_outputs
from spec2seq.backends.native.rows import ACTIVATIONS
from spec2seq.backends.native.tiles import MAX_ROWS, may_use_tiles, tile_configuration
from spec2seq.backends.native.vectors import LANES, LOG2_E
from spec2seq.nn.layers import EncoderLayer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec2seq.config import ModelConfig
    from spec2seq.nn.seq2seq import Encoder, Seq2Seq
    from spec2seq.nn.sublayer import Sublayer

Array = np.ndarray[Any, Any]


class SourceProgram:
    """Encodes sources with weights in bfloat16, on tiles. Not safe for use from several threads at once."""

    def __init__(self, network: Seq2Seq) -> None:
        """A network in fp32 that `support.can_encode`."""
        assert may_use_tiles()  # the system wants to be asked
        config, encoder, cross = network.config, network.encoder, network.cross
        self._encoder, self._cross_shape, self._width = encoder, cross.shape, config.d_model
        self._sizes = _sizes(config)
        scale = self._sizes.head_width**-0.5 if config.is_attention_scaled else 1.0
        self._factors = Factors(config.embedding_scale, scale * LOG2_E, config.norm_eps)
        self._tokens, self._positions = array(encoder.embedding.tokens), array(_table(encoder))
        layers = [*matrices(_sublayers(encoder)), array(cross.weight)]
        self._weights = PackedWeights.of([packed_bfloat16(weights) for weights in layers])
        self._vectors = np.concatenate([*vectors(_sublayers(encoder)), norm_numbers(encoder.final_norm)])
        self._bias = padded_bias(cross.bias, padded_outputs(len(cross.weight)))
        self._tiles = tile_configuration(MAX_ROWS)
        self._room = aligned_bytes(0)

    def encode(self, ids: Array, mask: Array) -> Array:
        """States [B, S, D] of ids [B, S] under a mask [B, 1, 1, S] that hides padding."""
        states = self._embedded(ids)
        num_rows, sizes = ids.size, self._sizes
        qkv = np.empty(3 * num_rows * sizes.heads * sizes.head_width + LANES, np.float32)
        lists = np.empty((2, ids.shape[1]), np.int64)
        room = self._room_for(num_rows, ids.shape[1])
        encoder_pass(
            sizes, self._factors, self._weights.places, self._vectors.ctypes.data, states, mask, qkv, lists,
            self._tiles.ctypes.data, room,
        )  # fmt: skip
        return states

    def cross(self, states: Array) -> Array:
        """Keys and values [L, 2, B, H, S, d] of states [B, S, D]."""
        num_sources, length, _ = states.shape
        num_rows, num_outputs = num_sources * length, int(np.prod(self._cross_shape))
        projected = np.empty(num_rows * num_outputs + LANES, np.float32)
        room = self._room_for(num_rows, 0)
        project_source(
            self._sizes, self._weights.places[-1], self._bias.ctypes.data, states, num_outputs, projected,
            self._tiles.ctypes.data, room,
        )  # fmt: skip
        parts = projected[:-LANES].reshape(num_sources, length, *self._cross_shape)
        return np.ascontiguousarray(parts.transpose(2, 3, 0, 4, 1, 5))

    def _embedded(self, ids: Array) -> Array:
        """[B, S, D], as `Encoder` embeds."""
        embedding = self._encoder.embedding
        is_pad = ids == self._encoder.pad_token_id
        skips = self._encoder.skips_padding
        places = np.cumsum(~is_pad, axis=1) - 1 if skips else np.arange(ids.shape[1])[None]
        places = np.minimum(places + embedding.offset, len(self._positions) - 1)
        if embedding.pad_row is not None:
            places = np.where(is_pad, embedding.pad_row, places)
        states = self._tokens[ids] * np.float32(embedding.scale) + self._positions[places]
        if embedding.norm is not None:
            numbers = norm_numbers(embedding.norm)
            states -= states.mean(-1, keepdims=True)
            states /= np.sqrt(np.square(states).mean(-1, keepdims=True) + np.float32(embedding.norm.eps))
            states = states * numbers[: self._width] + numbers[self._width :]
        return np.ascontiguousarray(states, np.float32)

    def _room_for(self, num_rows: int, num_keys: int) -> int:
        """The address of room for so many rows."""
        num_bytes = encoder_room(0, self._sizes, num_rows, num_keys).end
        if len(self._room) < num_bytes:
            self._room = aligned_bytes(num_bytes)
        return int(self._room.ctypes.data)


def _sizes(config: ModelConfig) -> Sizes:
    return Sizes(
        layers=config.encoder_layers,
        width=config.d_model,
        heads=config.encoder_heads,
        head_width=config.encoder_head_dim or config.head_dim,
        inner=config.encoder_ffn_dim,
        outputs=0,
        activation=ACTIVATIONS.index(config.activation),
        is_pre_norm=int(config.is_pre_norm),
        has_final_norm=int(config.has_final_norm),
        has_embedding_norm=int(config.has_embedding_norm),
        positions=0,
        offset=0,
        pad_token=-1,
    )


def _table(encoder: Encoder) -> Any:
    assert encoder.embedding.positions is not None  # `can_encode`
    return encoder.embedding.positions


def _sublayers(encoder: Encoder) -> Iterator[Sublayer]:
    for layer in encoder.layers:
        assert isinstance(layer, EncoderLayer)  # module lists do not say what is in them
        yield from (layer.attention, layer.ffn)
