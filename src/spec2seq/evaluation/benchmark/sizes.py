"""Sizes of models with random weights, for costs at sizes of which no trained weights are at hand. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

SyntheticName = Literal["base", "nllb-600m"]

SOURCE_LENGTH = 28
TARGET_LENGTH = 30


@dataclass(frozen=True)
class SyntheticSize:
    """An encoder-decoder of a size that people use.

    Attributes:
        family: transformers' model_type.
        vocab_size: source and target share it.
        forced_first: token that outputs begin with, such as a language code; None: none.
    """

    family: Literal["marian", "m2m_100"]
    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    ffn_dim: int
    forced_first: int | None = None


SIZES: Mapping[SyntheticName, SyntheticSize] = {
    # Transformer-base, the paper's and OPUS-MT's size
    "base": SyntheticSize("marian", 32_001, 512, 6, 8, 2048),
    # facebook/nllb-200-distilled-600M
    "nllb-600m": SyntheticSize("m2m_100", 256_206, 1024, 12, 16, 4096, forced_first=256_047),
}
