"""Text in, text out: loading, tokenizing, batching and decoding put together. Loads torch when `Pipeline` is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec2seq.pipelines.pipeline import Pipeline as Pipeline
    from spec2seq.pipelines.results import Alternative as Alternative
    from spec2seq.pipelines.results import GenerationResult as GenerationResult

_HOMES = {
    "Alternative": "spec2seq.pipelines.results",
    "GenerationResult": "spec2seq.pipelines.results",
    "Pipeline": "spec2seq.pipelines.pipeline",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'spec2seq.pipelines' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
