"""M2M100 and NLLB: layer norms first, fairseq's sinusoidal positions, no output bias."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spec2seq.weights import bart
from spec2seq.weights.family import Family

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.weights.settings import Settings


def read_config(settings: Settings) -> ModelConfig:
    """The first position is the row of the table behind the pad's."""
    config = bart.read_config(settings)
    return replace(
        config,
        is_pre_norm=True,
        has_final_norm=True,
        has_embedding_norm=False,
        has_output_bias=False,
        positions="fairseq_sinusoidal",
        position_offset=config.pad_token_id + 1,
        activation=settings.activation(settings.config.get("activation_function", "relu")),
        embedding_scale=config.d_model**0.5 if settings.flag("scale_embedding", True) else 1.0,
    )


FAMILY = Family(read_config, bart.slots, bart.FAMILY.ignored)
