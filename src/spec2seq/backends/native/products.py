"""Linear layers with int8 weights: y = x W^T + b, the same numbers for a row whatever other rows are computed with it.

Weights [N, K] are whole numbers of 8 bits with a scale per output and group of 64 inputs. Activations are rounded to 15
bits with a scale per row, and taken apart into two digits of 7 bits, x = scale (128 high + low), because processors
multiply bytes. All products and sums within a group are exact in int32, so that they do not depend on their order; the
groups' sums are added up in fp32 in an order that is fixed.

Weights lie as the processor reads them (see `packing`): blocks of 16 outputs, in each block group after group, in each
group [16][16][4] bytes, outputs in the middle, each weight + 128; behind them 16 fp32 scales. That each weight is 128
too large is made good by a number per row and group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from spec2seq.backends.native.tiles import (
    DIGITS,
    MAX_ROWS,
    MORE_DIGITS,
    MORE_SUMS,
    SUMS,
    WEIGHTS,
    TileCode,
)
from spec2seq.backends.native.vectors import BYTES, F32, FLOATS, I32, INTEGERS, LANES, Code, word

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = 64  # inputs that share a scale
BLOCK_BYTES = GROUP * LANES + 4 * LANES  # of 16 outputs and a group of inputs
LARGEST = 16256  # 127 * 128: of an activation
SCRATCH_BYTES = 3 * 1024  # for `tile_block`, aligned to 64
_DIGIT_BITS, _OFFSET = 7, 128
_MOST_ROWS = 5  # at once without tiles: more sums than registers otherwise
_UNROLL = 4


@intrinsic
def round_row(_context: Any, x: Any, digits: Any, amends: Any, scale: Any, width: Any) -> Any:
    """Take apart x [K] fp32: digits [2, K] int8, high ones first; amends [K / 64] int32, what the weights' offset
    makes of each group, negative; scale [1] fp32. All are addresses but K."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, digits, amends, scale, width = arguments
        code = Code(builder)
        groups = builder.lshr(width, word(6))
        tops = [code.variable(code.floats(1e-30)) for _ in range(4)]
        with code.repeat(groups) as group:
            for i, top in enumerate(tops):
                size = code.apply("fabs", code.load(_floats_of_group(code, x, group.index, i), FLOATS))
                builder.store(code.larger(size, builder.load(top)), top)
        first, second, third, fourth = (builder.load(top) for top in tops)
        largest = code.largest(code.larger(code.larger(first, second), code.larger(third, fourth)))
        code.store(builder.fmul(largest, ir.Constant(F32, float(np.float32(1 / LARGEST)))), scale)
        inverse = code.spread(builder.fdiv(ir.Constant(F32, float(LARGEST)), largest))
        with code.repeat(groups) as group:
            total = code.integers(0)
            for i in range(4):
                scaled = builder.fmul(code.load(_floats_of_group(code, x, group.index, i), FLOATS), inverse)
                number = builder.fptosi(code.apply("rint", scaled), INTEGERS)
                bits = code.integers(_DIGIT_BITS)
                high = builder.ashr(builder.add(number, code.integers(_OFFSET // 2)), bits)
                low = builder.sub(number, builder.shl(high, bits))
                place = code.offset(builder.add(digits, builder.shl(group.index, word(6))), LANES * i)
                code.store(builder.trunc(high, BYTES), place, align=1)
                code.store(builder.trunc(low, BYTES), builder.add(place, width), align=1)
                total = builder.add(total, number)
            amend = builder.mul(code.total_of_integers(total), ir.Constant(I32, -_OFFSET))
            code.store(amend, builder.add(amends, builder.shl(group.index, word(2))))
        return context.get_dummy_value()

    return types.none(*[types.int64] * 5), write


def _floats_of_group(code: Code, x: Any, group: Any, quarter: int) -> Any:
    return code.offset(code.builder.add(x, code.builder.shl(group, word(8))), 4 * LANES * quarter)


def _joined(code: Code, high: Any, low: Any, amend: Any) -> Any:
    """A group's sums in fp32 from those of both digits."""
    builder = code.builder
    total = builder.add(builder.shl(high, code.integers(_DIGIT_BITS)), low)
    return builder.sitofp(builder.add(total, code.load_spread(amend, I32)), FLOATS)


def _block_without_tiles(num_rows: int) -> Callable[..., Any]:
    """A function for 16 outputs of so many rows, by AVX512-VNNI. Its arguments are those of `tile_block` without the
    last two."""

    @intrinsic
    def block(
        _context: Any,
        w: Any,
        digits: Any,
        amends: Any,
        scales: Any,
        bias: Any,
        y: Any,
        groups: Any,
        width: Any,
        ld: Any,
    ) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            w, digits, amends, scales, bias, y, groups, width, ld = arguments
            code = Code(builder)
            weights = code.variable(w)
            results = [code.variable(code.floats(0)) for _ in range(num_rows)]
            sums = [code.variable(code.integers(0)) for _ in range(2 * num_rows)]
            rows = [builder.add(digits, builder.mul(width, word(i))) for i in range(2 * num_rows)]
            with code.repeat(groups) as group:
                for place in sums:
                    builder.store(code.integers(0), place)
                start = builder.shl(group.index, word(6))
                with code.repeat(word(GROUP // 4 // _UNROLL)) as step:
                    address = builder.load(weights)
                    inputs = builder.add(start, builder.mul(step.index, word(4 * _UNROLL)))
                    for i in range(_UNROLL):
                        code.prefetch(code.offset(address, 64 * i))
                        four = code.load(code.offset(address, 64 * i), INTEGERS, align=64)
                        for row, place in zip(rows, sums, strict=True):
                            own = code.load_spread(code.offset(builder.add(row, inputs), 4 * i), I32)
                            dot = code.call("x86.avx512.vpdpbusd.512", INTEGERS, [builder.load(place), four, own])
                            builder.store(dot, place)
                    builder.store(code.offset(address, 64 * _UNROLL), weights)
                address = builder.load(weights)
                code.prefetch(address)
                scale = code.load(address, FLOATS, align=64)
                builder.store(code.offset(address, 64), weights)
                for m, result in enumerate(results):
                    number = builder.add(builder.mul(groups, word(m)), group.index)
                    amend = builder.add(amends, builder.shl(number, word(2)))
                    total = _joined(code, builder.load(sums[2 * m]), builder.load(sums[2 * m + 1]), amend)
                    builder.store(code.fma(total, scale, builder.load(result)), result)
            for m, result in enumerate(results):
                _finish(code, builder.load(result), scales, bias, y, ld, word(m))
            return context.get_dummy_value()

        return types.none(*[types.int64] * 9), write

    return block


def _finish(code: Code, total: Any, scales: Any, bias: Any, y: Any, ld: Any, row: Any) -> None:
    """Scale the sums of a row, add the bias, and write them."""
    builder = code.builder
    scale = code.load_spread(builder.add(scales, builder.shl(row, word(2))), F32)
    place = builder.add(y, builder.shl(builder.mul(row, ld), word(2)))
    code.store(code.fma(total, scale, code.load(bias, FLOATS)), place)


@intrinsic
def tile_block(
    _context: Any,
    w: Any,
    digits: Any,
    amends: Any,
    scales: Any,
    bias: Any,
    y: Any,
    groups: Any,
    width: Any,
    ld: Any,
    num_rows: Any,
    scratch: Any,
) -> Any:
    """16 outputs of up to 16 rows, by AMX.

    Args:
        w: of the block.
        digits: [rows, 2, K] int8, with room behind them for tiles that are not full.
        amends: [rows, K / 64] int32.
        scales: [rows] fp32.
        bias: [16] fp32.
        y: [rows, ld] fp32, of which 16 numbers per row are written.
        groups, width, ld, num_rows: K / 64, K, and numbers from a row of y to the next.
        scratch: room.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        w, digits, amends, scales, bias, y, groups, width, ld, num_rows, scratch = arguments
        code = TileCode(builder)
        is_second = builder.icmp_signed(">", num_rows, word(MAX_ROWS // 2))
        sums = code.offset(scratch, 1024)
        with code.repeat(groups) as group:
            address = builder.add(w, builder.mul(group.index, word(BLOCK_BYTES)))
            for i in range(BLOCK_BYTES // 64):
                code.prefetch(code.offset(address, 64 * i))
            rows = builder.add(digits, builder.shl(group.index, word(6)))
            code.load_tile(WEIGHTS, address, word(64))
            code.load_tile(DIGITS, rows, width)
            code.zero(SUMS)
            code.add_products_of_bytes(SUMS, DIGITS, WEIGHTS)
            code.store_tile(SUMS, sums)
            with builder.if_then(is_second):
                code.load_tile(MORE_DIGITS, builder.add(rows, builder.mul(width, word(MAX_ROWS))), width)
                code.zero(MORE_SUMS)
                code.add_products_of_bytes(MORE_SUMS, MORE_DIGITS, WEIGHTS)
                code.store_tile(MORE_SUMS, code.offset(sums, 1024))
            scale = code.load(code.offset(address, GROUP * LANES), FLOATS, align=64)
            is_first = builder.icmp_signed("==", group.index, word(0))
            with code.repeat(num_rows) as row:
                pair = builder.add(sums, builder.shl(row.index, word(7)))
                number = builder.add(builder.mul(row.index, groups), group.index)
                amend = builder.add(amends, builder.shl(number, word(2)))
                high, low = (code.load(code.offset(pair, 64 * i), INTEGERS, align=64) for i in range(2))
                place = builder.add(scratch, builder.shl(row.index, word(6)))
                before = builder.select(is_first, code.floats(0), code.load(place, FLOATS, align=64))
                code.store(code.fma(_joined(code, high, low, amend), scale, before), place, align=64)
        with code.repeat(num_rows) as row:
            total = code.load(builder.add(scratch, builder.shl(row.index, word(6))), FLOATS, align=64)
            _finish(code, total, scales, bias, y, ld, row.index)
        return context.get_dummy_value()

    return types.none(*[types.int64] * 11), write


_one, _two, _three, _four, _five = (_block_without_tiles(number) for number in range(1, _MOST_ROWS + 1))


@njit(cache=True, nogil=True)
def linear(w, b, x, y, num_rows, num_outputs, width, ld, digits, amends, scales, scratch, has_tiles):
    """y [rows, ld] = x [rows, K] W^T + b.

    Outputs are computed 16 at a time; what exceeds `num_outputs` lands where the next row begins, and is overwritten
    there, for the last block goes first. Behind the last row of y there is room for it.

    Args:
        w, b, x, y, digits, amends, scales, scratch: addresses, as for `tile_block`.
        num_rows, num_outputs, width, ld: numbers.
        has_tiles: whether tiles are in use, configured for the smaller of `num_rows` and 16 rows.
    """
    groups = width // GROUP
    for row in range(num_rows):
        round_row(x + 4 * row * width, digits + 2 * row * width, amends + 4 * row * groups, scales + 4 * row, width)
    num_blocks = (num_outputs + LANES - 1) // LANES
    most = MAX_ROWS if has_tiles else _MOST_ROWS
    for turn in range(num_blocks):
        block = num_blocks - 1 if turn == 0 else turn - 1
        weights, bias, outputs = w + block * groups * BLOCK_BYTES, b + 4 * LANES * block, y + 4 * LANES * block
        row = 0
        while row < num_rows:
            left = min(num_rows - row, most)
            own, amend, scale = digits + 2 * row * width, amends + 4 * row * groups, scales + 4 * row
            to = outputs + 4 * row * ld
            if has_tiles:
                tile_block(weights, own, amend, scale, bias, to, groups, width, ld, left, scratch)
            elif left == 1:
                _one(weights, own, amend, scale, bias, to, groups, width, ld)
            elif left == 2:
                _two(weights, own, amend, scale, bias, to, groups, width, ld)
            elif left == 3:
                _three(weights, own, amend, scale, bias, to, groups, width, ld)
            elif left == 4:
                _four(weights, own, amend, scale, bias, to, groups, width, ld)
            else:
                _five(weights, own, amend, scale, bias, to, groups, width, ld)
            row += left
