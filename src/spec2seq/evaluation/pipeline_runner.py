"""A pipeline with settings, as something that answers ids with ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.pipelines.pipeline import Pipeline
    from spec2seq.types import RequestStats


class PipelineRunner:
    """Runs a pipeline with the same options every time, and remembers what that cost."""

    def __init__(self, pipeline: Pipeline, arguments: GenerationArguments) -> None:
        self.pipeline = pipeline
        self.arguments = arguments
        self._stats: list[RequestStats] = []

    def run(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Outputs for a batch: what follows the decoder start token, end of sequence included."""
        results = self.pipeline.generate_ids(sources, **self.arguments)
        self._stats.extend(result.stats for result in results)
        return [result.token_ids for result in results]

    def take_stats(self) -> list[RequestStats]:
        """Statistics of every output since the last call."""
        stats, self._stats = self._stats, []
        return stats
