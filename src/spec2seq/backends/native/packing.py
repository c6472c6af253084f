"""Weights as `products` reads them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spec2seq.backends.native.products import GROUP
from spec2seq.backends.native.vectors import LANES

if TYPE_CHECKING:
    from collections.abc import Sequence

Array = np.ndarray[Any, Any]

_HUGE_PAGE = 2 * 2**20  # weights are read from end to end in every step: a third faster than in pages of 4 KB
_LARGEST, _OFFSET = 127, 128


@dataclass(frozen=True)
class PackedWeights:
    """Packed weights of several layers in one stretch of memory, in the order they are used.

    Attributes:
        memory: uint8; every layer begins at a multiple of 64.
        places: int64, the address of each layer's weights.
    """

    memory: Array
    places: Array

    @classmethod
    def of(cls, layers: Sequence[Array]) -> PackedWeights:
        """From the bytes of each layer, a multiple of 64 of them."""
        memory = _huge_pages(sum(map(len, layers)) + 4 * 1024)  # prefetching looks beyond the end
        places, end = [], 0
        for layer in layers:
            memory[end : end + len(layer)] = layer
            places.append(memory.ctypes.data + end)
            end += len(layer)
        return cls(memory, np.array(places, np.int64))


def with_residual(weights: Array) -> Array:
    """[N, 2 K]: weights [N, K], and what rounding them leaves: multiplied with every input twice, 15 bits of each."""
    return np.concatenate([weights, weights - rounded(weights)], axis=1)


def padded_outputs(num_outputs: int) -> int:
    """Outputs that are computed; those beyond the layer's own are 0."""
    return -(-num_outputs // LANES) * LANES


def _in_groups(weights: Array) -> tuple[Array, Array]:
    """Whole numbers [N, K / 64, 64] from -127 to 127, and their scales [N, K / 64], in fp32."""
    grouped = weights.reshape(len(weights), -1, GROUP)
    scales = np.abs(grouped).max(2) / np.float32(_LARGEST)
    return np.rint(grouped / np.where(scales == 0, 1, scales)[..., None]), scales


def rounded(weights: Array) -> Array:
    """What is multiplied with in place of weights [N, K]."""
    numbers, scales = _in_groups(weights)
    return (numbers * scales[..., None]).reshape(weights.shape)


def packed_int8(weights: Array) -> Array:
    """Bytes of weights [N, K] in fp32, K a multiple of 64, for `products`."""
    num_outputs, width = weights.shape
    blocks, groups = padded_outputs(num_outputs) // LANES, width // GROUP
    padded = np.zeros((blocks * LANES, width), np.float32)
    padded[:num_outputs] = weights
    numbers, scales = _in_groups(padded)
    numbers, scales = numbers + _OFFSET, scales.reshape(blocks, LANES, groups)
    fours = numbers.astype(np.uint8).reshape(blocks, LANES, groups, GROUP // 4, 4).transpose(0, 2, 3, 1, 4)
    bytes_of_scales = np.ascontiguousarray(scales.transpose(0, 2, 1), np.float32).view(np.uint8)
    return np.concatenate([fours.reshape(blocks, groups, -1), bytes_of_scales], axis=2).ravel()


def _huge_pages(num_bytes: int) -> Array:
    """Zeros, in large pages where the system has such."""
    pages = mmap.mmap(-1, num_bytes + 2 * _HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE
    return memory[start : start + num_bytes]
