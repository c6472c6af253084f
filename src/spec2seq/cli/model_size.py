"""How many parameters a model folder holds, from the headers of its safetensors files: no weight is read."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING

from spec2seq.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_HEADER_BYTES = 100_000_000


def parameters_by_type(folder: Path) -> dict[str, int] | None:
    """Parameters per stored type ("F32", "BF16", ...); None for a folder without safetensors.

    Raises:
        CheckpointError: a file is no safetensors file, or is cut short.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    totals: dict[str, int] = {}
    for file in files:
        for dtype, count in _tensor_sizes(file):
            totals[dtype] = totals.get(dtype, 0) + count
    return totals


def _tensor_sizes(file: Path) -> list[tuple[str, int]]:
    """Type and number of elements of every tensor, from the file's header: its length in 8 bytes, then JSON.

    Source: the format's specification, https://github.com/huggingface/safetensors#format
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if start == b"version ":
            raise CheckpointError(f"{file} is a git-lfs pointer, not the weights: run `git lfs pull` in its folder")
        if len(start) < 8 or length > min(_MAX_HEADER_BYTES, size - 8):
            raise CheckpointError(f"{file} is not a complete safetensors file: copy or download it again")
        try:
            header = json.loads(stream.read(length))
            tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
            return [(tensor["dtype"], prod(tensor["shape"])) for tensor in tensors]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{file} has a damaged header: copy or download it again") from error
