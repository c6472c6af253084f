"""Model folders: finding them, their JSON files, and what their weight files claim to be. Needs no torch."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec2seq.errors import CheckpointError, ModelNotFoundError
from spec2seq.generation_options import GenerationOptions
from spec2seq.transformers_settings import SETTING_NAMES

SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"

if TYPE_CHECKING:
    from collections.abc import Iterable

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TOKENIZER_FILES = ("*.json", "*.spm", "*.model", "vocab.txt", "merges.txt")
_FIRST_BYTES = 64


def resolve_folder(name_or_path: str | Path) -> Path:
    """The local folder of a model: the path itself if it is one, else a snapshot of that model of the Hub.

    With `HF_HUB_OFFLINE` only snapshots downloaded before are found. A folder that exists is never looked up.

    Raises:
        ModelNotFoundError: there is no such folder, and no such model on the Hub or no way to reach it.
    """
    if name_or_path == "":
        raise ModelNotFoundError("the name of the model is empty: give a folder or an id of the Hub")
    path = Path(os.path.expanduser(name_or_path))
    if path.is_dir():
        return path
    name = str(name_or_path)
    if path.exists():
        raise ModelNotFoundError(f"{name} is a file: give the folder that holds the model's config.json and weights")
    if not _HUB_ID.fullmatch(name) or name.startswith("."):
        raise ModelNotFoundError(f"there is no folder {name}: check the path")
    return _download(name)


def _download(name: str) -> Path:
    """A snapshot with settings, tokenizer and one kind of weights: safetensors where the model has them."""
    import huggingface_hub
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    is_offline = is_offline_mode()
    tried = f"{name} is no folder here"
    try:
        for weights in ("model*.safetensors*", "pytorch_model*.bin*"):
            patterns = [*_TOKENIZER_FILES, weights]
            folder = huggingface_hub.snapshot_download(name, allow_patterns=patterns, local_files_only=is_offline)
            if any(Path(folder).glob(weights)):
                break
        return Path(folder)
    except LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if is_offline else "the Hub cannot be reached"
        raise ModelNotFoundError(
            f"{tried}, was not downloaded before, and {why}: check the name or go online"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise ModelNotFoundError(
            f"{tried}, and the Hugging Face Hub has no model of that name that you may read: check the spelling"
        ) from error
    except OSError as error:
        raise ModelNotFoundError(f"{tried}, and downloading it from the Hugging Face Hub failed: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ModelNotFoundError: no such file.
        CheckpointError: it cannot be read, or holds something else.
    """
    if not path.is_file():
        raise ModelNotFoundError(f"{path.parent} has no {path.name}: it is not a complete model folder")
    refuse_impostors(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}): restore or download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path} holds a {type(value).__name__} instead of an object: restore or download it again"
        )
    return value


def read_generation_settings(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What the checkpoint says about generation: generation_config.json, or where there is none the same keys of
    config.json, as in transformers."""
    path = folder / "generation_config.json"
    if path.is_file():
        return read_json(path)
    names = SETTING_NAMES | {option.name for option in fields(GenerationOptions)}
    return {name: value for name, value in config.items() if name in names and value is not None}


def refuse_impostors(path: Path) -> None:
    """Find files that are not what their names say.

    Raises:
        CheckpointError: the file is empty, a git-lfs pointer, a web page, or a pickle named safetensors.
    """
    with path.open("rb") as file:
        start = file.read(_FIRST_BYTES)
    if not start:
        raise CheckpointError(f"{path} is empty (0 bytes): a copy or download was cut off; get it again")
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{path} is a git-lfs pointer, not the file itself: run `git lfs pull` in its folder")
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise CheckpointError(f"{path} is a web page: a download went wrong; get the file again")
    # a header of a certain length starts like a pickle, but its JSON follows
    if path.suffix == ".safetensors" and start.startswith((b"PK\x03\x04", b"\x80")) and start[8:9] != b"{":
        raise CheckpointError(f"{path} is a PyTorch pickle, not safetensors: name it {PICKLE} or convert it")


def weight_files(folder: Path) -> dict[Path, list[str] | None]:
    """The weight files of a folder, safetensors first choice; with the tensors that an index promises in each.

    Raises:
        ModelNotFoundError: there are none.
        CheckpointError: an index names a file that is missing.
    """
    for single, index in ((SAFETENSORS, SAFETENSORS_INDEX), (PICKLE, PICKLE_INDEX)):
        if (folder / single).is_file():
            return {folder / single: None}
        if (folder / index).is_file():
            return _shards(folder / index)
    raise ModelNotFoundError(
        f"{folder} has no weights: neither {SAFETENSORS} nor {PICKLE}, nor an index of their parts"
    )


def _shards(index: Path) -> dict[Path, list[str] | None]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index} has no weight_map: restore or download it again")
    shards: dict[Path, list[str] | None] = {}
    for name in sorted(set(map(str, places.values()))):
        path = index.parent / name
        if os.path.basename(name) != name or not path.is_file():
            raise CheckpointError(f"{index.parent} lacks {name}, which {index.name} names: download that part again")
        shards[path] = sorted(key for key, place in places.items() if place == name)
    return shards


def tensor_names(folder: Path) -> set[str] | None:
    """Names of the stored tensors where they can be told without loading: safetensors, or an index. Else None."""
    names: set[str] = set()
    for path, promised in weight_files(folder).items():
        if promised is not None:
            names.update(promised)
        elif path.suffix == ".safetensors":
            names.update(name for name in _safetensors_header(path) if name != "__metadata__")
        else:
            return None
    return names


def listing(names: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:4])
    return f"{shown} and {len(ordered) - 4} more" if len(ordered) > 4 else shown


def _safetensors_header(path: Path) -> dict[str, Any]:
    refuse_impostors(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= size else b""
    try:
        value = json.loads(header)
    except ValueError as error:
        raise CheckpointError(f"{path} has no readable header: it is damaged or cut off; get it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} has a header that is no object: it is damaged; get it again")
    return value
