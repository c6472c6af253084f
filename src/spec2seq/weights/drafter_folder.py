"""Drafter folders: config.json, model.safetensors and a model card (README.md)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spec2seq.config import ModelConfig
from spec2seq.drafter_config import BlockwiseConfig, DrafterConfig, FeatureDrafterConfig, SpecDrafterConfig
from spec2seq.errors import CheckpointError, OptionError, UnsupportedModelError
from spec2seq.nn.blockwise_heads import BlockwiseHeads
from spec2seq.nn.feature_drafter import FeatureDrafterNetwork
from spec2seq.nn.spec_drafter import SpecDrafterNetwork
from spec2seq.weights.checkpoint import listing, read_json
from spec2seq.weights.fingerprints import VerifierFingerprint
from spec2seq.weights.loading import DTYPES
from spec2seq.weights.records import record_from_json
from spec2seq.weights.registry import DRAFTER_TYPE
from spec2seq.weights.saving import save_model_files
from spec2seq.weights.tensors import open_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import Tensor

DrafterNetwork = SpecDrafterNetwork | FeatureDrafterNetwork | BlockwiseHeads
CARD = "README.md"
_CHOSEN = "num_draft_tokens"


@dataclass(frozen=True)
class _Kind:
    """How config.json describes a kind of drafter, and what its network is made by.

    Attributes:
        config: its settings, a ModelConfig among them.
        model: name of that field.
        network: from settings and type.
    """

    config: type[DrafterConfig]
    model: str
    network: Callable[[Any, torch.dtype], DrafterNetwork]


_KINDS = {
    "spec": _Kind(SpecDrafterConfig, "model", SpecDrafterNetwork),
    "feature": _Kind(FeatureDrafterConfig, "verifier", FeatureDrafterNetwork),
    "blockwise": _Kind(BlockwiseConfig, "verifier", BlockwiseHeads),
}


@dataclass(frozen=True)
class LoadedDrafter:
    """A drafting network and where it came from.

    Attributes:
        network: one that computes with weights of its verifier must be attached to it before it is used.
        verifier_name: what the model it was made for was called.
        verifier: that model's fingerprints.
        path: its folder.
        num_draft_tokens: how many to draft unless a call says otherwise; None: as many as a block has.
        survival: number of slots -> the chance that a block is kept up to and with each; None if unknown.
    """

    network: DrafterNetwork
    verifier_name: str
    verifier: VerifierFingerprint
    path: Path
    num_draft_tokens: int | None = None
    survival: Mapping[int, Sequence[float]] | None = None


def is_drafter_folder(folder: Path) -> bool:
    """Whether the folder says that it holds a drafter, of whatever kind."""
    return (folder / "config.json").is_file() and read_json(folder / "config.json").get("model_type") == DRAFTER_TYPE


def save_drafter(
    folder: Path,
    network: DrafterNetwork,
    verifier_name: str,
    verifier: VerifierFingerprint,
    card: str,
    survival: Mapping[int, Sequence[float]] | None = None,
) -> None:
    """Write a drafter folder, in the type that the network has.

    Args:
        folder: made if it is not there.
        verifier_name, verifier: the model that the drafter was made for.
        card: text of the model card, Markdown.
        survival: as in `LoadedDrafter`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "model_type": DRAFTER_TYPE,
        "kind": next(name for name, kind in _KINDS.items() if isinstance(network.config, kind.config)),
        "config": asdict(network.config),
        "verifier": {"name": verifier_name, "fingerprint": asdict(verifier)},
        "survival": survival,
    }
    save_model_files(folder, settings, _stored_parts(network))
    (folder / CARD).write_text(card, encoding="utf-8")


def choose_num_draft_tokens(folder: Path, num_draft_tokens: int) -> None:
    """Write into a drafter folder how many tokens to draft unless a call says otherwise."""
    file = folder / "config.json"
    part = file.with_suffix(".part")
    settings = {**read_json(file), _CHOSEN: num_draft_tokens}
    part.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    part.replace(file)


def load_drafter(folder: Path, dtype: str = "float32") -> LoadedDrafter:
    """Read a drafter folder.

    Args:
        folder: local.
        dtype: "float32", "bfloat16", "float16" or "float64", whatever the file holds.

    Raises:
        ModelNotFoundError: a file is missing.
        UnsupportedModelError: another kind of drafter.
        CheckpointError: a file is damaged, or its tensors are not those of the network that config.json describes.
        OptionError: an unknown dtype.
    """
    if dtype not in DTYPES:
        raise OptionError(f"dtype={dtype!r} does not exist; use one of {', '.join(DTYPES)}")
    settings = read_json(folder / "config.json")
    kind = _KINDS.get(str(settings.get("kind")))
    if kind is None:
        raise UnsupportedModelError(
            f"{folder} is a drafter of kind {settings.get('kind')!r}, which is not supported; supported: "
            f"{', '.join(_KINDS)}"
        )
    network = kind.network(_read_config(folder, settings, kind), DTYPES[dtype])
    _fill(network, folder)
    verifier = settings.get("verifier")
    verifier = verifier if isinstance(verifier, dict) else {}
    where = f"{folder / 'config.json'}: verifier.fingerprint"
    fingerprint = record_from_json(VerifierFingerprint, verifier.get("fingerprint"), where)
    return LoadedDrafter(
        network,
        str(verifier.get("name")),
        fingerprint,
        folder,
        _num_draft_tokens(folder, settings),
        _read_survival(folder, settings),
    )


def _num_draft_tokens(folder: Path, settings: dict[str, Any]) -> int | None:
    chosen = settings.get(_CHOSEN)
    if chosen is not None and (not isinstance(chosen, int) or isinstance(chosen, bool) or chosen < 1):
        raise CheckpointError(
            f"{folder / 'config.json'}: {_CHOSEN} must be 1 or more, not {chosen!r}: restore the file"
        )
    return chosen


def _read_survival(folder: Path, settings: dict[str, Any]) -> Mapping[int, Sequence[float]] | None:
    values = settings.get("survival")
    if not values:
        return None
    try:
        survival = {int(num_slots): tuple(map(float, chances)) for num_slots, chances in values.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'}: survival={values!r} is no table: restore the file") from error
    if not all(chances and all(0.0 <= chance <= 1.0 for chance in chances) for chances in survival.values()):
        raise CheckpointError(f"{folder / 'config.json'}: survival={values!r} holds no chances: restore the file")
    return survival


def _read_config(folder: Path, settings: dict[str, Any], kind: _Kind) -> DrafterConfig:
    where = f"{folder / 'config.json'}: config"
    values = settings.get("config")
    if not isinstance(values, dict):
        raise CheckpointError(f"{where} must be a JSON object, not {values!r}: restore the file")
    model = record_from_json(ModelConfig, values.get(kind.model), f"{where}.{kind.model}")
    try:
        return record_from_json(kind.config, values, where, {kind.model: model})
    except OptionError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _stored_parts(network: DrafterNetwork) -> dict[str, Tensor]:
    """What a folder holds of a network: parameters, and buffers that are not computed."""
    computed = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in network.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = {name: buffer for name, buffer in network.named_buffers() if name not in computed}
    return {name: part.data for name, part in network.named_parameters()} | buffers


def _fill(network: DrafterNetwork, folder: Path) -> None:
    """Copy every stored tensor to the part of its name."""
    stored, parameters = open_tensors(folder), _stored_parts(network)
    lost, unused = parameters.keys() - stored.keys(), stored.keys() - parameters.keys()
    if lost:
        raise CheckpointError(f"the weights in {folder} lack {listing(lost)}: the file is incomplete")
    if unused:
        raise CheckpointError(f"the weights in {folder} hold {listing(unused)}, which such a drafter does not have")
    for name, parameter in parameters.items():
        tensor = stored[name]()
        if tensor.shape != parameter.shape:
            raise CheckpointError(
                f"{name} in {folder} has shape {list(tensor.shape)}, but config.json asks for "
                f"{list(parameter.shape)}: the files do not belong together"
            )
        parameter.copy_(tensor)
