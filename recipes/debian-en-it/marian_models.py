"""The model that is trained, and its folder in Hugging Face's layout."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from train_tokenizer import EOS, TOKENIZER_FILES, copy_tokenizer
from transformers import MarianConfig, MarianMTModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from spec2seq.errors import ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LABEL_SMOOTHING = 0.1
MAX_NEW_TOKENS = 256
TRAINING_FILE = "training.json"
# The fused kernel's backward pass is slow on a CPU in bf16: with it a step takes 1.5 times as long.
ATTENTION = "eager"


class TrainedMarian(MarianMTModel):
    """A Marian model whose forward is the loss: only real target positions pay for the projection to the vocabulary."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Seq2SeqLMOutput:
        """input_ids, attention_mask [B, S], labels [B, T] with -100 behind the ends -> the mean cross-entropy in nats
        per token, label-smoothed in training."""
        config, is_real = self.config, labels >= 0
        start = torch.full_like(labels[:, :1], config.decoder_start_token_id)
        before = torch.cat([start, labels[:, :-1].masked_fill(~is_real[:, :-1], config.pad_token_id)], dim=1)
        states = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=before, use_cache=False
        ).last_hidden_state
        logits = self.lm_head(states[is_real])
        logits = logits + self.final_logits_bias[0].to(logits.dtype)
        smoothing = LABEL_SMOOTHING if self.training else 0.0
        return Seq2SeqLMOutput(loss=F.cross_entropy(logits.float(), labels[is_real], label_smoothing=smoothing))


@dataclass(frozen=True)
class ModelShape:
    """How large a model is; it has four heads, and feed-forward layers of four times its width."""

    width: int = 256
    encoder_layers: int = 6
    decoder_layers: int = 6

    def config(self, num_pieces: int) -> MarianConfig:
        """Settings of a model with this many pieces in its vocabulary, the pad token behind them."""
        return MarianConfig(
            vocab_size=num_pieces + 1,
            d_model=self.width,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=4 * self.width,
            decoder_ffn_dim=4 * self.width,
            activation_function="relu",
            dropout=0.1,
            attention_dropout=0.0,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            max_position_embeddings=512,
            pad_token_id=num_pieces,
            decoder_start_token_id=num_pieces,
            eos_token_id=EOS,
            forced_eos_token_id=EOS,
            bos_token_id=None,
        )


def new_model(shape: ModelShape, num_pieces: int) -> TrainedMarian:
    """A model with random weights."""
    model = TrainedMarian(shape.config(num_pieces))
    model.set_attn_implementation(ATTENTION)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "shared" not in name and "embed" not in name:
            nn.init.xavier_uniform_(parameter)
    embedding = model.get_input_embeddings().weight
    nn.init.normal_(embedding, 0.0, shape.width**-0.5)
    with torch.no_grad():
        embedding[num_pieces] = 0  # as in OPUS-MT's models, whose decoders start from nothing
    return keep_pad_row(model)


def load_trained(folder: Path) -> tuple[TrainedMarian, int]:
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
    model = TrainedMarian.from_pretrained(folder, dtype=torch.float32, attn_implementation=ATTENTION)
    return keep_pad_row(model), num_updates


def keep_pad_row(model: TrainedMarian) -> TrainedMarian:
    """Let the embedding of the pad token be as it is: it is what the decoder starts from, and no output."""
    pad = torch.tensor(model.config.pad_token_id)
    model.get_input_embeddings().weight.register_hook(lambda gradient: gradient.index_fill(0, pad, 0.0))
    return model


def write_model(
    folder: Path, config: MarianConfig, weights: Mapping[str, Tensor], tokenizer: Path, training: Mapping[str, object]
) -> None:
    """Write a folder that transformers and `Pipeline` load, as a whole or not at all.

    Args:
        weights: by the names of the parameters.
        tokenizer: folder to copy the tokenizer from.
        training: goes to training.json.
    """
    with torch.random.fork_rng(devices=[]):  # the training goes on with the random numbers that it would have had
        model = MarianMTModel(config)
    model.load_state_dict(dict(weights), strict=False)  # tied and static tables are no parameters of their own
    model.tie_weights()
    settings = model.generation_config
    settings.num_beams, settings.max_length = 1, MAX_NEW_TOKENS
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


def is_tokenizer(folder: Path) -> bool:
    """Whether all files of a Marian tokenizer are there."""
    return all((folder / name).is_file() for name in TOKENIZER_FILES)
