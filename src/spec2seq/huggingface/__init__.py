"""For users of transformers: its pipelines of old, and decoding for a model that it has loaded already."""

from __future__ import annotations

from spec2seq.huggingface.custom_generation import custom_generate
from spec2seq.huggingface.tasks import TaskPipeline, pipeline

__all__ = ["TaskPipeline", "custom_generate", "pipeline"]
