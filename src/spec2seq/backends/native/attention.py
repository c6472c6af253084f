"""Attention of one query and one head over keys and values that lie anywhere.

Keys are taken one after the other in the order of a list of places, so that it makes no difference to a query's numbers
which of them are cached and which came with the same call.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spec2seq.backends.native.vectors import F32, FLOATS, I32, I64, INTEGERS, LANES, LOWEST, Code, word


@intrinsic
def attend(
    _context: Any,
    query: Any,
    keys: Any,
    values: Any,
    count: Any,
    offset: Any,
    width: Any,
    weights: Any,
    scale: Any,
    out: Any,
) -> Any:
    """out [d] = the values [d], each weighted by the softmax of query . key.

    Args:
        query, out: addresses of d numbers.
        keys, values: of lists of `count` addresses, to which `offset` bytes are added.
        count: at least 1.
        width: d, a multiple of 16.
        weights: of room for `count` numbers, rounded up to a multiple of 16.
        scale: factor of the scores times log2(e), fp32.
    """

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        query, keys, values, count, offset, width, weights, scale, out = arguments
        code = Code(builder)
        chunks = builder.lshr(width, word(4))
        _write_scores(code, (query, keys, offset, weights), count, chunks, scale)
        blocks = builder.lshr(builder.add(count, word(LANES - 1)), word(4))
        inverse = _write_softmax(code, weights, count, blocks)
        with code.repeat(chunks) as chunk:
            within = builder.add(offset, builder.shl(chunk.index, word(6)))
            total = code.variable(code.floats(0))
            with code.repeat(count) as key:
                place = code.load(builder.add(values, builder.shl(key.index, word(3))), I64, align=8)
                weight = code.load_spread(builder.add(weights, builder.shl(key.index, word(2))), F32)
                value = code.load(builder.add(place, within), FLOATS)
                builder.store(code.fma(weight, value, builder.load(total)), total)
            result = builder.fmul(builder.load(total), inverse)
            code.store(result, builder.add(out, builder.shl(chunk.index, word(6))))
        return context.get_dummy_value()

    return types.none(*[types.int64] * 7, types.float32, types.int64), write


def _write_scores(code: Code, places: tuple[Any, Any, Any, Any], count: Any, chunks: Any, scale: Any) -> None:
    builder = code.builder
    query, keys, offset, weights = places
    with code.repeat(count) as key:
        address = code.load(builder.add(keys, builder.shl(key.index, word(3))), I64, align=8)
        score = builder.fmul(code.dot(query, builder.add(address, offset), chunks), scale)
        code.store(score, builder.add(weights, builder.shl(key.index, word(2))))


def _write_softmax(code: Code, weights: Any, count: Any, blocks: Any) -> Any:
    """Powers in place of scores, 0 behind them. Returns what they are to be multiplied with, 16 times."""
    builder = code.builder
    lanes = ir.Constant(INTEGERS, list(range(LANES)))
    top, total = code.variable(code.floats(LOWEST)), code.variable(code.floats(0))
    with code.repeat(blocks) as block:
        place = builder.add(weights, builder.shl(block.index, word(6)))
        left = builder.trunc(builder.sub(count, builder.shl(block.index, word(4))), I32)
        is_real = builder.icmp_signed("<", lanes, code.spread(left))
        scores = builder.select(is_real, code.load(place, FLOATS), code.floats(LOWEST))
        code.store(scores, place)
        builder.store(code.larger(scores, builder.load(top)), top)
    largest = code.spread(code.largest(builder.load(top)))
    with code.repeat(blocks) as block:
        place = builder.add(weights, builder.shl(block.index, word(6)))
        powers = code.power_of_two(builder.fsub(code.load(place, FLOATS), largest))
        code.store(powers, place)
        builder.store(builder.fadd(powers, builder.load(total)), total)
    return code.spread(builder.fdiv(ir.Constant(F32, 1.0), code.total(builder.load(total))))
