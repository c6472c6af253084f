"""A T5 model that is trained: the second family, with relative positions and without biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import T5Config, T5ForConditionalGeneration

if TYPE_CHECKING:
    from model_shape import ModelShape


def new_t5(shape: ModelShape, num_pieces: int) -> T5ForConditionalGeneration:
    """A model with random weights. Its forward is the mean cross-entropy, without label smoothing."""
    config = T5Config(
        vocab_size=num_pieces,
        d_model=shape.width,
        d_kv=shape.width // shape.num_heads,
        d_ff=4 * shape.width,
        num_layers=shape.encoder_layers,
        num_decoder_layers=shape.decoder_layers,
        num_heads=shape.num_heads,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config)
