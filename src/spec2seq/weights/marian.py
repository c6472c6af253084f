"""Marian (OPUS-MT): BART without the norm after the embeddings, sinusoidal positions, perhaps two vocabularies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spec2seq.weights import bart
from spec2seq.weights.family import Family

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.weights.settings import Settings


def read_config(settings: Settings) -> ModelConfig:
    """Source and target have their own embeddings where `share_encoder_decoder_embeddings` is false."""
    config = bart.read_config(settings)
    source_vocab_size = settings.integer("vocab_size", 58101)
    is_shared = settings.flag("share_encoder_decoder_embeddings", True)
    return replace(
        config,
        source_vocab_size=source_vocab_size,
        target_vocab_size=source_vocab_size if is_shared else settings.integer("decoder_vocab_size", source_vocab_size),
        positions="sinusoidal",
        position_offset=0,
        has_embedding_norm=False,
        decoder_start_token_id=settings.decoder_start(default=58100),
        pad_token_id=settings.integer("pad_token_id", 58100),
        eos_token_ids=settings.ends(0),
        shares_vocabulary=is_shared,
        shares_embeddings=is_shared,
    )


FAMILY = Family(read_config, bart.slots)
