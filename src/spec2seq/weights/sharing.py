"""A network over the weights of a model that is loaded already: one memory for both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spec2seq.errors import UnsupportedModelError
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.weights.checkpoint import listing
from spec2seq.weights.embeddings import Embeddings
from spec2seq.weights.loading import DTYPES, LoadedModel, fill, part_of
from spec2seq.weights.registry import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from spec2seq.weights.family import Slot
    from spec2seq.weights.tensors import Read


@dataclass(frozen=True)
class SharedModel:
    """A model whose network has its memory in common with the tensors it was made from.

    Attributes:
        loaded: the model; its `generation` is empty.
        copies: (part of our parameter, tensor) where the two differ in type and cannot be one.
    """

    loaded: LoadedModel
    copies: list[tuple[Tensor, Tensor]]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy again what had to be copied."""
        for part, tensor in self.copies:
            part.copy_(tensor)


def share_model(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], generation: Mapping[str, Any], name: str
) -> SharedModel:
    """A network that computes with the weights of a loaded model, and goes on doing so when they change in place.

    Weights that have a parameter of their own here become its memory. Those that are a part of a bigger one (queries,
    keys and values) become views of it: their `data` is exchanged, their values stay.

    Args:
        tensors: parameters and stored buffers of the model by name, the objects themselves and no copies.
        config, generation: as in config.json and generation_config.json.
        name: what messages call the model.

    Raises:
        UnsupportedModelError: another kind of model, or weights that are not simply there: quantised, on several
            devices or nowhere.
        CheckpointError: a weight is missing, unknown or of the wrong shape.
    """
    family, model_config = read_settings(name, config, generation)
    stored = {key.removeprefix("model."): tensor for key, tensor in tensors.items()}
    dtype, device = _type_and_place(stored, name)
    readers: dict[str, Read] = {key: partial(_itself, tensor) for key, tensor in stored.items()}
    embeddings = Embeddings.find(readers, model_config, name, is_live=True)
    model_config = replace(model_config, shares_embeddings=embeddings.are_shared, ties_output=embeddings.is_output_tied)
    # tensors made under inference mode could never be trained again
    with torch.inference_mode(False), torch.no_grad():
        network = Seq2Seq(model_config, dtype).to(device)
        embeddings.lend(network)
        slots = family.slots(model_config)
        rest = {key: read for key, read in readers.items() if key not in embeddings.names and key not in family.ignored}
        fill(network, slots, rest, name)
        copies = _share(network, slots, stored)
    loaded = LoadedModel(model_config, network, {}, Path(name), name, readers)
    return SharedModel(loaded, copies)


def _itself(tensor: Tensor) -> Tensor:
    return tensor.detach()


def _type_and_place(stored: Mapping[str, Tensor], name: str) -> tuple[torch.dtype, torch.device]:
    """Type and device of the model.

    Raises:
        UnsupportedModelError: there is not one of each that a network can have.
    """
    devices = {tensor.device for tensor in stored.values()}
    if len(devices) != 1 or torch.device("meta") in devices:
        found = listing(str(device) for device in devices)
        raise UnsupportedModelError(f"the weights of {name} are on {found}; load it on one device, without device_map")
    types = {tensor.dtype for key, tensor in stored.items() if "embed_tokens" in key or "shared" in key}
    if len(types) != 1 or not types <= set(DTYPES.values()):
        found = listing(str(dtype) for dtype in types) or "nothing"
        raise UnsupportedModelError(
            f"the embeddings of {name} are of type {found}; load it as one of {', '.join(DTYPES)}, not quantised"
        )
    return types.pop(), devices.pop()


def _share(network: Seq2Seq, slots: Mapping[str, Slot], stored: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Let both sides have one memory. Returns the pairs for which that is impossible."""
    parameters = dict(network.named_parameters())
    for slot in slots.values():
        if slot.parts > 1:
            # rows of a parameter are contiguous only if it is, and other code expects its weights to be
            parameters[slot.parameter].data = parameters[slot.parameter].data.contiguous()
    copies = []
    for key, tensor in stored.items():
        if key not in slots:
            continue
        parameter, part = parameters[slots[key].parameter], part_of(parameters, slots[key])
        if tensor.dtype != part.dtype:
            copies.append((part, tensor))
        elif slots[key].parts > 1:
            tensor.data = part
        else:
            parameter.data = tensor.data.view(part.shape)
    return copies
