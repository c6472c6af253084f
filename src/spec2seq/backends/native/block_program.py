"""The drafter on the verifier's states with int8 weights, run like a compiled graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from spec2seq.backends.native.block_draft import (
    BlockPlaces,
    BlockSizes,
    BlockTables,
    block_room_bytes,
    draft_block,
    read_states,
)
from spec2seq.backends.native.bound_program import BoundProgram
from spec2seq.backends.native.decoder_step import Factors
from spec2seq.backends.native.network_numbers import (
    aligned_bytes,
    array,
    decoder_sublayers,
    matrices,
    norm_numbers,
    padded_bias,
    vectors,
)
from spec2seq.backends.native.packing import PackedWeights, packed_int8, padded_outputs
from spec2seq.backends.native.rows import ACTIVATIONS
from spec2seq.backends.native.tiles import MAX_ROWS, may_use_tiles, tile_configuration
from spec2seq.backends.native.vectors import LANES, LOG2_E

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec2seq.drafter_config import FeatureDrafterConfig
    from spec2seq.nn.feature_drafter import FeatureDrafterNetwork

Array = np.ndarray[Any, Any]


class BlockProgram(BoundProgram["_CallSizes", "_Call"]):
    """Runs a network's blocks. Not safe for use from several threads at once; others may run meanwhile.

    Takes what the graph "draft" of the OpenVINO engine does, keys and values in fp32. Gives "scores" and "new" as that,
    and with a bigram table "walked" [B, k]: the best token of each slot behind the one before it, by its place among
    those that can be drafted.
    """

    def __init__(self, network: FeatureDrafterNetwork, *, uses_tiles: bool | None = None) -> None:
        """An attached network in fp32 that `support.can_draft`. Tiles (AMX) are used where there are any unless that is
        said."""
        super().__init__(network.config.num_layers)
        self._has_tiles = may_use_tiles() if uses_tiles is None else uses_tiles
        config = network.config
        self._sizes = _sizes(config)
        layers = config.layers
        scale = config.head_dim**-0.5 if layers.is_attention_scaled else 1.0
        self._factors = Factors(layers.embedding_scale, scale * LOG2_E, layers.norm_eps)
        self._weights = PackedWeights.of([packed_int8(weights) for weights in _matrices(network)])
        self._numbers = (
            _mixture(network), np.zeros(max(config.width, config.verifier.d_model), np.float32), _pairs(network),
            _vectors(network),
        )  # fmt: skip
        self._tables = BlockTables(*(numbers.ctypes.data for numbers in self._numbers))
        count = min(config.bigram_candidates, config.num_outputs)
        self._best = np.zeros(count, np.float32), np.zeros(count, np.int64)

    def run(self) -> None:
        """Compute the outputs from what the bound arrays hold now."""
        arrays, source_mask = self._bound["call"], self._bound["source"]["source_mask"]
        states, slots, mask = arrays["states"], arrays["slots"], arrays["mask"]
        call = self._room(
            _CallSizes(len(slots), slots.shape[1], states.shape[1], max(mask.shape[3], source_mask.shape[3]))
        )
        draft_block(
            self._sizes, self._factors, self._tables, self._weights.places, states, arrays["anchors"], slots, mask,
            source_mask, arrays["before"], self._keys_values, call.lists, self._best, call.outputs["walked"],
            call.places,
        )  # fmt: skip

    def read(self, states: Array) -> Array:
        """Keys and values [B, m, L, 2, H, d] of states [B, m, N, D], valid until the next run."""
        call = self._room(_CallSizes(len(states), 1, states.shape[1], 1))
        own = np.ascontiguousarray(states)
        read_states(self._sizes, self._tables, self._weights.places, own, call.places)
        return call.outputs["new"]

    def _new_room(self, sizes: _CallSizes) -> _Call:
        return _Call(self._sizes, sizes, has_tiles=self._has_tiles)


class _CallSizes(NamedTuple):
    """B, k, m, the longest list of keys."""

    rows: int
    places: int
    states: int
    keys: int


class _Call:
    """Room for calls of the same sizes: `lists` and `places` of `draft_block`, views of what it writes, and how many
    bytes that takes."""

    def __init__(self, model: BlockSizes, sizes: _CallSizes, *, has_tiles: bool) -> None:
        num_places, num_states = sizes.rows * sizes.places, sizes.rows * sizes.states
        heads = model.heads, model.head_width
        self.lists = np.zeros((2, sizes.keys), np.int64)
        self._room = aligned_bytes(block_room_bytes(model, max(num_places, num_states), sizes.keys))
        self._qkv = np.zeros((num_places, 3, *heads), np.float32)
        scores = np.zeros(num_places * model.outputs + LANES, np.float32)
        self.outputs: dict[str, Array] = {
            "new": np.zeros((sizes.rows, sizes.states, model.layers, 2, *heads), np.float32),
            "scores": scores[:-LANES].reshape(sizes.rows, sizes.places, model.outputs),
            "walked": np.zeros((sizes.rows, sizes.places), np.int64),
        }
        self.num_bytes = len(self._room) + self._qkv.nbytes + sum(output.nbytes for output in self.outputs.values())
        self._tiles = [_tiles(number) if has_tiles else None for number in (num_states, num_places)]
        self.places = BlockPlaces(
            *(0 if tiles is None else tiles.ctypes.data for tiles in self._tiles),
            *(memory.ctypes.data for memory in (self._room, self._qkv, self.outputs["new"], scores)),
        )


def _tiles(num_rows: int) -> Array | None:
    """What to configure tiles with for products of so many rows; None where they do not pay."""
    return tile_configuration(min(num_rows, MAX_ROWS)) if num_rows > 1 else None


def _sizes(config: FeatureDrafterConfig) -> BlockSizes:
    layers = config.layers
    return BlockSizes(
        layers=config.num_layers,
        width=config.width,
        heads=config.num_heads,
        head_width=config.head_dim,
        inner=config.ffn_dim,
        outputs=config.num_outputs,
        activation=ACTIVATIONS.index(layers.activation),
        is_pre_norm=int(layers.is_pre_norm),
        has_final_norm=int(layers.has_final_norm),
        states=len(config.hidden_layers),
        wide=config.verifier.d_model,
        has_output=int(config.width != config.verifier.d_model),
        rank=config.bigram_rank,
    )


def _matrices(network: FeatureDrafterNetwork) -> Iterator[Array]:
    """In the order of `block_draft`."""
    embedding = network.embedding
    for weight in (network.prefix_reader.weight, embedding.state_weight, embedding.anchor_weight):
        yield array(weight)
    yield from matrices(decoder_sublayers(network.layers))
    if network.output_weight is not None:
        yield array(network.output_weight)
    yield array(network.tables.weight)


def _vectors(network: FeatureDrafterNetwork) -> Array:
    """In the order of `BlockTables.vectors`."""
    config = network.config
    first, last = array(network.prefix_reader.bias), norm_numbers(network.final_norm)
    output = padded_bias(network.tables.bias, padded_outputs(config.num_outputs))
    return np.concatenate([first, *vectors(decoder_sublayers(network.layers)), last, output])


def _mixture(network: FeatureDrafterNetwork) -> Array:
    config, mixture = network.config, network.prefix_reader.mixture
    shares = torch.ones(len(config.hidden_layers)) if mixture is None else mixture
    return np.repeat(array(shares), config.verifier.d_model)


def _pairs(network: FeatureDrafterNetwork) -> Array:
    """[V', 2, r], or nothing."""
    if network.bigrams is None:
        return np.zeros(0, np.float32)
    before, after = network.bigrams.before, network.bigrams.after
    own = before if network.shortlist is None else before[network.shortlist]
    return array(torch.stack([own, after], dim=1))
