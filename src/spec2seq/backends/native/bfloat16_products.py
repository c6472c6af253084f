"""Linear layers with bfloat16 weights on tiles (AMX): for many rows at once, as encoders have. Sums are in fp32, in an
order that is fixed: a row's numbers do not depend on the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from spec2seq.backends.native.tiles import DIGITS, MORE_DIGITS, MORE_SUMS, SUMS, WEIGHTS, TileCode
from spec2seq.backends.native.vectors import FLOATS, INTEGERS, LANES, Code, word

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

MOST_ROWS = 32  # in two tiles
STEP = 32  # inputs that a tile holds of each row
BLOCK_BYTES = 2 * STEP * LANES  # of 16 outputs and 32 inputs
SCRATCH_BYTES = 2048
_HALVES = ir.VectorType(ir.IntType(16), LANES)


def bfloat16_bits(numbers: Array) -> Array:
    """uint16, the upper halves of fp32, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def packed_bfloat16(weights: Array) -> Array:
    """Bytes of weights [N, K], K a multiple of 32: blocks of 16 outputs, in each step after step of 32 inputs, in each
    [16][16][2], outputs in the middle."""
    num_outputs, width = weights.shape
    blocks = -(-num_outputs // LANES)
    padded = np.zeros((blocks * LANES, width), np.float32)
    padded[:num_outputs] = weights
    pairs = bfloat16_bits(padded).reshape(blocks, LANES, width // STEP, STEP // 2, 2)
    return np.ascontiguousarray(pairs.transpose(0, 2, 3, 1, 4)).view(np.uint8).ravel()


@intrinsic
def round_row_to_bfloat16(_context: Any, x: Any, y: Any, width: Any) -> Any:
    """y [K] = x [K] fp32 in bfloat16, of addresses and a multiple of 16."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, y, width = arguments
        code = Code(builder)
        with code.repeat(builder.lshr(width, word(4))) as chunk:
            bits = code.load(builder.add(x, builder.shl(chunk.index, word(6))), INTEGERS)
            half = code.integers(16)
            is_odd = builder.and_(builder.lshr(bits, half), code.integers(1))
            rounded = builder.lshr(builder.add(builder.add(bits, code.integers(0x7FFF)), is_odd), half)
            code.store(builder.trunc(rounded, _HALVES), builder.add(y, builder.shl(chunk.index, word(5))), align=2)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), write


@intrinsic
def _block(
    _context: Any, w: Any, rows: Any, bias: Any, y: Any, steps: Any, width: Any, ld: Any, num_rows: Any, scratch: Any
) -> Any:
    """16 outputs of up to 32 rows [rows, K] in bfloat16, with room behind them for tiles that are not full."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        w, rows, bias, y, steps, width, ld, num_rows, scratch = arguments
        code = TileCode(builder)
        is_second = builder.icmp_signed(">", num_rows, word(MOST_ROWS // 2))
        stride = builder.shl(width, word(1))
        second = builder.add(rows, builder.mul(stride, word(MOST_ROWS // 2)))
        code.zero(SUMS)
        code.zero(MORE_SUMS)
        with code.repeat(steps) as step:
            address = builder.add(w, builder.mul(step.index, word(BLOCK_BYTES)))
            for i in range(BLOCK_BYTES // 64):
                code.prefetch(code.offset(address, 64 * i))
            within = builder.shl(step.index, word(6))
            code.load_tile(WEIGHTS, address, word(64))
            code.load_tile(DIGITS, builder.add(rows, within), stride)
            code.add_products_of_bfloat16(SUMS, DIGITS, WEIGHTS)
            with builder.if_then(is_second):
                code.load_tile(MORE_DIGITS, builder.add(second, within), stride)
                code.add_products_of_bfloat16(MORE_SUMS, MORE_DIGITS, WEIGHTS)
        code.store_tile(SUMS, scratch)
        code.store_tile(MORE_SUMS, code.offset(scratch, SCRATCH_BYTES // 2))
        added = code.load(bias, FLOATS)
        with code.repeat(num_rows) as row:
            total = code.load(builder.add(scratch, builder.shl(row.index, word(6))), FLOATS, align=64)
            place = builder.add(y, builder.shl(builder.mul(row.index, ld), word(2)))
            code.store(builder.fadd(total, added), place)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 9), write


@njit(cache=True, nogil=True)
def linear_in_bfloat16(w, b, x, y, num_rows, num_outputs, width, ld, rounded, scratch):
    """y [rows, ld] = x [rows, K] W^T + b, as `products.linear`, with tiles configured for 16 rows.

    Args:
        w: address of `packed_bfloat16`.
        rounded, scratch: of room: for bfloat16 [rows + 32, K], and of SCRATCH_BYTES, aligned to 64.
    """
    steps = width // STEP
    for row in range(num_rows):
        round_row_to_bfloat16(x + 4 * row * width, rounded + 2 * row * width, width)
    num_blocks = (num_outputs + LANES - 1) // LANES
    for turn in range(num_blocks):
        block = num_blocks - 1 if turn == 0 else turn - 1
        weights, bias, outputs = w + block * steps * BLOCK_BYTES, b + 4 * LANES * block, y + 4 * LANES * block
        for row in range(0, num_rows, MOST_ROWS):
            left = min(num_rows - row, MOST_ROWS)
            _block(weights, rounded + 2 * row * width, bias, outputs + 4 * row * ld, steps, width, ld, left, scratch)
