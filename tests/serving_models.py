"""Pipelines for the tests of the service: a tiny Marian model, and one that breaks on a certain word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from spec2seq import Pipeline
from spec2seq.backends.torch_engine import TorchEncoderOutput, TorchVerifier
from tests.text_models import make_text_model

if TYPE_CHECKING:
    from pathlib import Path

    from spec2seq.types import SourceBatch

# Greedy search of the tiny model never ends by itself: every output has this many tokens.
GREEDY: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 16}


def make_folder(root: Path) -> Path:
    """The folder of a tiny English-Italian Marian model."""
    folder = root / "tiny-en-it"
    make_text_model("marian", folder, generation={"max_length": None, "max_new_tokens": 16, "num_beams": 1})
    return folder


class PoisonedVerifier(TorchVerifier):
    """Breaks on sources that hold `poison`: raises, or makes their rows NaN."""

    def __init__(self, healthy: TorchVerifier, poison: int, how: Literal["raises", "nan"]) -> None:
        super().__init__(healthy.network)
        self.poison = poison
        self.how = how
        self.num_calls = 0

    def encode(self, source: SourceBatch) -> TorchEncoderOutput:
        self.num_calls += 1
        is_poisoned = (source.ids == self.poison).any(dim=1)
        encoded = super().encode(source)
        if not bool(is_poisoned.any()):
            return encoded
        if self.how == "raises":
            raise RuntimeError(f"secret: {source.ids.tolist()}")
        return self.from_encoder(encoded.hidden.masked_fill(is_poisoned[:, None, None], torch.nan), encoded.lengths)


def poisoned(pipeline: Pipeline, word: str, how: Literal["raises", "nan"]) -> Pipeline:
    """A pipeline with the same model that breaks on texts with this word."""
    assert isinstance(pipeline.verifier, TorchVerifier)
    (ids,) = pipeline.tokenizer.encode([word])
    verifier = PoisonedVerifier(pipeline.verifier, ids[-2], how)
    return Pipeline(pipeline.model, verifier, pipeline.make_drafter)
