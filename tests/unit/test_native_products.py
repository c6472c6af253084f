"""The products that steps and encoders of our own are made of, beside numpy's of the same rounded numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spec2seq.backends.native import support

pytest.importorskip("numba", reason="needs pip install 'spec2seq[openvino]'")
if not support.has_processor():
    pytest.skip("needs a processor with AVX512-VNNI", allow_module_level=True)

from numba import njit

from spec2seq.backends.native.bfloat16_products import (
    MOST_ROWS,
    bfloat16_bits,
    linear_in_bfloat16,
    packed_bfloat16,
)
from spec2seq.backends.native.network_numbers import aligned_bytes
from spec2seq.backends.native.packing import PackedWeights, packed_int8, padded_outputs, rounded, with_residual
from spec2seq.backends.native.products import GROUP, LARGEST, SCRATCH_BYTES, linear
from spec2seq.backends.native.tiles import MAX_ROWS, may_use_tiles, start_tiles, stop_tiles, tile_configuration

Array = np.ndarray[Any, Any]

# rows around the sizes of tiles and of blocks without them; outputs that do not fill their last block
SHAPES = [(1, 40, 64), (5, 16, 128), (6, 33, 64), (16, 64, 256), (17, 48, 64), (33, 21, 192), (70, 80, 64)]
TOLERANCE = 2e-6  # of the sum of the products' sizes: fp32 sums, in another order


@njit
def _with_tiles(config: int, multiply: Any, arguments: Any) -> None:
    start_tiles(config)
    multiply(*arguments)
    stop_tiles()


def _operands(rows: int, outputs: int, width: int) -> tuple[Array, Array, Array]:
    generator = np.random.default_rng(rows)
    x, w = (generator.standard_normal((count, width), np.float32) for count in (rows, outputs))
    return (
        x * generator.lognormal(0, 2, (rows, 1)).astype(np.float32),
        w,
        generator.standard_normal(outputs, np.float32),
    )


def _assert_equal(found: Array, x: Array, w: Array, bias: Array) -> None:
    x, w = x.astype(np.float64), w.astype(np.float64)
    room = TOLERANCE * (np.abs(x) @ np.abs(w).T + np.abs(bias))
    assert (np.abs(found - (x @ w.T + bias)) <= room).all()


def _in_int8(x: Array, weights: Array, bias: Array, *, has_tiles: bool) -> Array:
    """`linear` of weights of any width, as many times as x is wide."""
    (rows, width), outputs = x.shape, len(weights)
    packed = PackedWeights.of([packed_int8(weights)])
    padded = np.zeros(padded_outputs(outputs), np.float32)
    padded[:outputs] = bias
    y = np.zeros(rows * outputs + 16, np.float32)
    digits = np.zeros(2 * (rows + MAX_ROWS) * width, np.int8)
    amends, scales = np.zeros(rows * width // GROUP, np.int32), np.zeros(rows, np.float32)
    scratch, config = aligned_bytes(SCRATCH_BYTES), tile_configuration(min(rows, MAX_ROWS))
    places = (array.ctypes.data for array in (digits, amends, scales, scratch))
    numbers = rows, outputs, width, outputs
    arguments = packed.places[0], padded.ctypes.data, x.ctypes.data, y.ctypes.data, *numbers, *places, has_tiles
    if has_tiles:
        _with_tiles(config.ctypes.data, linear, arguments)
    else:
        linear(*arguments)
    return y[:-16].reshape(rows, outputs)


def _digits(x: Array) -> Array:
    """Rows as the kernel rounds them: 15 bits and a scale."""
    top = np.abs(x).max(1, keepdims=True)
    return np.rint(x * (np.float32(LARGEST) / top)) * (top * np.float32(1 / LARGEST))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_tiles", [False, True])
def test_int8_products_are_those_of_the_rounded_numbers(shape: tuple[int, int, int], has_tiles: bool) -> None:
    if has_tiles and not may_use_tiles():
        pytest.skip("needs a processor with AMX")
    x, w, bias = _operands(*shape)
    _assert_equal(_in_int8(x, w, bias, has_tiles=has_tiles), _digits(x), rounded(w), bias)


def test_what_rounding_left_makes_weights_of_15_bits() -> None:
    x, w, bias = _operands(3, 40, 64)
    twice = _in_int8(np.concatenate([x, x], axis=1), with_residual(w), bias, has_tiles=False)
    error, coarse = (np.abs(found - w).max() for found in (_reassembled(w), rounded(w)))
    assert error < coarse / 200
    _assert_equal(twice, _digits(x), _reassembled(w), bias)


def _reassembled(w: Array) -> Array:
    first, second = np.split(with_residual(w), 2, axis=1)
    return rounded(first) + rounded(second)


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_products_are_those_of_the_rounded_numbers(shape: tuple[int, int, int]) -> None:
    if not support.multiplies_bfloat16() or not may_use_tiles():
        pytest.skip("needs a processor with AMX")
    x, w, bias = _operands(*shape)
    rows, outputs, width = shape
    packed = PackedWeights.of([packed_bfloat16(w)])
    padded = np.zeros(padded_outputs(outputs), np.float32)
    padded[:outputs] = bias
    y, room = np.zeros(rows * outputs + 16, np.float32), aligned_bytes(2 * (rows + MOST_ROWS) * width)
    scratch, config = aligned_bytes(SCRATCH_BYTES), tile_configuration(MAX_ROWS)
    numbers, places = (rows, outputs, width, outputs), (room.ctypes.data, scratch.ctypes.data)
    arguments = packed.places[0], padded.ctypes.data, x.ctypes.data, y.ctypes.data, *numbers, *places
    _with_tiles(config.ctypes.data, linear_in_bfloat16, arguments)
    x, w = ((bfloat16_bits(numbers).astype(np.uint32) << 16).view(np.float32) for numbers in (x, w))
    _assert_equal(y[:-16].reshape(rows, outputs), x, w, bias)


def test_bfloat16_is_torchs() -> None:
    import torch

    numbers = np.random.default_rng(0).standard_normal(10_000, np.float32)
    numbers[:4] = 1 + np.array([1, 3, 5, 7], np.float32) / 256  # halfway between two
    theirs = torch.from_numpy(numbers).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert (bfloat16_bits(numbers) == theirs).all()
