"""What is done to a row of numbers: layer norm, activations, sums, copies. Addresses, and widths that are multiples of
16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spec2seq.backends.native.vectors import F32, FLOATS, Code, word

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.config import Activation

_SQRT_HALF, _TANH_RATE, _TANH_CUBE = 0.7071067811865476, 1.5957691216057308, 0.044715


@intrinsic
def copy_row(_context: Any, x: Any, y: Any, width: Any) -> Any:
    """y = x."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, y, width = arguments
        code = Code(builder)
        with code.repeat(builder.lshr(width, word(4))) as chunk:
            step = builder.shl(chunk.index, word(6))
            code.store(code.load(builder.add(x, step), FLOATS), builder.add(y, step))
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3), write


@intrinsic
def scale_and_add_row(_context: Any, x: Any, factor: Any, other: Any, y: Any, width: Any) -> Any:
    """y = factor x + other; factor in fp32."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, factor, other, y, width = arguments
        code = Code(builder)
        everywhere = code.spread(factor)
        with code.repeat(builder.lshr(width, word(4))) as chunk:
            step = builder.shl(chunk.index, word(6))
            own, added = (code.load(builder.add(place, step), FLOATS) for place in (x, other))
            code.store(code.fma(own, everywhere, added), builder.add(y, step))
        return context.get_dummy_value()

    return types.none(types.int64, types.float32, *[types.int64] * 3), write


@intrinsic
def dot_row(_context: Any, x: Any, y: Any, width: Any) -> Any:
    """x . y in fp32."""

    def write(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, y, width = arguments
        return Code(builder).dot(x, y, builder.lshr(width, word(4)))

    return types.float32(*[types.int64] * 3), write


@intrinsic
def norm_row(_context: Any, x: Any, weight: Any, bias: Any, eps: Any, y: Any, width: Any) -> Any:
    """y = layer norm of x; y may be x. eps in fp32."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        x, weight, bias, eps, y, width = arguments
        code = Code(builder)
        chunks = builder.lshr(width, word(4))
        share = builder.fdiv(ir.Constant(F32, 1.0), builder.sitofp(width, F32))
        total, squares = code.variable(code.floats(0)), code.variable(code.floats(0))
        with code.repeat(chunks) as chunk:
            own = code.load(builder.add(x, builder.shl(chunk.index, word(6))), FLOATS)
            builder.store(builder.fadd(builder.load(total), own), total)
        mean = code.spread(builder.fmul(code.total(builder.load(total)), share))
        with code.repeat(chunks) as chunk:
            step = builder.shl(chunk.index, word(6))
            rest = builder.fsub(code.load(builder.add(x, step), FLOATS), mean)
            builder.store(code.fma(rest, rest, builder.load(squares)), squares)
        variance = code.spread(builder.fmul(code.total(builder.load(squares)), share))
        root = code.apply("sqrt", builder.fadd(variance, code.spread(eps)))
        inverse = builder.fdiv(code.floats(1), root)
        with code.repeat(chunks) as chunk:
            step = builder.shl(chunk.index, word(6))
            own, factor, added = (code.load(builder.add(place, step), FLOATS) for place in (x, weight, bias))
            rest = builder.fmul(builder.fsub(own, mean), inverse)
            code.store(code.fma(rest, factor, added), builder.add(y, step))
        return context.get_dummy_value()

    return types.none(*[types.int64] * 3, types.float32, *[types.int64] * 2), write


def _relu(code: Code, x: Any) -> Any:
    return code.larger(x, code.floats(0))


def _silu(code: Code, x: Any) -> Any:
    return code.builder.fmul(x, code.logistic(x))


def _gelu(code: Code, x: Any) -> Any:
    builder = code.builder
    below = code.error_function(builder.fmul(x, code.floats(_SQRT_HALF)))
    return builder.fmul(builder.fmul(x, code.floats(0.5)), builder.fadd(code.floats(1), below))


def _gelu_new(code: Code, x: Any) -> Any:
    builder = code.builder
    cube = builder.fmul(builder.fmul(builder.fmul(x, x), x), code.floats(_TANH_CUBE))
    return builder.fmul(x, code.logistic(builder.fmul(builder.fadd(x, cube), code.floats(_TANH_RATE))))


def _activation(function: Callable[[Code, Any], Any]) -> Callable[..., Any]:
    """x = f(x), of an address and a width."""

    @intrinsic
    def activate(_context: Any, x: Any, width: Any) -> Any:
        def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            x, width = arguments
            code = Code(builder)
            with code.repeat(builder.lshr(width, word(4))) as chunk:
                place = builder.add(x, builder.shl(chunk.index, word(6)))
                code.store(function(code, code.load(place, FLOATS)), place)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), write

    return activate


relu, silu, gelu, gelu_new = map(_activation, (_relu, _silu, _gelu, _gelu_new))
ACTIVATIONS: tuple[Activation, ...] = ("relu", "silu", "gelu", "gelu_new")
"""What a decoder's feed-forward layers may compute, by the numbers that `decoder_step` knows them by."""
