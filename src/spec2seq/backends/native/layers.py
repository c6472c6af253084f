"""What compiled decoders are made of: the room they work in, products, norms, attention, and sublayers of these.

`sizes` and `factors` are any named tuples with the attributes that are read of them. Vectors lie in the order they are
used, as `decoder_step.Tables` says; what uses some returns where the next ones are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from spec2seq.backends.native.attention import attend
from spec2seq.backends.native.bfloat16_products import MOST_ROWS, linear_in_bfloat16
from spec2seq.backends.native.products import GROUP, SCRATCH_BYTES, linear
from spec2seq.backends.native.rows import gelu, gelu_new, norm_row, relu, scale_and_add_row, silu
from spec2seq.backends.native.tiles import BFLOAT16_TILES, BYTE_TILES
from spec2seq.backends.native.vectors import LANES

MATRICES_PER_LAYER = 6
"""Queries, keys and values; output; cross queries; cross output; both of the feed-forward."""

_HIDDEN = np.float32(-1e30)  # masks are 0 or minus infinity
_ONE = np.float32(1.0)


class Room(NamedTuple):
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
def laid_out(start, num_rows, width, attended_width, widest, num_keys):
    """A `Room` from an address on, for so many rows of these widths, each of which may see so many keys."""
    x = start
    y = _aligned(x + 4 * num_rows * width)
    normed = _aligned(y + 4 * num_rows * width)
    attended = _aligned(normed + 4 * num_rows * width)
    inner = _aligned(attended + 4 * num_rows * attended_width)
    digits = _aligned(inner + 4 * num_rows * widest)
    amends = _aligned(digits + 2 * (num_rows + MOST_ROWS) * widest)  # tiles are read to their end
    scales = _aligned(amends + 4 * num_rows * (widest // GROUP))
    scratch = _aligned(scales + 4 * num_rows)
    weights = _aligned(scratch + SCRATCH_BYTES)
    end = _aligned(weights + 4 * (num_keys + LANES))
    return Room(x, y, normed, attended, inner, digits, amends, scales, scratch, weights, end)


@njit(cache=True)
def multiply(weights, bias, x, y, num_rows, num_outputs, width, room, kernel):
    """`products.linear`, or with BFLOAT16_TILES that of `bfloat16_products`, with the room for it; y may be x where it
    is not wider."""
    if kernel == BFLOAT16_TILES:
        linear_in_bfloat16(
            weights, bias, x, y, num_rows, num_outputs, width, num_outputs, room.digits, room.scratch
        )  # fmt: skip
    else:
        linear(
            weights, bias, x, y, num_rows, num_outputs, width, num_outputs,
            room.digits, room.amends, room.scales, room.scratch, kernel == BYTE_TILES,
        )  # fmt: skip


@njit(cache=True)
def norm_rows(x, vectors, eps, y, num_rows, width):
    """y = layer norm of every row of x by the weight and bias at `vectors`; y may be x."""
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
def _list_visible(mask, keys, values, step, lists, count):
    """Append the addresses of those keys and values, `step` bytes apart, that a mask [n] does not hide.

    Returns how many there are now in `lists` [2, ...].
    """
    for number in range(len(mask)):
        if mask[number] > _HIDDEN:
            lists[0, count] = keys + step * number
            lists[1, count] = values + step * number
            count += 1
    return count


@njit(cache=True)
def _attend_to_listed(sizes, scale, query, lists, count, step, weights, out):
    """Attention of all heads of a query [H, d] over the listed keys and values of its first head; those of the next are
    `step` bytes further on."""
    for head in range(sizes.heads):
        within = 4 * head * sizes.head_width
        attend(
            query + within, lists[0].ctypes.data, lists[1].ctypes.data, count, head * step, sizes.head_width, weights,
            scale, out + within,
        )  # fmt: skip


@njit(cache=True)
def _enter(sizes, factors, vectors, num_rows, room):
    """What a sublayer works on, and the vectors used next."""
    if not sizes.is_pre_norm:
        return room.x, vectors
    norm_rows(room.x, vectors, np.float32(factors.eps), room.normed, num_rows, sizes.width)
    return room.normed, vectors + 8 * sizes.width


@njit(cache=True)
def _leave(sizes, factors, vectors, num_rows, room):
    """Add what a sublayer made, in `room.y`. Returns the vectors used next."""
    scale_and_add_row(room.x, _ONE, room.y, room.x, num_rows * sizes.width)
    if sizes.is_pre_norm:
        return vectors
    norm_rows(room.x, vectors, np.float32(factors.eps), room.x, num_rows, sizes.width)
    return vectors + 8 * sizes.width


@njit(cache=True)
def _enter_attention(sizes, factors, matrix, vectors, num_rows, num_parts, y, room, kernel):
    """y [rows, parts, H, d] from `room.x`: queries, and with 3 parts keys and values. Returns the vectors used next."""
    x, vectors = _enter(sizes, factors, vectors, num_rows, room)
    outputs = num_parts * sizes.heads * sizes.head_width
    multiply(matrix, vectors, x, y, num_rows, outputs, sizes.width, room, kernel)
    return vectors + 4 * outputs


@njit(cache=True)
def _leave_attention(sizes, factors, matrix, vectors, num_rows, room, kernel):
    """Add what was found, `room.attended`, to `room.x`. Returns the vectors used next."""
    width = sizes.width
    multiply(matrix, vectors, room.attended, room.y, num_rows, width, sizes.heads * sizes.head_width, room, kernel)
    return _leave(sizes, factors, vectors + 4 * width, num_rows, room)


@njit(cache=True)
def _attend_to_targets(sizes, scale, num_queries, mask, keys_values, fresh, qkv, lists, room):
    """Attention of all queries over cached keys, fresh ones, then those of the call: `room.attended`."""
    width, num_fresh, step = 4 * sizes.heads * sizes.head_width, fresh[1], fresh[2]
    num_slots = mask.shape[3] - num_fresh - num_queries
    for row in range(mask.shape[0]):
        slots, own = row * num_slots * width, qkv + 3 * row * num_queries * width
        keys, count = fresh[0] + row * num_fresh * step, 0
        for query in range(num_queries):
            if query < mask.shape[2]:  # else it sees what the first one does
                seen = mask[row, 0, query]
                cached, others, last = seen[:num_slots], seen[num_slots:-num_queries], seen[-num_queries:]
                count = _list_visible(cached, keys_values[0] + slots, keys_values[1] + slots, width, lists, 0)
                count = _list_visible(others, keys, keys + width, step, lists, count)
                count = _list_visible(last, own + width, own + 2 * width, 3 * width, lists, count)
            out = room.attended + (row * num_queries + query) * width
            _attend_to_listed(
                sizes, scale, own + 3 * query * width, lists, count, 4 * sizes.head_width, room.weights, out
            )


@njit(cache=True)
def _attend_to_source(sizes, scale, num_queries, source_mask, keys_values, lists, room):
    """Attention of all queries, which lie in `room.inner`, over the source: `room.attended`."""
    width, length, head_width = 4 * sizes.heads * sizes.head_width, source_mask.shape[3], 4 * sizes.head_width
    for row in range(source_mask.shape[0]):
        keys, values = keys_values[2] + row * length * width, keys_values[3] + row * length * width
        count = _list_visible(source_mask[row, 0, 0], keys, values, head_width, lists, 0)
        for query in range(row * num_queries, (row + 1) * num_queries):
            own, out = room.inner + query * width, room.attended + query * width
            _attend_to_listed(sizes, scale, own, lists, count, length * head_width, room.weights, out)


@njit(cache=True)
def _feed_forward(sizes, factors, first, second, vectors, num_rows, room, kernel):
    """The last sublayer of a layer, on `room.x`. Returns the vectors used next."""
    x, vectors = _enter(sizes, factors, vectors, num_rows, room)
    multiply(first, vectors, x, room.inner, num_rows, sizes.inner, sizes.width, room, kernel)
    vectors += 4 * sizes.inner
    _activate(room.inner, num_rows * sizes.inner, sizes.activation)
    multiply(second, vectors, room.inner, room.y, num_rows, sizes.width, sizes.inner, room, kernel)
    return _leave(sizes, factors, vectors + 4 * sizes.width, num_rows, room)


@njit(cache=True)
def run_layer(
    sizes, factors, weights, vectors, num_queries, mask, source_mask, keys_values, fresh, qkv, lists, room, kernel
):
    """One decoder layer of `room.x` [B * n, D]. Returns the vectors used next.

    Args:
        weights: int64, addresses of the layer's `MATRICES_PER_LAYER`.
        num_queries: n.
        mask: [B, 1, n or 1, T + m + n] fp32, minus infinity where a query does not see a key.
        source_mask: [B, 1, 1, S] fp32.
        keys_values: [4] int64, addresses of cached keys and values [B, T, H, d] and the source's [B, H, S, d].
        fresh: address of keys that are not cached yet, how many a row has (m), and bytes from one to the next; values
            [H, d] lie behind each.
        qkv: address of queries, keys and values [B * n, 3, H, d], which are written.
        lists: [2, at least the larger of T + m + n and S] int64, room.
    """
    num_rows, scale = mask.shape[0] * num_queries, np.float32(factors.attention)
    vectors = _enter_attention(sizes, factors, weights[0], vectors, num_rows, 3, qkv, room, kernel)
    _attend_to_targets(sizes, scale, num_queries, mask, keys_values, fresh, qkv, lists, room)
    vectors = _leave_attention(sizes, factors, weights[1], vectors, num_rows, room, kernel)
    vectors = _enter_attention(sizes, factors, weights[2], vectors, num_rows, 1, room.inner, room, kernel)
    _attend_to_source(sizes, scale, num_queries, source_mask, keys_values, lists, room)
    vectors = _leave_attention(sizes, factors, weights[3], vectors, num_rows, room, kernel)
    return _feed_forward(sizes, factors, weights[4], weights[5], vectors, num_rows, room, kernel)


@njit(cache=True)
def run_encoder_layer(sizes, factors, weights, vectors, mask, qkv, lists, room, kernel):
    """One encoder layer of `room.x` [B * S, D]. Returns the vectors used next.

    Args:
        weights: [4] int64, addresses: queries, keys and values; output; both of the feed-forward.
        mask: [B, 1, 1, S] fp32, minus infinity where padding is.
        qkv, lists: room, as for `run_layer`.
    """
    num_queries = mask.shape[3]
    num_rows, scale = mask.shape[0] * num_queries, np.float32(factors.attention)
    vectors = _enter_attention(sizes, factors, weights[0], vectors, num_rows, 3, qkv, room, kernel)
    _attend_to_targets(sizes, scale, num_queries, mask, (0, 0), (0, 0, 0), qkv, lists, room)
    vectors = _leave_attention(sizes, factors, weights[1], vectors, num_rows, room, kernel)
    return _feed_forward(sizes, factors, weights[2], weights[3], vectors, num_rows, room, kernel)
