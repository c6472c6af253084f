"""One call of a decoder: queries in, scores, states and their keys and values out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from spec2seq.backends.native.layers import MATRICES_PER_LAYER, laid_out, multiply, norm_rows, run_layer
from spec2seq.backends.native.rows import copy_row, scale_and_add_row
from spec2seq.backends.native.tiles import BYTE_TILES, WITHOUT_TILES, start_tiles, stop_tiles


class Sizes(NamedTuple):
    """What a decoder is. Flags are 0 or 1.

    Attributes:
        layers, width, heads, head_width, inner, outputs: L, D, H, d, that of the feed-forward layers, V.
        activation: its place in `rows.ACTIVATIONS`.
        is_pre_norm, has_final_norm, has_embedding_norm: as in `ModelConfig`.
        positions: rows of the table of positions.
        offset: added to a position to find its row.
        pad_token: whose tokens have the row of that number; -1 where they are like all others.
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
    has_embedding_norm: int
    positions: int
    offset: int
    pad_token: int


class Tables(NamedTuple):
    """Addresses of a model's numbers in fp32.

    Attributes:
        tokens, positions: embeddings [V, D], [P, D].
        vectors: in the order they are used: the embeddings' norm; three times per layer the biases of two linear layers
            with a norm before or behind them; the final norm; the output's bias. A norm is its weight [D] and bias [D].
            The output's bias is padded to a multiple of 16.
    """

    tokens: int
    positions: int
    vectors: int


class Factors(NamedTuple):
    """Of embeddings, of attention scores (times log2(e)), and what is added to variances."""

    embedding: float
    attention: float
    eps: float


class Places(NamedTuple):
    """Addresses that a call reads or writes besides its arrays.

    Attributes:
        tiles: a tile configuration; 0 where tiles are not used.
        room: `room_bytes` for what comes between, aligned to 64.
        new: [L, B * n, 3, H, d] fp32, queries, keys and values.
        states: [B * n, L + 1, D] fp32: the embeddings, then every layer's output, the last one behind the final norm.
        logits: [m, V] fp32 and room for 16 numbers more.
    """

    tiles: int
    room: int
    new: int
    states: int
    logits: int


@njit(cache=True)
def _room(start, sizes, num_rows, num_keys):
    """A `Room` from an address on, for so many queries and keys."""
    attended = sizes.heads * sizes.head_width
    return laid_out(start, num_rows, sizes.width, attended, max(sizes.inner, 2 * sizes.width, attended), num_keys)


@njit(cache=True)
def room_bytes(sizes, num_rows, num_keys):
    """How much room a call of so many queries, each of which may see so many keys, needs."""
    return _room(0, sizes, num_rows, num_keys).end


@njit(cache=True)
def _embed(sizes, factors, tables, tokens, positions, room, states):
    """Embeddings of all queries. Returns the address of the vectors that are used next."""
    width, vectors, num_queries = sizes.width, tables.vectors, tokens.shape[1]
    for row in range(tokens.shape[0]):
        for query in range(num_queries):
            token, number = np.int64(tokens[row, query]), row * num_queries + query
            place = min(np.int64(positions[row, query]) + sizes.offset, sizes.positions - 1)
            if token == sizes.pad_token:
                place = token
            own, beside = tables.tokens + 4 * width * token, tables.positions + 4 * width * place
            scale_and_add_row(own, np.float32(factors.embedding), beside, room.x + 4 * width * number, width)
    num_rows = tokens.size
    if sizes.has_embedding_norm:
        norm_rows(room.x, vectors, np.float32(factors.eps), room.x, num_rows, width)
        vectors += 8 * width
    for row in range(num_rows):
        copy_row(room.x + 4 * row * width, states + 4 * row * (sizes.layers + 1) * width, width)
    return vectors


@njit(cache=True, nogil=True)
def decoder_step(
    sizes, factors, tables, weights, tokens, positions, mask, source_mask, scored, keys_values, lists, places
):
    """Run a decoder.

    Args:
        sizes, factors, tables: the model.
        weights: int64, addresses of `PackedWeights`: per layer queries, keys and values; output; cross queries; cross
            output; both of the feed-forward; last the output projection [V, 2 D], see `packing.with_residual`.
        tokens, positions: [B, n] int32.
        mask: [B, 1, n, T + n] fp32, minus infinity where a query does not see a cached key or one of the call.
        source_mask: [B, 1, 1, S] fp32.
        scored: [m] int32, which of the B * n queries are scored, m <= B * n.
        keys_values: [L, 4] int64, addresses of cached keys and values [B, T, H, d] and the source's [B, H, S, d].
        lists: [2, max(T + n, S)] int64, room.
        places: where results go.
    """
    width, attended, num_rows = sizes.width, sizes.heads * sizes.head_width, tokens.size
    room = _room(places.room, sizes, num_rows, lists.shape[1])
    kernel = BYTE_TILES if places.tiles else WITHOUT_TILES
    if places.tiles:
        start_tiles(places.tiles)
    vectors = _embed(sizes, factors, tables, tokens, positions, room, places.states)
    for layer in range(sizes.layers):
        own = weights[MATRICES_PER_LAYER * layer :]
        qkv = places.new + 12 * layer * num_rows * attended
        vectors = run_layer(
            sizes, factors, own, vectors, tokens.shape[1], mask, source_mask, keys_values[layer], (0, 0, 0), qkv,
            lists, room, kernel,
        )  # fmt: skip
        if sizes.has_final_norm and layer == sizes.layers - 1:
            norm_rows(room.x, vectors, np.float32(factors.eps), room.x, num_rows, width)
            vectors += 8 * width
        for row in range(num_rows):
            state = places.states + 4 * (row * (sizes.layers + 1) + layer + 1) * width
            copy_row(room.x + 4 * row * width, state, width)
    for row in range(scored.size):  # twice: behind the weights there is what rounding left of them
        state = room.x + 4 * np.int64(scored[row]) * width
        copy_row(state, room.inner + 8 * row * width, width)
        copy_row(state, room.inner + 8 * row * width + 4 * width, width)
    multiply(
        weights[MATRICES_PER_LAYER * sizes.layers], vectors, room.inner, places.logits, scored.size, sizes.outputs,
        2 * width, room, kernel,
    )  # fmt: skip
    if places.tiles:
        stop_tiles()
