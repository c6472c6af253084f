"""Pegasus: BART with layer norms first, one more at the end of each stack, and sinusoidal positions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spec2seq.weights import bart
from spec2seq.weights.family import Family

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.weights.settings import Settings


def read_config(settings: Settings) -> ModelConfig:
    """Pads are 0 and sentences end with 1 unless the file says otherwise."""
    return replace(
        bart.read_config(settings),
        is_pre_norm=True,
        has_final_norm=True,
        has_embedding_norm=False,
        positions="sinusoidal",
        position_offset=0,
        decoder_start_token_id=settings.decoder_start(default=0),
        pad_token_id=settings.integer("pad_token_id", 0),
        eos_token_ids=settings.ends(1),
    )


FAMILY = Family(read_config, bart.slots)
