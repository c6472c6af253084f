"""Models to begin with, and folders of trained ones in Hugging Face's layout."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import torch
from marian_models import TrainedMarian, keep_pad_row, new_marian
from t5_models import new_t5
from train_tokenizer import copy_tokenizer, tokenizer_family
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5ForConditionalGeneration

from spec2seq.errors import ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from model_shape import ModelShape
    from torch import Tensor
    from transformers import PreTrainedConfig

    TrainedModel = TrainedMarian | T5ForConditionalGeneration

MAX_NEW_TOKENS = 256
TRAINING_FILE = "training.json"
# The fused kernel's backward pass is slow on a CPU in bf16: with it a step takes 1.5 times as long.
ATTENTION = "eager"


def new_model(shape: ModelShape, tokenizer: Path) -> TrainedModel:
    """A model with random weights, of the family that the tokenizer is of.

    Raises:
        InputError: the folder holds no tokenizer.
    """
    family = tokenizer_family(tokenizer)
    num_tokens = len(AutoTokenizer.from_pretrained(tokenizer))
    return _prepared(new_marian(shape, num_tokens - 1) if family == "marian" else new_t5(shape, num_tokens))


def load_trained(folder: Path) -> tuple[TrainedModel, int]:
    """The model in a folder, in fp32, and how many updates it had.

    Raises:
        ModelNotFoundError: the folder does not say it.
    """
    try:
        num_updates = int(json.loads((folder / TRAINING_FILE).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelNotFoundError(
            f"{folder / TRAINING_FILE} does not tell how many updates the model had ({type(error).__name__}: {error}); "
            'give a folder with {"step": N} in that file'
        ) from error
    family = {"marian": TrainedMarian, "t5": T5ForConditionalGeneration}[tokenizer_family(folder)]
    return _prepared(family.from_pretrained(folder, dtype=torch.float32)), num_updates


def _prepared(model: TrainedModel) -> TrainedModel:
    model.set_attn_implementation(ATTENTION)
    return keep_pad_row(model) if isinstance(model, TrainedMarian) else model


def write_model(
    folder: Path,
    config: PreTrainedConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Path,
    training: Mapping[str, object],
) -> None:
    """Write a folder that transformers and `Pipeline` load, as a whole or not at all.

    Args:
        weights: by the names of the parameters.
        tokenizer: folder to copy the tokenizer from.
        training: goes to training.json.
    """
    with torch.random.fork_rng(devices=[]):  # the training goes on with the random numbers that it would have had
        model = AutoModelForSeq2SeqLM.from_config(config)
    model.load_state_dict(dict(weights), strict=False)  # tied and static tables are no parameters of their own
    model.tie_weights()
    settings = model.generation_config
    settings.num_beams, settings.max_length = 1, MAX_NEW_TOKENS
    if config.model_type == "marian":  # its models are published so
        settings.bad_words_ids, settings.renormalize_logits = [[config.pad_token_id]], True
    part, old = folder.with_suffix(".part"), folder.with_suffix(".old")
    for rest in (part, old):
        shutil.rmtree(rest, ignore_errors=True)
    model.save_pretrained(part)
    copy_tokenizer(tokenizer, part)
    (part / TRAINING_FILE).write_text(json.dumps(dict(training)) + "\n", encoding="utf-8")
    if folder.exists():
        os.replace(folder, old)
    os.replace(part, folder)
    shutil.rmtree(old, ignore_errors=True)
