"""A decoder with int8 weights that runs like a compiled graph: arrays are bound to it, it runs, and they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spec2seq.backends.native.bound_program import BoundProgram
from spec2seq.backends.native.decoder_step import Factors, Places, Sizes, Tables, decoder_step, room_bytes
from spec2seq.backends.native.network_numbers import (
    aligned_bytes,
    array,
    decoder_sublayers,
    matrices,
    norm_numbers,
    padded_bias,
    vectors,
)
from spec2seq.backends.native.packing import PackedWeights, packed_int8, padded_outputs, with_residual
from spec2seq.backends.native.rows import ACTIVATIONS
from spec2seq.backends.native.tiles import MAX_ROWS, may_use_tiles, tile_configuration
from spec2seq.backends.native.vectors import LANES, LOG2_E

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.nn.seq2seq import Seq2Seq

Array = np.ndarray[Any, Any]


class StepProgram(BoundProgram["_CallSizes", "_Call"]):
    """Runs a network's decoder. Not safe for use from several threads at once; others may run meanwhile.

    Takes and gives what the graph "step" of the OpenVINO engine does, keys and values in fp32: new [L * B, n, 3, H, d],
    states [B, n, L + 1, D], logits [m, V].
    """

    def __init__(self, network: Seq2Seq, *, uses_tiles: bool | None = None) -> None:
        """A network in fp32 that `support.can_run`. Tiles (AMX) are used where there are any unless that is said."""
        super().__init__(network.config.decoder_layers)
        self._has_tiles = may_use_tiles() if uses_tiles is None else uses_tiles
        config, embedding = network.config, network.decoder.embedding
        assert embedding.positions is not None
        self._sizes = _sizes(config, len(embedding.positions))
        scale = config.head_dim**-0.5 if config.is_attention_scaled else 1.0
        self._factors = Factors(config.embedding_scale, scale * LOG2_E, config.norm_eps)
        self._weights = PackedWeights.of([packed_int8(weights) for weights in _matrices(network)])
        self._numbers = (
            array(embedding.tokens), array(embedding.positions), _vectors(network)
        )  # fmt: skip
        self._tables = Tables(*(numbers.ctypes.data for numbers in self._numbers))

    def run(self) -> None:
        """Compute the outputs from what the bound arrays hold now."""
        arrays, source_mask = self._bound["call"], self._bound["source"]["source_mask"]
        tokens, mask, scored = arrays["tokens"], arrays["mask"], self._bound["scored"]["scored"]
        num_rows, num_queries = tokens.shape
        sizes = _CallSizes(num_rows, num_queries, max(mask.shape[3], source_mask.shape[3]), scored.size)
        call = self._room(sizes)
        decoder_step(
            self._sizes, self._factors, self._tables, self._weights.places, tokens, arrays["positions"], mask,
            source_mask, scored, self._keys_values, call.lists, call.places,
        )  # fmt: skip

    def _new_room(self, sizes: _CallSizes) -> _Call:
        return _Call(self._sizes, sizes, has_tiles=self._has_tiles)


class _CallSizes(NamedTuple):
    """B, n, the longest list of keys, m."""

    rows: int
    queries: int
    keys: int
    scored: int


class _Call:
    """Room for calls of the same sizes: `lists` and `places` of `decoder_step`, views of what it writes, and how many
    bytes that takes."""

    def __init__(self, model: Sizes, sizes: _CallSizes, *, has_tiles: bool) -> None:
        num_rows = sizes.rows * sizes.queries
        self.lists = np.zeros((2, sizes.keys), np.int64)
        self._room = aligned_bytes(room_bytes(model, num_rows, sizes.keys))
        logits = np.zeros(sizes.scored * model.outputs + LANES, np.float32)
        self.outputs: dict[str, Array] = {
            "new": np.zeros((model.layers * sizes.rows, sizes.queries, 3, model.heads, model.head_width), np.float32),
            "states": np.zeros((sizes.rows, sizes.queries, model.layers + 1, model.width), np.float32),
            "logits": logits[:-LANES].reshape(sizes.scored, model.outputs),
        }
        self.num_bytes = len(self._room) + sum(array.nbytes for array in self.outputs.values())
        self._tiles = tile_configuration(min(num_rows, MAX_ROWS)) if has_tiles and num_rows > 1 else None
        tiles = 0 if self._tiles is None else self._tiles.ctypes.data
        self.places = Places(
            tiles, self._room.ctypes.data, *(self.outputs[name].ctypes.data for name in ("new", "states", "logits"))
        )


def _sizes(config: ModelConfig, num_positions: int) -> Sizes:
    return Sizes(
        layers=config.decoder_layers,
        width=config.d_model,
        heads=config.decoder_heads,
        head_width=config.head_dim,
        inner=config.decoder_ffn_dim,
        outputs=config.target_vocab_size,
        activation=ACTIVATIONS.index(config.activation),
        is_pre_norm=int(config.is_pre_norm),
        has_final_norm=int(config.has_final_norm),
        has_embedding_norm=int(config.has_embedding_norm),
        positions=num_positions,
        offset=config.position_offset,
        pad_token=config.pad_token_id if config.positions == "fairseq_sinusoidal" else -1,
    )


def _matrices(network: Seq2Seq) -> list[Array]:
    """In the order of `decoder_step`."""
    return [*matrices(decoder_sublayers(network.decoder.layers)), with_residual(array(network.output_weight))]


def _vectors(network: Seq2Seq) -> Array:
    """In the order of `Tables.vectors`."""
    decoder = network.decoder
    output = padded_bias(network.output_bias, padded_outputs(network.config.target_vocab_size))
    first, last = norm_numbers(decoder.embedding.norm), norm_numbers(decoder.final_norm)
    return np.concatenate([first, *vectors(decoder_sublayers(decoder.layers)), last, output])
