"""Between the host, where the loop decides, and the device, where the model is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec2seq.arrays import as_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


def on_device(array: NDArray[np.int64] | NDArray[np.bool_], device: torch.device) -> Tensor:
    """The array as a tensor on `device`; on the CPU it shares the array's memory."""
    tensor = as_tensor(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def on_host(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same tensors, all from one device, on the CPU. They are moved in one transfer, so that a GPU is waited for
    once; they travel as float64, which holds token ids, counts and fp32 scores exactly."""
    if tensors[0].is_cpu:
        return tensors
    return unpacked(packed(tensors).cpu(), tensors)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """All elements of the tensors in one row."""
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def unpacked(row: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """What `packed` made of `tensors`, with their types and shapes again, where `row` is."""
    parts = torch.split(row, [tensor.numel() for tensor in tensors])
    return [part.to(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
