"""Text in, text out: loading, tokenizing, batching and decoding put together."""

from spec2seq.pipelines.pipeline import Pipeline
from spec2seq.pipelines.results import Alternative, GenerationResult

__all__ = ["Alternative", "GenerationResult", "Pipeline"]
