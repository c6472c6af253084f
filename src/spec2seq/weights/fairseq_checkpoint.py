"""fairseq's `.pt` files, read without fairseq and without running anything from the pickle."""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.serialization import safe_globals

from spec2seq.errors import CheckpointError, ModelNotFoundError
from spec2seq.weights.checkpoint import refuse_impostors

if TYPE_CHECKING:
    from pathlib import Path


class _Record:
    """In place of every class a checkpoint names: takes whatever the pickle gives it, and does nothing."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments


class _Container(_Record):
    """omegaconf's DictConfig and ListConfig, which hold their values in `_content`."""


class _Value(_Record):
    """omegaconf's AnyNode, which holds its value in `_val`."""


class _Namespace(_Record):
    """argparse.Namespace, whose attributes are the values."""


def _mapping(*arguments: object) -> dict[object, object]:
    """collections.defaultdict, without the default."""
    return {}


# All that fairseq of the paper's release pickles besides tensors and plain values. Nothing else is let through.
_STAND_INS: dict[str, Callable[..., object]] = {
    "argparse.Namespace": _Namespace,
    "builtins.dict": _Record,
    "builtins.int": _Record,
    "builtins.list": _Record,
    "collections.defaultdict": _mapping,
    "omegaconf.base.ContainerMetadata": _Record,
    "omegaconf.base.Metadata": _Record,
    "omegaconf.dictconfig.DictConfig": _Container,
    "omegaconf.listconfig.ListConfig": _Container,
    "omegaconf.nodes.AnyNode": _Value,
    "typing.Any": _Record,
}


_REFUSED = re.compile(r"GLOBAL ([\w.]+\w)")  # in torch's messages
# what torch raises over bytes that are no pickle, or half of one
_DAMAGE = (
    AssertionError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)


@dataclass(frozen=True)
class FairseqCheckpoint:
    """What is read of a checkpoint: the settings of its model by fairseq's names, and its weights."""

    path: Path
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def read_checkpoint(path: Path) -> FairseqCheckpoint:
    """Read a checkpoint, averaged or not.

    Raises:
        ModelNotFoundError: no such file.
        CheckpointError: it is damaged, holds objects that could run code, or is no fairseq checkpoint of a model.
    """
    if not path.is_file():
        raise ModelNotFoundError(f"there is no file {path}: give the .pt file of a fairseq checkpoint")
    refuse_impostors(path)
    content = _unpickled(path)
    weights = content.get("model") if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise CheckpointError(f"{path} holds no `model` with weights: it is not a fairseq checkpoint")
    try:
        settings = _settings(content, path)
    except RecursionError as error:
        raise CheckpointError(f"{path} has settings that hold themselves: it is damaged; get it again") from error
    return FairseqCheckpoint(path, settings, {str(name): value for name, value in weights.items()})


def _unpickled(path: Path) -> Any:
    try:
        with safe_globals([(stand_in, name) for name, stand_in in _STAND_INS.items()]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise _refusal(path, error) from error
    except _DAMAGE as error:
        reason = str(error).split(". ")[0] if isinstance(error, RuntimeError) else f"not a pickle: {error!r}"
        raise CheckpointError(f"{path} is damaged or cut off ({reason}): download or copy it again") from error


def _refusal(path: Path, error: Exception) -> CheckpointError:
    """What to say when torch did not load a file, out of its long message."""
    found = _REFUSED.search(str(error))
    if found is None:
        return CheckpointError(f"{path} is damaged or cut off (no pickle of weights): download or copy it again")
    return CheckpointError(
        f"{path} holds {found.group(1)}, which is neither weights nor settings and could run code: nothing was loaded; "
        "use a checkpoint as fairseq writes it"
    )


def _settings(content: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The model's settings: `cfg.model` as fairseq writes it today, `args` as it did before."""
    config = _plain(content.get("cfg"))
    settings = config.get("model") if isinstance(config, dict) else _plain(content.get("args"))
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} does not say what model it holds: neither `cfg.model` nor `args` is there")
    return {**settings, "block_size": _block_size(config, settings)}


def _block_size(config: object, settings: Mapping[str, Any]) -> object:
    """A setting of the training task, which the model's settings hold as well or not."""
    task = config.get("task") if isinstance(config, dict) else None
    return settings.get("block_size", task.get("block_size") if isinstance(task, dict) else None)


def _plain(value: object) -> Any:
    """Stand-ins, through and through, as the dicts, lists and values that they stand for."""
    if isinstance(value, _Container | _Value):
        name = "_content" if isinstance(value, _Container) else "_val"
        return _plain(vars(value).get(name))
    if isinstance(value, _Namespace):
        return _plain({name: item for name, item in vars(value).items() if name != "arguments"})
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
