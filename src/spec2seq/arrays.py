"""Small arithmetic on tensors, by NumPy where they are on the host.

NumPy takes a third of torch's time for a handful of numbers, and less yet behind the call of an engine, whose work has
driven torch's code out of the processor's caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor


def numbers(tensor: Tensor) -> Any:
    """Something to calculate with, in the same memory: an array on the host, elsewhere the tensor itself."""
    return tensor.numpy() if tensor.is_cpu else tensor


def as_tensor(result: Any) -> Tensor:
    """What was calculated with `numbers`, as a tensor again."""
    return torch.from_numpy(result) if isinstance(result, np.ndarray) else result


def picked(values: Any, places: Any) -> Any:
    """values[b, places[b]] of every row: `numbers` [B, T] and [B] -> [B]."""
    if isinstance(values, np.ndarray):
        return values[np.arange(len(places)), places]
    return values.gather(1, places[:, None])[:, 0]


def joined(*parts: Any) -> Any:
    """`numbers` [B, T] and [B, T'] side by side."""
    return np.concatenate(parts, axis=1) if isinstance(parts[0], np.ndarray) else torch.cat(parts, dim=1)
