"""Our own folder format for encoder-decoders that no Hugging Face family describes: settings one to one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from spec2seq.config import ModelConfig
from spec2seq.weights import bart
from spec2seq.weights.family import Family
from spec2seq.weights.records import record_from_json
from spec2seq.weights.saving import save_model_files

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.weights.settings import Settings

MODEL_TYPE = "spec2seq-seq2seq"


def read_config(settings: Settings) -> ModelConfig:
    """The `model` of config.json, field by field."""
    return record_from_json(ModelConfig, settings.config.get("model"), "config.json: model")


def save_seq2seq(folder: Path, network: Seq2Seq) -> None:
    """Write config.json and model.safetensors; the tensors have BART's names, in the type the network has.

    Args:
        folder: exists.
        network: with absolute positions.
    """
    settings = {"model_type": MODEL_TYPE, "model": asdict(network.config)}
    save_model_files(folder, settings, _stored_tensors(network))


def _stored_tensors(network: Seq2Seq) -> dict[str, Tensor]:
    config = network.config
    target, source = network.decoder.embedding.tokens, network.encoder.embedding.tokens
    tensors = {"shared.weight": target.data}
    if not config.shares_embeddings:
        tensors = {"encoder.embed_tokens.weight": source.data, "decoder.embed_tokens.weight": target.data}
    if not config.ties_output:
        tensors["lm_head.weight"] = network.output_weight.data
    for name, slot in bart.slots(config).items():
        parameter = network.get_parameter(slot.parameter).data
        rows = parameter.shape[0] // slot.parts
        tensors[name] = parameter.narrow(0, slot.part * rows, rows)
    return tensors


FAMILY = Family(read_config, bart.slots)
