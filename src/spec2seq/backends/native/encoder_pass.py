"""An encoder in one call: embedded sources in, states out. Weights in bfloat16, everything else in fp32."""

from __future__ import annotations

import numpy as np
from numba import njit

from spec2seq.backends.native.layers import laid_out, multiply, norm_rows, run_encoder_layer
from spec2seq.backends.native.rows import copy_row
from spec2seq.backends.native.tiles import BFLOAT16_TILES, start_tiles, stop_tiles

MATRICES_PER_LAYER = 4


@njit(cache=True)
def encoder_room(start, sizes, num_rows, num_keys):
    """A `layers.Room` for so many rows, B * S, of which each sees up to `num_keys`."""
    attended = sizes.heads * sizes.head_width
    widest = max(sizes.inner, sizes.width, attended)
    return laid_out(start, num_rows, sizes.width, attended, widest, num_keys)


@njit(cache=True, nogil=True)
def encoder_pass(sizes, factors, weights, vectors, states, mask, qkv, lists, tiles, start):
    """Run all layers.

    Args:
        sizes, factors: as for a decoder, of the encoder.
        weights: int64, addresses of `bfloat16_products`' bytes: per layer queries, keys and values; output; both of the
            feed-forward.
        vectors: address of biases and norms in the order they are used, as in `decoder_step.Tables`.
        states: [B, S, D] fp32: embeddings, in whose place come the states of the last layer.
        mask: [B, 1, 1, S] fp32, minus infinity where padding is.
        qkv: [B * S, 3, H, d] fp32, room, and for 16 numbers more.
        lists: [2, S] int64, room.
        tiles: address of a tile configuration for 16 rows.
        start: address of `encoder_room`, aligned to 64.
    """
    num_rows, width = states.shape[0] * states.shape[1], sizes.width
    room = encoder_room(start, sizes, num_rows, lists.shape[1])
    copy_row(states.ctypes.data, room.x, num_rows * width)
    start_tiles(tiles)
    for layer in range(sizes.layers):
        own = weights[MATRICES_PER_LAYER * layer :]
        vectors = run_encoder_layer(
            sizes, factors, own, vectors, mask, qkv.ctypes.data, lists, room, BFLOAT16_TILES
        )  # fmt: skip
    stop_tiles()
    if sizes.has_final_norm:
        norm_rows(room.x, vectors, np.float32(factors.eps), room.x, num_rows, width)
    copy_row(room.x, states.ctypes.data, num_rows * width)


@njit(cache=True, nogil=True)
def project_source(sizes, weights, bias, states, num_outputs, projected, tiles, start):
    """projected [B * S, N = num_outputs] fp32, and room for 16 numbers more: a linear layer of states [B, S, D].

    weights, bias: addresses; the others as for `encoder_pass`.
    """
    num_rows, width = states.shape[0] * states.shape[1], sizes.width
    room = encoder_room(start, sizes, num_rows, 0)
    start_tiles(tiles)
    multiply(
        weights, bias, states.ctypes.data, projected.ctypes.data, num_rows, num_outputs, width, room, BFLOAT16_TILES,
    )  # fmt: skip
    stop_tiles()
