"""Networks from fairseq checkpoints: every tensor is used once, or left out for a stated reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec2seq.errors import CheckpointError
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.nn.spec_drafter import SpecDrafterNetwork
from spec2seq.weights import bart
from spec2seq.weights.checkpoint import listing
from spec2seq.weights.fairseq_settings import (
    POSITION_OFFSET,
    Vocabularies,
    read_drafter_config,
    read_verifier_config,
)
from spec2seq.weights.family import Slot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from spec2seq.weights.fairseq_checkpoint import FairseqCheckpoint

SOURCE, TARGET, OUTPUT = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.output_projection.weight",
)
_EMBEDDINGS = {
    SOURCE: Slot("encoder.embedding.tokens"),
    TARGET: Slot("decoder.embedding.tokens"),
    OUTPUT: Slot("output_weight"),
}
_IGNORED = {
    "encoder.version": "a marker of the file format",
    "decoder.version": "a marker of the file format",
    "encoder.embed_positions._float_tensor": "tells the type of a table that is computed",
    "decoder.embed_positions._float_tensor": "tells the type of a table that is computed",
}


def build_verifier(checkpoint: FairseqCheckpoint, vocabularies: Vocabularies) -> Seq2Seq:
    """The network of a `transformer` or BART checkpoint, in the type it is stored in.

    Raises:
        UnsupportedModelError: see `read_verifier_config`.
        CheckpointError: a tensor is missing, left over, or of a shape that the settings or the dictionaries rule out.
    """
    config = read_verifier_config(checkpoint, vocabularies)
    _check_vocabularies(checkpoint, vocabularies)
    network = Seq2Seq(config, _dtype(checkpoint))
    _fill(network, _EMBEDDINGS | bart.slots(config), checkpoint.tensors, checkpoint.path)
    return network


def build_drafter(checkpoint: FairseqCheckpoint, vocabularies: Vocabularies) -> SpecDrafterNetwork:
    """The network of a `block` checkpoint. Raises as `build_verifier`."""
    config = read_drafter_config(checkpoint, vocabularies)
    _check_vocabularies(checkpoint, vocabularies)
    network = SpecDrafterNetwork(config, _dtype(checkpoint))
    slots = _EMBEDDINGS | bart.slots(config.model) | {"decoder.copy_attn.weight": Slot("copy_weight")}
    tensors = dict(checkpoint.tensors)
    if "decoder.embed_positions.weight" in tensors:
        tensors["decoder.embed_positions.weight"] = tensors["decoder.embed_positions.weight"][POSITION_OFFSET:]
    _fill(network, slots, tensors, checkpoint.path)
    return network


def _dtype(checkpoint: FairseqCheckpoint) -> torch.dtype:
    table = checkpoint.tensors.get(SOURCE)
    return torch.float32 if table is None else table.dtype


def _check_vocabularies(checkpoint: FairseqCheckpoint, vocabularies: Vocabularies) -> None:
    for name, size in ((SOURCE, vocabularies.source_size), (TARGET, vocabularies.target_size)):
        table = checkpoint.tensors.get(name)
        if table is not None and len(table) != size:
            side = name.split(".")[0].replace("encoder", "source").replace("decoder", "target")
            raise CheckpointError(
                f"{checkpoint.path} has {len(table)} {side} embeddings, but the {side} dictionary has {size} symbols, "
                "the four special ones included: give the dictionary that this model was trained with"
            )


def _fill(network: torch.nn.Module, slots: Mapping[str, Slot], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy every tensor to its place."""
    unused = tensors.keys() - slots.keys() - _IGNORED.keys()
    if unused:
        raise CheckpointError(f"{path} holds {listing(unused)}, which such a model does not have")
    parameters = dict(network.named_parameters(remove_duplicate=False))
    filled: dict[int, str] = {}  # parameters that are tied, by identity, and where they were read first
    missing = []
    for name, slot in slots.items():
        parameter = parameters[slot.parameter]
        is_tied = slot.parts == 1 and id(parameter) in filled
        if name in tensors:
            _copy(parameter, slot, tensors[name], name, filled.get(id(parameter)) if is_tied else None, path)
            filled.setdefault(id(parameter), name)
        elif not is_tied:
            missing.append(name)
    if missing:
        raise CheckpointError(f"{path} lacks {listing(missing)}: it is incomplete or of another model")


def _copy(parameter: Tensor, slot: Slot, tensor: Tensor, name: str, tied_to: str | None, path: Path) -> None:
    rows = parameter.shape[0] // slot.parts
    place = parameter.data.narrow(0, slot.part * rows, rows)
    if tensor.shape != place.shape:
        raise CheckpointError(
            f"{name} in {path} has shape {list(tensor.shape)}, but its settings ask for {list(place.shape)}: "
            "the file is damaged or of another model"
        )
    if tied_to is not None and not torch.equal(place, tensor.to(place.dtype)):
        raise CheckpointError(f"{name} and {tied_to} in {path} differ, but its settings say that they are one")
    place.copy_(tensor)
