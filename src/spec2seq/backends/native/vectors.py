"""Building blocks of vector code: 16 numbers of 32 bits at once, in LLVM's language, for functions that numba compiles.

numba's own loops come out several times slower here: they use half of a register and reload what could stay in one.
Addresses are int64 throughout; nobody checks bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

if TYPE_CHECKING:
    from collections.abc import Sequence

LANES = 16
I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
FLOATS, INTEGERS, BYTES = (ir.VectorType(kind, LANES) for kind in (F32, I32, I8))
LOWEST = -3e38  # for scores that are out of the race; an infinity would make NaN of a difference
LOG2_E = 1.4426950408889634

# Taylor coefficients of 2 ** x around 0, highest first: relative error below 1e-7 for |x| <= 1/2
_POWERS = (
    *(1.5403530393381609e-4, 1.3333558146428443e-3, 9.6181291076284772e-3, 5.5504108664821580e-2),
    *(2.4022650695910071e-1, 6.9314718055994531e-1, 1.0),
)
# Abramowitz and Stegun 7.1.26: the error function with an error below 1.5e-7
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
_ERF_RATE = 0.3275911
_PREFETCH_BYTES = 2048  # ahead of what is read


class Code:
    """Writes instructions at a place in a function."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def floats(self, value: float) -> Any:
        """16 times the same constant, rounded to fp32."""
        return ir.Constant(FLOATS, [float(np.float32(value))] * LANES)

    def integers(self, value: int) -> Any:
        return ir.Constant(INTEGERS, [value] * LANES)

    def offset(self, address: Any, num_bytes: int) -> Any:
        """An address that many bytes further on."""
        return self.builder.add(address, word(num_bytes)) if num_bytes else address

    def pointer(self, address: Any, kind: Any) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, address: Any, kind: Any, align: int = 4) -> Any:
        value = self.builder.load(self.pointer(address, kind))
        value.align = align
        return value

    def store(self, value: Any, address: Any, align: int = 4) -> None:
        self.builder.store(value, self.pointer(address, value.type)).align = align

    def call(self, name: str, result: Any, arguments: Sequence[Any], fast: Sequence[str] = ()) -> Any:
        """Call one of LLVM's intrinsics, by its name without "llvm."."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}")
        return self.builder.call(function, list(arguments), fastmath=fast)

    def spread(self, scalar: Any) -> Any:
        """A number in all 16 places."""
        kind = ir.VectorType(scalar.type, LANES)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        everywhere = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), everywhere)

    def load_spread(self, address: Any, kind: Any) -> Any:
        """The number at an address in all 16 places."""
        return self.spread(self.load(address, kind))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, rounded once."""
        return self.call("fma.v16f32", FLOATS, [a, b, c])

    def apply(self, name: str, x: Any) -> Any:
        """One of fabs, rint, sqrt to 16 numbers."""
        return self.call(f"{name}.v16f32", FLOATS, [x])

    def larger(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def largest(self, x: Any) -> Any:
        """Of 16 numbers, none of them NaN."""
        return self.call("vector.reduce.fmax.v16f32", F32, [x], fast=("nnan",))

    def total(self, x: Any) -> Any:
        """The sum of 16 numbers, in an order that is always the same."""
        return self.call("vector.reduce.fadd.v16f32", F32, [ir.Constant(F32, 0.0), x], fast=("reassoc",))

    def total_of_integers(self, x: Any) -> Any:
        return self.call("vector.reduce.add.v16i32", I32, [x])

    def dot(self, x: Any, y: Any, chunks: Any) -> Any:
        """The product of two rows of so many times 16 numbers, at these addresses."""
        builder, total = self.builder, self.variable(self.floats(0))
        with self.repeat(chunks) as chunk:
            step = builder.shl(chunk.index, word(6))
            own, other = (self.load(builder.add(place, step), FLOATS) for place in (x, y))
            builder.store(self.fma(own, other, builder.load(total)), total)
        return self.total(builder.load(total))

    def prefetch(self, address: Any) -> None:
        """Let what lies a little further on come nearer."""
        ahead = self.pointer(self.offset(address, _PREFETCH_BYTES), I8)
        self.call("prefetch.p0", ir.VoidType(), [ahead, *(ir.Constant(I32, i) for i in (0, 3, 1))])

    def variable(self, value: Any) -> Any:
        """A place on the stack, which becomes a register."""
        return cgutils.alloca_once_value(self.builder, value)

    def repeat(self, count: Any) -> Any:
        """A loop; `.index` in its body goes from 0 to count - 1."""
        return cgutils.for_range(self.builder, count)

    def power_of_two(self, x: Any) -> Any:
        """2 ** x for x <= 0; what would be smaller than fp32 can say is a little above 0."""
        builder = self.builder
        x = self.larger(x, self.floats(-126.0))
        whole = self.apply("rint", x)
        rest = builder.fsub(x, whole)
        power = self.floats(_POWERS[0])
        for coefficient in _POWERS[1:]:
            power = self.fma(power, rest, self.floats(coefficient))
        exponent = builder.add(builder.fptosi(whole, INTEGERS), self.integers(127))
        return builder.fmul(power, builder.bitcast(builder.shl(exponent, self.integers(23)), FLOATS))

    def logistic(self, x: Any) -> Any:
        """1 / (1 + exp(-x))."""
        builder = self.builder
        small = self.power_of_two(builder.fmul(self.apply("fabs", x), self.floats(-LOG2_E)))
        below = builder.fdiv(small, builder.fadd(small, self.floats(1.0)))
        is_below = builder.fcmp_ordered("<", x, self.floats(0.0))
        return builder.select(is_below, below, builder.fsub(self.floats(1.0), below))

    def error_function(self, x: Any) -> Any:
        builder = self.builder
        size = self.apply("fabs", x)
        t = builder.fdiv(self.floats(1.0), self.fma(size, self.floats(_ERF_RATE), self.floats(1.0)))
        series = self.floats(_ERF[0])
        for coefficient in _ERF[1:]:
            series = self.fma(series, t, self.floats(coefficient))
        square = builder.fmul(builder.fmul(size, size), self.floats(-LOG2_E))
        rest = builder.fmul(builder.fmul(series, t), self.power_of_two(square))
        positive = builder.fsub(self.floats(1.0), rest)
        is_below = builder.fcmp_ordered("<", x, self.floats(0.0))
        return builder.select(is_below, builder.fneg(positive), positive)


def word(value: int) -> Any:
    """An int64 constant."""
    return ir.Constant(I64, value)
