"""AMX: tile registers, which multiply 16 rows by 16 outputs at once. Linux gives them out on request."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spec2seq.backends.native.vectors import I8, Code, word

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

WITHOUT_TILES, BYTE_TILES, BFLOAT16_TILES = range(3)  # what multiplies
MAX_ROWS = 16  # of activations in one product; each takes two rows of a tile, eight go into one
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64
_CONFIG_BYTES, _COLUMN_BYTES, _ROWS = 64, 16, 48  # a tile configuration, and where it says sizes
_TILE_ROWS = 16
_POINTER = I8.as_pointer()

# Tiles: sums and digits of the first eight rows and of the others, and weights
SUMS, MORE_SUMS, DIGITS, MORE_DIGITS, WEIGHTS = range(5)


@functools.cache
def may_use_tiles() -> bool:
    """Ask for the tile registers. False where the system or the processor has none."""
    try:
        return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)
    except (OSError, AttributeError):
        return False


@functools.cache
def tile_configuration(num_rows: int) -> Array:
    """What tells the processor how large the tiles are for so many rows, 1 to 16."""
    config = np.zeros(_CONFIG_BYTES, np.uint8)
    config[0] = 1  # the only palette
    half = MAX_ROWS // 2
    first, second = 2 * min(num_rows, half), 2 * max(num_rows - half, 1)
    for tile, rows in {
        SUMS: first, DIGITS: first, MORE_SUMS: second, MORE_DIGITS: second, WEIGHTS: _TILE_ROWS
    }.items():  # fmt: skip
        config[_COLUMN_BYTES + 2 * tile] = 64
        config[_ROWS + tile] = rows
    return config


class TileCode(Code):
    """Writes instructions on tiles."""

    def start(self, config: Any) -> None:
        self.call("x86.ldtilecfg", ir.VoidType(), [self.pointer(config, I8)])

    def stop(self) -> None:
        self.call("x86.tilerelease", ir.VoidType(), [])

    def load_tile(self, tile: int, address: Any, stride: Any) -> None:
        self.call("x86.tileloadd64", ir.VoidType(), [_tile(tile), self.pointer(address, I8), stride])

    def store_tile(self, tile: int, address: Any) -> None:
        """Row by row, 64 bytes each."""
        self.call("x86.tilestored64", ir.VoidType(), [_tile(tile), self.pointer(address, I8), word(64)])

    def zero(self, tile: int) -> None:
        self.call("x86.tilezero", ir.VoidType(), [_tile(tile)])

    def add_products_of_bytes(self, sums: int, signed: int, unsigned: int) -> None:
        """In int32."""
        self.call("x86.tdpbsud", ir.VoidType(), [_tile(sums), _tile(signed), _tile(unsigned)])

    def add_products_of_bfloat16(self, sums: int, one: int, other: int) -> None:
        """In fp32."""
        self.call("x86.tdpbf16ps", ir.VoidType(), [_tile(sums), _tile(one), _tile(other)])


def _tile(number: int) -> Any:
    return ir.Constant(I8, number)


@intrinsic
def start_tiles(_context: Any, config: Any) -> Any:
    """Begin to use tiles as the configuration at this address says."""

    def write(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        TileCode(builder).start(arguments[0])
        return context.get_dummy_value()

    return types.none(types.int64), write


@intrinsic
def stop_tiles(_context: Any) -> Any:
    """Give the tiles back."""

    def write(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        TileCode(builder).stop()
        return context.get_dummy_value()

    return types.none(), write
