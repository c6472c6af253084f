"""The supported families, and reading a folder's settings. Needs no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec2seq.errors import UnsupportedModelError
from spec2seq.weights import bart, m2m100, marian, mbart, native, pegasus, t5
from spec2seq.weights.checkpoint import read_generation_settings, read_json, tensor_names
from spec2seq.weights.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec2seq.config import ModelConfig
    from spec2seq.weights.family import Family

FAMILIES: dict[str, Family] = {
    "bart": bart.FAMILY,
    "m2m_100": m2m100.FAMILY,
    "marian": marian.FAMILY,
    "mbart": mbart.FAMILY,
    "mt5": t5.FAMILY,
    "pegasus": pegasus.FAMILY,
    "t5": t5.FAMILY,
    native.MODEL_TYPE: native.FAMILY,
}

DRAFTER_TYPE = "spec2seq-drafter"

# Of the supported families, but with another head or only half of the network.
_OTHER_ARCHITECTURES = (
    "EncoderModel",
    "ForCausalLM",
    "ForQuestionAnswering",
    "ForSequenceClassification",
    "ForTokenClassification",
)


def read_folder(folder: Path) -> tuple[Family, ModelConfig, dict[str, Any]]:
    """Family, configuration and generation settings of a model folder, as its JSON files give them.

    Raises:
        ModelNotFoundError: no config.json.
        UnsupportedModelError: another family or kind of model.
        CheckpointError: a damaged file.
    """
    config = read_json(folder / "config.json")
    _family(folder, config)
    generation = read_generation_settings(folder, config)
    return *read_settings(folder, config, generation), generation


def read_settings(
    name: Path | str, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> tuple[Family, ModelConfig]:
    """Family and configuration of a model.

    Args:
        name: what messages call it.
        config, generation: its config.json and generation settings.

    Raises:
        UnsupportedModelError: another family or kind of model.
        CheckpointError: a setting of the wrong type.
    """
    family = _family(name, config)
    return family, family.read_config(Settings(config, generation))


def read_model_config(path: Path | str) -> tuple[ModelConfig, dict[str, Any]]:
    """Configuration and generation settings of a model folder, without loading its weights.

    `ties_output` is what the names of the stored tensors say, where they can be told without loading.

    Raises:
        As `read_folder`; ModelNotFoundError also where there are no weights.
    """
    _, config, generation = read_folder(Path(path))
    names = tensor_names(Path(path))
    if names is not None:
        config = replace(config, ties_output="lm_head.weight" not in names)
    return config, generation


def _family(folder: Path | str, config: Mapping[str, Any]) -> Family:
    kind = config.get("model_type")
    if kind == DRAFTER_TYPE:
        raise UnsupportedModelError(
            f"{folder} is a drafter, not a model of its own; give it as drafter to the model it was made for"
        )
    if kind not in FAMILIES:
        raise UnsupportedModelError(
            f"{folder} is a model of type {kind!r}, which is not supported; supported: {', '.join(FAMILIES)} "
            "(NLLB is m2m_100, Flan-T5 is t5)"
        )
    for name in config.get("architectures") or []:
        if str(name).endswith(_OTHER_ARCHITECTURES):
            raise UnsupportedModelError(
                f"{folder} is a {name}, not an encoder-decoder that generates text; "
                "use a translation or summarization model"
            )
    return FAMILIES[kind]
