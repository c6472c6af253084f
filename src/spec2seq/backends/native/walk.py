"""The best tokens of a block: the best places of every slot, and a walk over those by a table of what follows what."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from spec2seq.backends.native.rows import dot_row
from spec2seq.backends.native.vectors import FLOATS, I32, I64, INTEGERS, LANES, Code, word

_MASK = ir.IntType(LANES)


@intrinsic
def _next_above(_context: Any, x: Any, start: Any, count: Any, threshold: Any) -> Any:
    """The first place from `start` on at which x [count] exceeds a threshold; `count`, or a few more, if there is none.
    Behind x there is room for 16 numbers."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, start, count, threshold = arguments
        code = Code(builder)
        limit, lanes = code.spread(threshold), ir.Constant(INTEGERS, list(range(LANES)))
        place, found = code.variable(builder.and_(start, word(-LANES))), code.variable(count)
        skipped = code.spread(builder.trunc(builder.and_(start, word(LANES - 1)), I32))
        first = code.variable(skipped)
        head, body, hit, end = (builder.append_basic_block(name) for name in ("head", "body", "hit", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        here = builder.load(place)
        builder.cbranch(builder.icmp_signed("<", here, count), body, end)
        builder.position_at_end(body)
        is_above = builder.fcmp_ordered(">", code.load(builder.add(x, builder.shl(here, word(2))), FLOATS), limit)
        is_above = builder.and_(is_above, builder.icmp_signed(">=", lanes, builder.load(first)))
        bits = builder.bitcast(is_above, _MASK)
        builder.store(code.integers(0), first)
        builder.store(builder.add(here, word(LANES)), place)
        builder.cbranch(builder.icmp_unsigned("==", bits, ir.Constant(_MASK, 0)), head, hit)
        builder.position_at_end(hit)
        lane = code.call("cttz.i16", _MASK, [bits, ir.Constant(ir.IntType(1), 1)])
        builder.store(builder.add(here, builder.zext(lane, I64)), found)
        builder.branch(end)
        builder.position_at_end(end)
        return builder.load(found)

    return types.int64(*[types.int64] * 3, types.float32), write


@njit(cache=True)
def _find_best(scores, count, values, places):
    """The best places of `count` scores at an address, best first, the earlier of equal ones: values, places [C]."""
    most = len(values)
    values[:] = -np.inf
    places[:] = 0
    place = _next_above(scores, 0, count, values[most - 1])
    while place < count:
        score, rank = _number_at(scores + 4 * place), most - 1
        while rank > 0 and values[rank - 1] < score:
            values[rank], places[rank] = values[rank - 1], places[rank - 1]
            rank -= 1
        values[rank], places[rank] = score, place
        place = _next_above(scores, place + 1, count, values[most - 1])


@intrinsic
def _number_at(_context: Any, address: Any) -> Any:
    """The fp32 number at an address."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return Code(builder).load(arguments[0], ir.FloatType())

    return types.float32(types.int64), write


@njit(cache=True)
def walk(scores, count, num_slots, before, pairs, rank, values, places, walked):
    """From slot to slot of a row, always to the candidate that is best behind the last one, the better of equal ones.

    Args:
        scores: address of [slots, count] fp32.
        before: address of the table's row [r] of the token before the block.
        pairs: address of [count, 2, r] fp32: what a token is as the one before, and as the one after.
        rank: r.
        values, places: [C] fp32 and int64, room.
        walked: [slots] int64, the places that were found.
    """
    for slot in range(num_slots):
        _find_best(scores + 4 * slot * count, count, values, places)
        best, chosen = np.float32(-np.inf), places[0]
        for number in range(len(values)):
            total = values[number] + dot_row(before, pairs + 4 * rank * (2 * places[number] + 1), rank)
            if total > best:
                best, chosen = total, places[number]
        walked[slot] = chosen
        before = pairs + 8 * rank * chosen
