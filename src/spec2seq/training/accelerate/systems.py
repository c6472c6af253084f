"""Ways of decoding side by side on held-out lines, one line at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from spec2seq.errors import InputError
from spec2seq.evaluation.line_runs import FiledSystem, LineRun, LineRunFile, run_by_turns
from spec2seq.evaluation.system_figures import lines_that_count
from spec2seq.pipelines.drafter_choice import choose_drafter
from spec2seq.pipelines.pipeline import Pipeline
from spec2seq.pipelines.plans import Piece, TextOptions
from spec2seq.pipelines.results import sum_stats
from spec2seq.training.accelerate.probes import search_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.pipelines.engines import EngineChoice
    from spec2seq.tokenization import TargetStart
    from spec2seq.training.accelerate.request import AccelerationRequest
    from spec2seq.types import DecodedRequest, RequestStats

GREEDY, BEAMS, EXACT, RELAXED = "greedy", "beam 5", "speculative", "relaxed"
NUM_BEAMS = 5
_NUM_RESAMPLES = 1000
_PARTS = ("encode", "draft", "verify", "rest")


@dataclass(frozen=True)
class DecodingSystem:
    """One way of decoding.

    Attributes:
        name: for tables, and for its file.
        pipeline: with a drafter, or without.
        options: of its search.
        start: how outputs begin.
    """

    name: str
    pipeline: Pipeline
    options: ResolvedOptions
    start: TargetStart

    def decode(self, sources: Sequence[Sequence[int]]) -> list[DecodedRequest]:
        """What comes out for each source."""
        outcomes: dict[int, DecodedRequest] = {}
        pieces = [Piece(list(source), self.start) for source in sources]
        self.pipeline.decode(pieces, self.options, outcomes.__setitem__)
        failed = [outcome.error for outcome in outcomes.values() if outcome.finish_reason == "error"]
        if failed:
            raise InputError(f"the model fails on a held-out line ({failed[0]}); check the checkpoint")
        return [outcomes[i] for i in range(len(sources))]


class _Runner:
    """A system as something that is timed."""

    def __init__(self, system: DecodingSystem) -> None:
        self._system = system
        self._stats: list[RequestStats] = []

    def run(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        outcomes = self._system.decode(sources)
        self._stats += [outcome.stats for outcome in outcomes]
        return [outcome.hypotheses[0].token_ids for outcome in outcomes]

    def take_stats(self) -> list[RequestStats]:
        stats, self._stats = self._stats, []
        return stats


class SystemMaker:
    """Makes systems of one model.

    Args:
        plain: the model without a drafter.
        engine: what it runs on.
        request: limits and languages.
    """

    def __init__(self, plain: Pipeline, engine: EngineChoice, request: AccelerationRequest) -> None:
        self.plain = plain
        self._engine = engine
        self._request = request
        self._drafting: dict[Path, Pipeline] = {}
        self._text_options = TextOptions(request.source_lang, request.target_lang, request.source_prefix, "split")

    def sources(self, lines: Sequence[str]) -> tuple[list[list[int]], TargetStart]:
        """Ids of the lines that fit into the model's positions, and how outputs begin."""
        plans = self.plain.plan(lines, self._options({}), self._text_options)
        pieces = [plan.pieces[0] for plan in plans if len(plan.pieces) == 1]
        if not pieces:
            raise InputError("no held-out line fits into the model's positions; give a text with shorter lines")
        return [piece.source_ids for piece in pieces], pieces[0].start

    def system(
        self, name: str, start: TargetStart, drafter: Path | None, arguments: GenerationArguments
    ) -> DecodingSystem:
        """A system with a trained drafter, or without one; `arguments` are what is different from greedy search."""
        pipeline = self.plain if drafter is None else self._with(drafter)
        return DecodingSystem(name, pipeline, self._options(arguments), start)

    def _options(self, arguments: GenerationArguments) -> ResolvedOptions:
        said: GenerationArguments = {**search_arguments(self._request), **arguments}
        return self.plain.options(**said)

    def _with(self, drafter: Path) -> Pipeline:
        plain = self.plain
        if drafter not in self._drafting:
            make = choose_drafter(drafter, plain.model, self._engine)
            self._drafting[drafter] = Pipeline(plain.model, plain.verifier, make, plain.num_threads)
        return self._drafting[drafter]


def measure(
    systems: Sequence[DecodingSystem],
    sources: Sequence[Sequence[int]],
    folder: Path,
    job: Mapping[str, object],
    on_line: Callable[[int, int], None],
) -> dict[str, list[LineRun]]:
    """Runs of every system on every line, by turns; those that are in the folder already are not made again."""
    filed = [
        FiledSystem(_Runner(system), LineRunFile(folder / f"{system.name}.jsonl", {**job, "system": system.name}))
        for system in systems
    ]
    run_by_turns(filed, sources, perf_counter, on_line)
    return {system.name: one.file.first(len(sources)) for system, one in zip(systems, filed, strict=True)}


def time_split(systems: Sequence[DecodingSystem], sources: Sequence[Sequence[int]]) -> dict[str, dict[str, float]]:
    """Milliseconds per line by part of the work, of every system."""
    split = {}
    for system in systems:
        stats = sum_stats([system.decode([source])[0].stats for source in sources])
        split[system.name] = {part: 1000 * getattr(stats, f"seconds_{part}") / len(sources) for part in _PARTS}
    return split


def speedup(plain: Sequence[LineRun], other: Sequence[LineRun]) -> dict[str, Any]:
    """How many times as fast the other system is on the same lines, with the 95 % interval over resampled lines."""
    pairs = [(one.seconds, two.seconds) for one, two in zip(plain, other, strict=True)]
    generator = random.Random(0)
    ratios = sorted(_ratio(generator.choices(pairs, k=len(pairs))) for _ in range(_NUM_RESAMPLES))
    low, high = ratios[_NUM_RESAMPLES // 40], ratios[-_NUM_RESAMPLES // 40]
    return {"value": _ratio(pairs), "low": low, "high": high}


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(one for one, _ in pairs) / sum(two for _, two in pairs)


def without_loops(runs: dict[str, list[LineRun]]) -> dict[str, list[LineRun]]:
    """The runs on lines on which no system's output runs in circles, numbered anew."""
    kept = lines_that_count(runs)
    return {name: [replace(own[i], line=line) for line, i in enumerate(kept)] for name, own in runs.items()}
