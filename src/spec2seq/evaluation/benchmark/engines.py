"""Engines, loaded: every one decodes ids to ids by any of its methods, and says its choices along a given output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from spec2seq.evaluation.benchmark.systems import NUM_BEAMS
from spec2seq.evaluation.ctranslate2_peer import SearchSettings
from spec2seq.evaluation.teacher_forcing import forced_choices
from spec2seq.pipelines.devices import cpu_threads
from spec2seq.pipelines.piece_decoder import decoder_start
from spec2seq.pipelines.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.evaluation.benchmark.systems import Method, System
    from spec2seq.evaluation.benchmark.task import DecodingTask
    from spec2seq.evaluation.benchmark.timing import IdLists
    from spec2seq.evaluation.ctranslate2_peer import CTranslate2Peer
    from spec2seq.evaluation.peers import TransformersPeer
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.types import RequestStats

# what transformers drafts by prompt lookup, as its documentation has it
_ASSISTED_DRAFT_TOKENS = 10


class LoadedEngine(Protocol):
    """An engine with its model."""

    def run(self, method: Method, sources: IdLists) -> list[list[int]]:
        """Outputs for a batch by a method."""

    def choices(self, sources: IdLists, targets: IdLists) -> list[list[int]]:
        """The engine's best token at every place of each target, with the target's tokens before it."""

    def take_stats(self) -> list[RequestStats]:
        """Statistics of every output since the last call; empty for engines that have none."""


@dataclass(frozen=True)
class LoadedSystem:
    """A `Runner`: one method of a loaded engine."""

    system: System
    engine: LoadedEngine

    def run(self, sources: IdLists) -> list[list[int]]:
        return self.engine.run(self.system.method, sources)

    def take_stats(self) -> list[RequestStats]:
        return self.engine.take_stats()


class OurEngine:
    """A pipeline of this package."""

    def __init__(self, pipeline: Pipeline, task: DecodingTask) -> None:
        self.pipeline = pipeline
        self.task = task
        self._plain = Pipeline(pipeline.model, pipeline.verifier, None, pipeline.num_threads)
        self._stats: list[RequestStats] = []
        self.num_draft_tokens = self._default_num_draft_tokens()

    def _default_num_draft_tokens(self) -> int:
        if self.task.num_draft_tokens is not None or self.pipeline.make_drafter is None:
            return self.task.num_draft_tokens or 0
        return self.pipeline.make_drafter().default_num_draft_tokens

    def run(self, method: Method, sources: IdLists) -> list[list[int]]:
        return self._run(method, sources, self.num_draft_tokens)

    def run_exact(self, sources: IdLists, num_draft_tokens: int) -> list[list[int]]:
        """Speculative greedy search with this many draft tokens."""
        return self._run("exact", sources, num_draft_tokens)

    def _run(self, method: Method, sources: IdLists, num_draft_tokens: int) -> list[list[int]]:
        pipeline = self._plain if method in ("greedy", "beam5") else self.pipeline
        arguments = self.task.arguments(method, num_draft_tokens)
        results = pipeline.generate_ids(sources, target_lang=self.task.target_lang, **arguments)
        self._stats.extend(result.stats for result in results)
        return [result.token_ids for result in results]

    def choices(self, sources: IdLists, targets: IdLists) -> list[list[int]]:
        options = self.options()
        prompt = [decoder_start(self.task.start, self.pipeline.model.config)]
        with cpu_threads(self.pipeline.num_threads):
            return [
                forced_choices(self.pipeline.verifier, source, prompt, target, options)
                for source, target in zip(sources, targets, strict=True)
            ]

    def options(self, method: Method = "greedy", num_draft_tokens: int | None = None) -> ResolvedOptions:
        """What a method's options resolve to."""
        count = self.num_draft_tokens if num_draft_tokens is None else num_draft_tokens
        return self.pipeline.options(**self.task.arguments(method, count))

    def take_stats(self) -> list[RequestStats]:
        stats, self._stats = self._stats, []
        return stats


class TransformersEngine:
    """transformers' generate."""

    def __init__(self, peer: TransformersPeer, task: DecodingTask, num_threads: int, banned: Sequence[int]) -> None:
        self._peer = peer
        self.task = task
        self._num_threads = num_threads
        self._banned = banned

    def run(self, method: Method, sources: IdLists) -> list[list[int]]:
        with cpu_threads(self._num_threads):
            return self._peer.generate(sources, self._arguments(method))

    def _arguments(self, method: Method) -> dict[str, object]:
        task, start = self.task, self.task.start
        arguments: dict[str, object] = {"max_new_tokens": task.max_new_tokens, "num_beams": 1}
        if method == "beam5":
            arguments["num_beams"] = NUM_BEAMS
        elif method == "assisted":
            arguments["prompt_lookup_num_tokens"] = _ASSISTED_DRAFT_TOKENS
        if task.is_length_fixed:
            arguments["min_new_tokens"] = task.max_new_tokens
        if start.forced_first is not None:
            arguments["forced_bos_token_id"] = start.forced_first
        if start.decoder_start is not None:
            arguments["decoder_start_token_id"] = start.decoder_start
        return arguments

    def choices(self, sources: IdLists, targets: IdLists) -> list[list[int]]:
        start = self.task.start.decoder_start
        first = self._peer.model.config.decoder_start_token_id if start is None else start
        with cpu_threads(self._num_threads):
            return [
                self._peer.choices(source, first, target, self._banned)
                for source, target in zip(sources, targets, strict=True)
            ]

    def take_stats(self) -> list[RequestStats]:
        return []


class CTranslate2Engine:
    """CTranslate2's translate_batch."""

    def __init__(self, peer: CTranslate2Peer, task: DecodingTask, options: ResolvedOptions) -> None:
        self._peer = peer
        self._forced_first = task.start.forced_first
        self._greedy = SearchSettings.of(options, is_length_fixed=task.is_length_fixed)

    def run(self, method: Method, sources: IdLists) -> list[list[int]]:
        settings = self._greedy
        if method == "beam5":
            settings = replace(settings, beam_size=NUM_BEAMS)
        return self._peer.generate(sources, settings, self._forced_first)

    def choices(self, sources: IdLists, targets: IdLists) -> list[list[int]]:
        return self._peer.choices(sources, targets, self._greedy)

    def take_stats(self) -> list[RequestStats]:
        return []
