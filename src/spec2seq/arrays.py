"""Small arithmetic on tensors, by NumPy where they are on the host.

NumPy takes a third of torch's time for a handful of numbers, and less yet behind the call of an engine, whose work has
driven torch's code out of the processor's caches. For the same reason a tensor that was made of an array remembers it:
to make another array of the tensor takes longer than most of what is then done with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor


_ARRAY = "array_of_numbers"  # an attribute of tensors


def numbers(tensor: Tensor) -> Any:
    """Something to calculate with, in the same memory: an array on the host, elsewhere the tensor itself."""
    if not tensor.is_cpu:
        return tensor
    array = tensor.__dict__.get(_ARRAY)
    return tensor.numpy() if array is None else array


def as_tensor(result: Any) -> Tensor:
    """What was calculated with `numbers`, as a tensor again."""
    is_array = isinstance(result, np.ndarray)
    tensor: Tensor = torch.from_numpy(result) if is_array else result
    if is_array:
        tensor.__dict__[_ARRAY] = result  # not the other way round: an array of a tensor keeps that one alive
    return tensor


def picked(values: Any, places: Any) -> Any:
    """values[b, places[b]] of every row: `numbers` [B, T] and [B] -> [B]."""
    if isinstance(values, np.ndarray):
        return values[np.arange(len(places)), places]
    return values.gather(1, places[:, None])[:, 0]


def joined(*parts: Any) -> Any:
    """`numbers` [B, T] and [B, T'] side by side."""
    return np.concatenate(parts, axis=1) if isinstance(parts[0], np.ndarray) else torch.cat(parts, dim=1)
