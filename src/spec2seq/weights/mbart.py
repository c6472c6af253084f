"""mBART (cc25 and 50): BART with layer norms first and one more at the end of each stack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spec2seq.weights import bart
from spec2seq.weights.family import Family

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.weights.settings import Settings


def read_config(settings: Settings) -> ModelConfig:
    """mBART-cc25 has no decoder start of its own (-1): its target rows start with the language code."""
    return replace(
        bart.read_config(settings),
        is_pre_norm=True,
        has_final_norm=True,
        decoder_start_token_id=settings.decoder_start(default=None, fallback=None),
    )


FAMILY = Family(read_config, bart.slots, bart.FAMILY.ignored)
