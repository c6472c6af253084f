"""A Marian model that is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from train_tokenizer import EOS
from transformers import MarianConfig, MarianMTModel
from transformers.modeling_outputs import Seq2SeqLMOutput

if TYPE_CHECKING:
    from model_shape import ModelShape

LABEL_SMOOTHING = 0.1


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


def new_marian(shape: ModelShape, num_pieces: int) -> TrainedMarian:
    """A model with random weights; the pad token is behind the pieces."""
    model = TrainedMarian(_config(shape, num_pieces))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "shared" not in name and "embed" not in name:
            nn.init.xavier_uniform_(parameter)
    embedding = model.get_input_embeddings().weight
    nn.init.normal_(embedding, 0.0, shape.width**-0.5)
    with torch.no_grad():
        embedding[num_pieces] = 0  # as in OPUS-MT's models, whose decoders start from nothing
    return model


def _config(shape: ModelShape, num_pieces: int) -> MarianConfig:
    return MarianConfig(
        vocab_size=num_pieces + 1,
        d_model=shape.width,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_attention_heads=shape.num_heads,
        decoder_attention_heads=shape.num_heads,
        encoder_ffn_dim=4 * shape.width,
        decoder_ffn_dim=4 * shape.width,
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


def keep_pad_row(model: TrainedMarian) -> TrainedMarian:
    """Let the embedding of the pad token be as it is: it is what the decoder starts from, and no output."""
    pad = torch.tensor(model.config.pad_token_id)
    model.get_input_embeddings().weight.register_hook(lambda gradient: gradient.index_fill(0, pad, 0.0))
    return model
