"""One call of the drafter on the verifier's states: states and a block in, scores and the best tokens' places out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from spec2seq.backends.native.layers import MATRICES_PER_LAYER, laid_out, multiply, norm_rows, run_layer
from spec2seq.backends.native.rows import copy_row, norm_row, scale_and_add_row
from spec2seq.backends.native.tiles import BYTE_TILES, WITHOUT_TILES, start_tiles, stop_tiles
from spec2seq.backends.native.walk import walk

_ONE = np.float32(1.0)
_READER_EPS = np.float32(1e-5)  # of the norm of the verifier's states, which has no weights: torch's own
READER, LAST_STATE, ANCHOR, FIRST_LAYER = range(4)
"""Where matrices are: they are followed by those of the layers, the output's where there is one, and the tokens'."""


class BlockSizes(NamedTuple):
    """What a drafter is. Flags are 0 or 1.

    Attributes:
        layers, width, heads, head_width, inner, outputs: L, D', H, d, that of the feed-forward layers, V'.
        activation: its place in `rows.ACTIVATIONS`.
        is_pre_norm, has_final_norm: as in `ModelConfig`.
        states, wide: N layers of the verifier, and its width D.
        has_output: whether states are as wide as the verifier's only behind a projection.
        rank: r of the bigram table; 0 where there is none.
    """

    layers: int
    width: int
    heads: int
    head_width: int
    inner: int
    outputs: int
    activation: int
    is_pre_norm: int
    has_final_norm: int
    states: int
    wide: int
    has_output: int
    rank: int


class BlockTables(NamedTuple):
    """Addresses of a drafter's numbers in fp32.

    Attributes:
        mixture: [N, D], how much each of the verifier's layers counts.
        zeros: [the larger of D and D'].
        pairs: [V', 2, r], see `walk.walk`.
        vectors: in the order they are used: the reader's bias; three times per layer the biases of two linear layers
            with a norm before or behind them; the final norm; the output's bias, padded to a multiple of 16.
    """

    mixture: int
    zeros: int
    pairs: int
    vectors: int


class BlockPlaces(NamedTuple):
    """Addresses that a call reads or writes besides its arrays.

    Attributes:
        state_tiles, block_tiles: tile configurations for what is made of states, and of a block; 0 where tiles are not
            used.
        room: `block_room_bytes` for what comes between, aligned to 64.
        qkv: [B * k, 3, H, d] fp32, room.
        new: [B, m, L, 2, H, d] fp32, keys and values of the states.
        scores: [B, k, V'] fp32 and room for 16 numbers more.
    """

    state_tiles: int
    block_tiles: int
    room: int
    qkv: int
    new: int
    scores: int


@njit(cache=True)
def _room(start, sizes, num_rows, num_keys):
    """A `Room` from an address on, for so many states or places of blocks, and so many keys."""
    width, attended = max(sizes.width, sizes.wide), sizes.heads * sizes.head_width
    return laid_out(start, num_rows, width, attended, max(sizes.inner, width, attended), num_keys)


@njit(cache=True)
def block_room_bytes(sizes, num_rows, num_keys):
    """How much room a call of at most so many states or places of blocks, which see so many keys, needs."""
    return _room(0, sizes, num_rows, num_keys).end


@njit(cache=True)
def _read(sizes, tables, weights, states, room, tiles, new):
    """Mix states [B, m, N, D] into `room.inner` and make keys and values of them. Returns the vectors used next."""
    num_rows, width = states.shape[0] * states.shape[1], 4 * sizes.wide
    for row in range(num_rows):
        own, mixed = np.int64(states.ctypes.data) + row * sizes.states * width, room.inner + row * width
        for number in range(sizes.states):  # a norm's weight is a layer's share, and its bias what was mixed before
            before = mixed if number else tables.zeros
            norm_row(own + number * width, tables.mixture + number * width, before, _READER_EPS, mixed, sizes.wide)
    kernel = BYTE_TILES if tiles else WITHOUT_TILES
    if tiles:
        start_tiles(tiles)
    outputs = 2 * sizes.layers * sizes.heads * sizes.head_width
    multiply(weights[READER], tables.vectors, room.inner, new, num_rows, outputs, sizes.wide, room, kernel)
    if tiles:
        stop_tiles()
    return tables.vectors + 4 * outputs


@njit(cache=True, nogil=True)
def read_states(sizes, tables, weights, states, places):
    """Make keys and values of states [B, m, N, D]."""
    room = _room(places.room, sizes, states.shape[0] * states.shape[1], 0)
    _read(sizes, tables, weights, states, room, places.state_tiles, places.new)


@njit(cache=True)
def _embed(sizes, tables, weights, num_states, anchors, slots, room):
    """The block's input: places and positions, the last state, and in the first place the anchor."""
    width, wide, num_places = 4 * sizes.width, 4 * sizes.wide, slots.shape[1]
    num_rows = slots.shape[0]
    for row in range(num_rows):
        copy_row(room.inner + ((row + 1) * num_states - 1) * wide, room.normed + row * wide, sizes.wide)
    for matrix, x, y in ((LAST_STATE, room.normed, room.y), (ANCHOR, np.int64(anchors.ctypes.data), room.normed)):
        multiply(weights[matrix], tables.zeros, x, y, num_rows, sizes.width, sizes.wide, room, WITHOUT_TILES)
    for row in range(num_rows):
        for place in range(num_places):
            number = (row * num_places + place) * width
            own, block = np.int64(slots.ctypes.data) + number, room.x + number
            scale_and_add_row(own, _ONE, room.y + row * width, block, sizes.width)
            if place == 0:
                scale_and_add_row(block, _ONE, room.normed + row * width, block, sizes.width)


@njit(cache=True)
def _score(sizes, factors, tables, weights, vectors, num_rows, room, kernel, scores):
    """Scores of `room.x`."""
    matrix, x, wide = FIRST_LAYER + MATRICES_PER_LAYER * sizes.layers, room.x, sizes.width
    if sizes.has_final_norm:
        norm_rows(x, vectors, np.float32(factors.eps), x, num_rows, sizes.width)
        vectors += 8 * sizes.width
    if sizes.has_output:
        wide = sizes.wide
        multiply(weights[matrix], tables.zeros, x, room.normed, num_rows, wide, sizes.width, room, kernel)
        matrix, x = matrix + 1, room.normed
    multiply(weights[matrix], vectors, x, scores, num_rows, sizes.outputs, wide, room, kernel)


@njit(cache=True, nogil=True)
def draft_block(
    sizes, factors, tables, weights, states, anchors, slots, mask, source_mask, before, keys_values, lists, best,
    walked, places,
):  # fmt: skip
    """Run a block through the drafter. See `feature_graphs.DraftModule` for the inputs.

    Args:
        sizes, factors, tables: the drafter; the embeddings' factor is not used.
        weights: int64, addresses of `PackedWeights` [...] in the order of `READER` and what follows it.
        states: [B, m, N, D] fp32.
        anchors, slots: [B, 1, D] and [B, k, D'] fp32.
        mask, source_mask: [B, 1, 1 or k, T + m + k] and [B, 1, 1, S] fp32.
        before: [B, 1, 1, r] fp32.
        keys_values: [L, 4] int64, addresses of cached keys and values [B, T, H, d] and the source's [B, H, S, d].
        lists: [2, at least the larger of T + m + k and S] int64, room.
        best: values and places of [C] candidates, fp32 and int64, room.
        walked: [B, k] int64, the best tokens' places among those that can be drafted; not without a bigram table.
        places: where the other results go.
    """
    num_states, num_places = states.shape[1], slots.shape[1]
    num_rows, key_bytes = states.shape[0] * num_places, 4 * sizes.heads * sizes.head_width
    room = _room(places.room, sizes, states.shape[0] * max(num_places, num_states), lists.shape[1])
    vectors = _read(sizes, tables, weights, states, room, places.state_tiles, places.new)
    _embed(sizes, tables, weights, num_states, anchors, slots, room)
    kernel = BYTE_TILES if places.block_tiles else WITHOUT_TILES
    if places.block_tiles:
        start_tiles(places.block_tiles)
    for layer in range(sizes.layers):
        own = weights[FIRST_LAYER + MATRICES_PER_LAYER * layer :]
        fresh = places.new + 2 * layer * key_bytes, num_states, 2 * sizes.layers * key_bytes
        vectors = run_layer(
            sizes, factors, own, vectors, num_places, mask, source_mask, keys_values[layer], fresh, places.qkv, lists,
            room, kernel,
        )  # fmt: skip
    _score(sizes, factors, tables, weights, vectors, num_rows, room, kernel, places.scores)
    if places.block_tiles:
        stop_tiles()
    if sizes.rank:
        values, found = best
        for row in range(len(states)):
            scores, first = places.scores + 4 * row * num_places * sizes.outputs, np.int64(before.ctypes.data)
            walk(
                scores, sizes.outputs, num_places, first + 4 * row * sizes.rank, tables.pairs, sizes.rank, values,
                found, walked[row],
            )  # fmt: skip
