"""One call of a decoder: queries in, scores, states and their keys and values out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from spec2seq.backends.native.attention import attend
from spec2seq.backends.native.products import GROUP, SCRATCH_BYTES, linear
from spec2seq.backends.native.rows import copy_row, gelu, gelu_new, norm_row, relu, scale_and_add_row, silu
from spec2seq.backends.native.tiles import MAX_ROWS, start_tiles, stop_tiles
from spec2seq.backends.native.vectors import LANES

MATRICES_PER_LAYER = 6
_HIDDEN = np.float32(-1e30)  # masks are 0 or minus infinity
_ONE = np.float32(1.0)


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


class _Room(NamedTuple):
    """Addresses of what comes between: rows of width D, of the heads' width, of the widest input; a row's digits, see
    `products`; room for a head's scores; and the end of all."""

    x: int
    y: int
    normed: int
    attended: int
    inner: int
    digits: int
    amends: int
    scales: int
    scratch: int
    weights: int
    end: int


@njit(cache=True)
def _aligned(address):
    return (address + 63) // 64 * 64


@njit(cache=True)
def _laid_out(start, sizes, num_rows, num_keys):
    """A `_Room` from an address on, for so many queries and keys."""
    attended_width = sizes.heads * sizes.head_width
    widest = max(sizes.inner, 2 * sizes.width, attended_width)
    x = start
    y = _aligned(x + 4 * num_rows * sizes.width)
    normed = _aligned(y + 4 * num_rows * sizes.width)
    attended = _aligned(normed + 4 * num_rows * sizes.width)
    inner = _aligned(attended + 4 * num_rows * attended_width)
    digits = _aligned(inner + 4 * num_rows * widest)
    amends = _aligned(digits + 2 * (num_rows + MAX_ROWS) * widest)  # tiles are read to their end
    scales = _aligned(amends + 4 * num_rows * (widest // GROUP))
    scratch = _aligned(scales + 4 * num_rows)
    weights = _aligned(scratch + SCRATCH_BYTES)
    end = _aligned(weights + 4 * (num_keys + LANES))
    return _Room(x, y, normed, attended, inner, digits, amends, scales, scratch, weights, end)


@njit(cache=True)
def room_bytes(sizes, num_rows, num_keys):
    """How much room a call of so many queries, each of which may see so many keys, needs."""
    return _laid_out(0, sizes, num_rows, num_keys).end


@njit(cache=True)
def _multiply(weights, bias, x, y, num_rows, num_outputs, width, room, has_tiles):
    """`products.linear` with the room for it."""
    linear(
        weights, bias, x, y, num_rows, num_outputs, width, num_outputs,
        room.digits, room.amends, room.scales, room.scratch, has_tiles,
    )  # fmt: skip


@njit(cache=True)
def _norm_rows(x, vectors, eps, y, num_rows, width):
    for row in range(num_rows):
        norm_row(x + 4 * row * width, vectors, vectors + 4 * width, eps, y + 4 * row * width, width)


@njit(cache=True)
def _activate(x, count, activation):
    if activation == 0:
        relu(x, count)
    elif activation == 1:
        silu(x, count)
    elif activation == 2:
        gelu(x, count)
    else:
        gelu_new(x, count)


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
        _norm_rows(room.x, vectors, np.float32(factors.eps), room.x, num_rows, width)
        vectors += 8 * width
    for row in range(num_rows):
        copy_row(room.x + 4 * row * width, states + 4 * row * (sizes.layers + 1) * width, width)
    return vectors


@njit(cache=True)
def _attend_to_targets(sizes, scale, mask, keys_values, qkv, lists, room):
    """Self-attention of all queries over cached keys, then those of the call: `room.attended`.

    Args:
        keys_values: addresses of the layer's cached keys and values.
        qkv: address of the queries, keys and values of the call.
        lists: [2, T + n] int64, room.
    """
    width, num_queries = sizes.heads * sizes.head_width, mask.shape[2]
    num_slots = mask.shape[3] - num_queries
    for row in range(mask.shape[0]):
        slots = 4 * row * num_slots * width
        for query in range(num_queries):
            count, number = 0, row * num_queries + query
            for slot in range(num_slots):
                if mask[row, 0, query, slot] > _HIDDEN:
                    lists[0, count] = keys_values[0] + slots + 4 * slot * width
                    lists[1, count] = keys_values[1] + slots + 4 * slot * width
                    count += 1
            for other in range(num_queries):
                if mask[row, 0, query, num_slots + other] > _HIDDEN:
                    lists[0, count] = qkv + 4 * width * (3 * (row * num_queries + other) + 1)
                    lists[1, count] = lists[0, count] + 4 * width
                    count += 1
            for head in range(sizes.heads):
                within = 4 * head * sizes.head_width
                attend(
                    qkv + 12 * width * number + within, lists[0].ctypes.data, lists[1].ctypes.data, count, within,
                    sizes.head_width, room.weights, scale, room.attended + 4 * width * number + within,
                )  # fmt: skip


@njit(cache=True)
def _attend_to_source(sizes, scale, source_mask, num_queries, keys_values, lists, room):
    """Cross-attention of all queries, which lie in `room.inner`: `room.attended`."""
    width, length = sizes.heads * sizes.head_width, source_mask.shape[3]
    for row in range(source_mask.shape[0]):
        count, start = 0, 4 * row * length * width
        for place in range(length):
            if source_mask[row, 0, 0, place] > _HIDDEN:
                lists[0, count] = keys_values[2] + start + 4 * place * sizes.head_width
                lists[1, count] = keys_values[3] + start + 4 * place * sizes.head_width
                count += 1
        for query in range(row * num_queries, (row + 1) * num_queries):
            for head in range(sizes.heads):
                within = 4 * (width * query + head * sizes.head_width)
                attend(
                    room.inner + within, lists[0].ctypes.data, lists[1].ctypes.data, count,
                    4 * head * length * sizes.head_width, sizes.head_width, room.weights, scale, room.attended + within,
                )  # fmt: skip


@njit(cache=True)
def _enter(sizes, factors, vectors, num_rows, room):
    """What a sublayer works on, and the vectors used next."""
    if not sizes.is_pre_norm:
        return room.x, vectors
    _norm_rows(room.x, vectors, np.float32(factors.eps), room.normed, num_rows, sizes.width)
    return room.normed, vectors + 8 * sizes.width


@njit(cache=True)
def _leave(sizes, factors, vectors, num_rows, room):
    """Add what a sublayer made, in `room.y`. Returns the vectors used next."""
    scale_and_add_row(room.x, _ONE, room.y, room.x, num_rows * sizes.width)
    if sizes.is_pre_norm:
        return vectors
    _norm_rows(room.x, vectors, np.float32(factors.eps), room.x, num_rows, sizes.width)
    return vectors + 8 * sizes.width


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
    room = _laid_out(places.room, sizes, num_rows, lists.shape[1])
    scale = np.float32(factors.attention)
    has_tiles = places.tiles != 0
    if has_tiles:
        start_tiles(places.tiles)
    vectors = _embed(sizes, factors, tables, tokens, positions, room, places.states)
    for layer in range(sizes.layers):
        first = MATRICES_PER_LAYER * layer
        qkv = places.new + 12 * layer * num_rows * attended
        x, vectors = _enter(sizes, factors, vectors, num_rows, room)
        _multiply(weights[first], vectors, x, qkv, num_rows, 3 * attended, width, room, has_tiles)
        vectors += 12 * attended
        _attend_to_targets(sizes, scale, mask, keys_values[layer], qkv, lists, room)
        _multiply(weights[first + 1], vectors, room.attended, room.y, num_rows, width, attended, room, has_tiles)
        vectors = _leave(sizes, factors, vectors + 4 * width, num_rows, room)

        x, vectors = _enter(sizes, factors, vectors, num_rows, room)
        _multiply(weights[first + 2], vectors, x, room.inner, num_rows, attended, width, room, has_tiles)
        vectors += 4 * attended
        _attend_to_source(sizes, scale, source_mask, tokens.shape[1], keys_values[layer], lists, room)
        _multiply(weights[first + 3], vectors, room.attended, room.y, num_rows, width, attended, room, has_tiles)
        vectors = _leave(sizes, factors, vectors + 4 * width, num_rows, room)

        x, vectors = _enter(sizes, factors, vectors, num_rows, room)
        _multiply(weights[first + 4], vectors, x, room.inner, num_rows, sizes.inner, width, room, has_tiles)
        vectors += 4 * sizes.inner
        _activate(room.inner, num_rows * sizes.inner, sizes.activation)
        _multiply(weights[first + 5], vectors, room.inner, room.y, num_rows, width, sizes.inner, room, has_tiles)
        vectors = _leave(sizes, factors, vectors + 4 * width, num_rows, room)

        if sizes.has_final_norm and layer == sizes.layers - 1:
            _norm_rows(room.x, vectors, np.float32(factors.eps), room.x, num_rows, width)
            vectors += 8 * width
        for row in range(num_rows):
            state = places.states + 4 * (row * (sizes.layers + 1) + layer + 1) * width
            copy_row(room.x + 4 * row * width, state, width)
    for row in range(scored.size):  # twice: behind the weights there is what rounding left of them
        own = room.x + 4 * np.int64(scored[row]) * width
        copy_row(own, room.inner + 8 * row * width, width)
        copy_row(own, room.inner + 8 * row * width + 4 * width, width)
    _multiply(
        weights[MATRICES_PER_LAYER * sizes.layers], vectors, room.inner, places.logits, scored.size, sizes.outputs,
        2 * width, room, has_tiles,
    )  # fmt: skip
    if has_tiles:
        stop_tiles()
