"""Stored tensors, read when asked for: safetensors or PyTorch files, in one part or several."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from spec2seq.errors import CheckpointError
from spec2seq.weights.checkpoint import listing, refuse_impostors, weight_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Read = Callable[[], Tensor]


def open_tensors(folder: Path) -> dict[str, Read]:
    """Every tensor of a folder's weight files: a name, and a function that reads it.

    Raises:
        ModelNotFoundError: no weight files.
        CheckpointError: a file is damaged, missing or not what its name says.
    """
    tensors: dict[str, Read] = {}
    for path, promised in weight_files(folder).items():
        found = _open(path)
        lost = sorted(set(promised or ()) - found.keys())
        if lost:
            raise CheckpointError(f"{path} lacks {listing(lost)}, which the index promises: download that part again")
        tensors.update(found)
    return tensors


def _open(path: Path) -> Mapping[str, Read]:
    refuse_impostors(path)
    return _open_safetensors(path) if path.suffix == ".safetensors" else _open_pickle(path)


def _open_safetensors(path: Path) -> dict[str, Read]:
    try:
        file = safe_open(path, framework="pt")
        names: list[str] = list(file.keys())  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or cut off ({error}): download or copy it again") from error
    return {name: partial(file.get_tensor, name) for name in names}


def _open_pickle(path: Path) -> dict[str, Read]:
    try:
        # old files are plain pickles, which cannot be mapped into memory
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is not a plain file of weights: it holds other Python objects, which could run code, "
            "or it is damaged; get the model's safetensors file instead"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} is damaged or cut off ({reason}): download or copy it again") from error
    if not isinstance(stored, dict) or not all(isinstance(value, Tensor) for value in stored.values()):
        raise CheckpointError(f"{path} does not hold the weights of a model: get the model's safetensors file instead")
    return {str(name): partial(_itself, value) for name, value in stored.items()}


def _itself(tensor: Tensor) -> Tensor:
    return tensor
