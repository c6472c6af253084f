"""A network's numbers in the order that compiled code takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spec2seq.nn.layers import DecoderLayer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

    from spec2seq.nn.sublayer import Norm, Sublayer

Array = np.ndarray[Any, Any]

_ALIGNMENT = 64


def decoder_sublayers(layers: Iterable[nn.Module]) -> Iterator[Sublayer]:
    """Attention, cross-attention and feed-forward of every `DecoderLayer`."""
    for layer in layers:
        assert isinstance(layer, DecoderLayer)  # module lists do not say what is in them
        yield from (layer.attention, layer.cross_attention, layer.ffn)


def matrices(sublayers: Iterable[Sublayer]) -> Iterator[Array]:
    """Both weights [N, K] of every sublayer."""
    for sublayer in sublayers:
        first, _, second, _ = sublayer.weights
        yield from (array(first), array(second))


def vectors(sublayers: Iterable[Sublayer]) -> Iterator[Array]:
    """Of every sublayer its norm, where that comes first, both biases, and its norm, where that comes last."""
    for sublayer in sublayers:
        if sublayer.is_pre_norm:
            yield norm_numbers(sublayer.norm)
        first, first_bias, second, second_bias = sublayer.weights
        yield from (padded_bias(first_bias, len(first)), padded_bias(second_bias, len(second)))
        if not sublayer.is_pre_norm:
            yield norm_numbers(sublayer.norm)


def norm_numbers(norm: Norm | None) -> Array:
    """Its weight [D] and bias [D]; nothing where there is none."""
    if norm is None:
        return np.zeros(0, np.float32)
    assert norm.bias is not None
    return np.concatenate([array(norm.weight), array(norm.bias)])


def padded_bias(bias: Tensor | None, count: int) -> Array:
    """[count], zeros where there is none, and behind it."""
    numbers = np.zeros(count, np.float32)
    if bias is not None:
        numbers[: bias.numel()] = array(bias).ravel()
    return numbers


def array(tensor: Tensor) -> Array:
    """fp32, contiguous; not copied where it is that already."""
    return np.ascontiguousarray(tensor.detach().float().numpy())


def aligned_bytes(count: int) -> Array:
    """Zeros at an address that is a multiple of 64."""
    memory = np.zeros(count + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + count]
