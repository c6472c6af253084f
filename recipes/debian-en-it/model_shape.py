"""How large a model is that is trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Layers, and how wide they are; feed-forward layers are four times as wide inside."""

    width: int = 256
    encoder_layers: int = 6
    decoder_layers: int = 6
    num_heads: int = 4
