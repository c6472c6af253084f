"""From a model folder to a network: every stored tensor is used exactly once, or left out for a stated reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spec2seq.errors import CheckpointError, OptionError
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.weights.checkpoint import listing, resolve_folder
from spec2seq.weights.embeddings import Embeddings
from spec2seq.weights.registry import read_folder
from spec2seq.weights.tensors import open_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from spec2seq.config import ModelConfig
    from spec2seq.weights.family import Slot
    from spec2seq.weights.tensors import Read

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

# Tables that are computed here; files may hold them as well, in their own precision.
_STATIC_TABLES = {
    f"{side}.embed_positions.{name}": f"{side}.embedding.positions"
    for side in ("encoder", "decoder")
    for name in ("weight", "weights")
}
_TABLE_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}
_OPTIONAL = {"output_bias": 0.0}  # what a parameter is when the file is silent


@dataclass(frozen=True)
class LoadedModel:
    """A model and where it came from.

    Attributes:
        generation: the checkpoint's generation settings, with transformers' names.
        path: its folder; of a model that somebody else loaded, its name, which may be no folder.
        name: what the caller called it.
        tensors: the stored tensors, where they are not those in the folder.
    """

    config: ModelConfig
    network: Seq2Seq
    generation: dict[str, Any]
    path: Path
    name: str
    tensors: Mapping[str, Read] | None = None


def load_model(name_or_path: str | Path, dtype: str = "float32") -> LoadedModel:
    """Load a checkpoint from a folder in Hugging Face's layout, or from the Hub.

    Args:
        name_or_path: a folder, or a model id.
        dtype: "float32", "bfloat16", "float16" or "float64", whatever the files hold.

    Raises:
        ModelNotFoundError: no such model, or no weights in the folder.
        UnsupportedModelError: another kind of model.
        CheckpointError: a file is damaged, or its tensors are not those of the model that config.json describes.
        OptionError: an unknown dtype.
    """
    if dtype not in DTYPES:
        raise OptionError(f"dtype={dtype!r} does not exist; use one of {', '.join(DTYPES)}")
    folder = resolve_folder(name_or_path)
    family, config, generation = read_folder(folder)
    stored = {name.removeprefix("model."): read for name, read in open_tensors(folder).items()}
    embeddings = Embeddings.find(stored, config, folder)
    config = replace(config, shares_embeddings=embeddings.are_shared, ties_output=embeddings.is_output_tied)
    network = Seq2Seq(config, DTYPES[dtype])
    embeddings.fill(network)
    rest = {name: read for name, read in stored.items() if name not in embeddings.names and name not in family.ignored}
    fill(network, family.slots(config), rest, folder)
    return LoadedModel(config, network, generation, folder, str(name_or_path))


def fill(network: Seq2Seq, slots: Mapping[str, Slot], stored: Mapping[str, Read], folder: Path | str) -> None:
    """Copy every stored tensor, embeddings apart, to its place.

    Args:
        network: its parameters are overwritten.
        slots: place of every tensor.
        stored: the tensors.
        folder: what messages call their home.

    Raises:
        CheckpointError: one is missing, unknown, or of the wrong shape.
    """
    parameters = dict(network.named_parameters())
    missing = [name for name in slots if name not in stored and slots[name].parameter not in _OPTIONAL]
    if missing:
        raise CheckpointError(
            f"the weights in {folder} lack {listing(missing)}: the file is incomplete or of another model"
        )
    for name in slots.keys() - stored.keys():
        parameters[slots[name].parameter].data.fill_(_OPTIONAL[slots[name].parameter])
    unused = []
    for name, read in stored.items():
        if name in slots:
            _copy(parameters, slots[name], read(), name, folder)
        elif name in _STATIC_TABLES and network.config.positions != "relative":
            _check_table(network.get_buffer(_STATIC_TABLES[name]), read(), name, folder)
        else:
            unused.append(name)
    if unused:
        raise CheckpointError(f"the weights in {folder} hold {listing(unused)}, which such a model does not have")


def part_of(parameters: Mapping[str, torch.nn.Parameter], slot: Slot) -> Tensor:
    """The memory of a slot: some rows of a parameter."""
    parameter = parameters[slot.parameter]
    rows = parameter.shape[0] // slot.parts
    return parameter.data.narrow(0, slot.part * rows, rows)


def _copy(
    parameters: Mapping[str, torch.nn.Parameter], slot: Slot, tensor: Tensor, name: str, folder: Path | str
) -> None:
    target = part_of(parameters, slot)
    if name == "final_logits_bias":
        tensor = tensor.reshape(-1)
    if tensor.shape != target.shape:
        raise CheckpointError(
            f"{name} in {folder} has shape {list(tensor.shape)}, but config.json asks for {list(target.shape)}: "
            "the files do not belong together"
        )
    target.copy_(tensor)


def _check_table(table: Tensor, stored: Tensor, name: str, folder: Path | str) -> None:
    rows = min(len(table), len(stored))
    tolerance = max(_TABLE_TOLERANCE[table.dtype], _TABLE_TOLERANCE.get(stored.dtype, 0.0))
    is_same_width = stored.shape[1:] == table.shape[1:]
    if not is_same_width or not torch.allclose(table[:rows].float(), stored[:rows].float(), rtol=0.0, atol=tolerance):
        raise CheckpointError(
            f"{name} in {folder} is not the table of sines and cosines that this family computes: "
            "the file is damaged or of another model"
        )
