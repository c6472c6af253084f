"""The stages that measure: which number of draft tokens, which tolerance, and what is gained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spec2seq.evaluation.benchmark.provenance import machine, now
from spec2seq.evaluation.system_figures import system_figures
from spec2seq.training.accelerate.budget import lines_to_measure
from spec2seq.training.accelerate.progress import StageProgress
from spec2seq.training.accelerate.relaxation import TOLERANCES, choose_tolerance, relaxed_name
from spec2seq.training.accelerate.source_split import evenly
from spec2seq.training.accelerate.systems import (
    BEAMS,
    EXACT,
    GREEDY,
    NUM_BEAMS,
    RELAXED,
    DecodingSystem,
    SystemMaker,
    measure,
    speedup,
    time_split,
    without_loops,
)
from spec2seq.weights.checkpoint import SAFETENSORS
from spec2seq.weights.fingerprints import file_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from spec2seq.evaluation.line_runs import LineRun
    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.tokenization import TargetStart
    from spec2seq.training.accelerate.request import AccelerationRequest

NUM_DRAFT_TOKENS = (1, 2, 3, 4, 6, 8, 10, 14, 18, 25)
_NUM_SPLIT_LINES = 20
_BEAM_SECONDS = 6.0  # of a line, in those of greedy search


class Comparing:
    """Runs systems on held-out lines.

    Args:
        maker: of systems.
        request: budget and the like.
        folder: where the runs are kept.
        single_seconds: of greedy search for one line.
        tell: told how far it is.
    """

    def __init__(
        self,
        maker: SystemMaker,
        request: AccelerationRequest,
        folder: Path,
        single_seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        self._maker = maker
        self._request = request
        self._folder = folder
        self._single_seconds = single_seconds
        self._tell = tell

    def choose(self, drafter: Path, block_size: int, lines: Sequence[str]) -> dict[str, Any]:
        """The number of draft tokens that is fastest, and what all of them came to."""
        sizes = [size for size in NUM_DRAFT_TOKENS if size < block_size] + [block_size]
        sources, start = self._sources(lines, 1 + len(sizes))
        systems = [self._plain(start)]
        systems += [self._drafting(str(size), start, drafter, {"num_draft_tokens": size}) for size in sizes]
        runs = without_loops(self._run(systems, sources, "choice", drafter))
        tried = [_tried(size, runs[str(size)]) for size in sizes]
        best = min(tried, key=lambda one: one["seconds"])
        return {**best, "greedy_seconds": _seconds(runs[GREEDY]), "num_lines": len(runs[GREEDY]), "tried": tried}

    def choose_relaxed(self, drafter: Path, num_draft_tokens: int, lines: Sequence[str]) -> dict[str, Any]:
        """The tolerance to use, see `choose_tolerance`."""
        sources, start = self._sources(lines, 1 + len(TOLERANCES))
        drafted: GenerationArguments = {"num_draft_tokens": num_draft_tokens}
        exact = self._drafting(EXACT, start, drafter, drafted)
        systems = [exact]
        for top_beta, tau in TOLERANCES:
            arguments: GenerationArguments = {**drafted, "top_beta": top_beta, "tau": tau}
            systems.append(self._drafting(relaxed_name((top_beta, tau)), start, drafter, arguments))
        runs = self._run(systems, sources, "relaxed", drafter)
        return choose_tolerance(runs, sources, exact)

    def compare(self, drafter: Path, settings: Mapping[str, Any], lines: Sequence[str]) -> dict[str, Any]:
        """Greedy, beam and speculative search side by side.

        Args:
            settings: num_draft_tokens, top_beta (1: no relaxed search) and tau.
        """
        has_relaxed = settings["top_beta"] > 1
        sources, start = self._sources(lines, 2 + has_relaxed + _BEAM_SECONDS)
        drafted: GenerationArguments = {"num_draft_tokens": settings["num_draft_tokens"]}
        greedy, exact = self._plain(start), self._drafting(EXACT, start, drafter, drafted)
        timed = [greedy, exact]
        if has_relaxed:
            relaxed: GenerationArguments = {**drafted, "top_beta": settings["top_beta"], "tau": settings["tau"]}
            timed.append(self._drafting(RELAXED, start, drafter, relaxed))
        beams = self._maker.system(BEAMS, start, None, {"num_beams": NUM_BEAMS})
        all_runs = self._run([greedy, beams, *timed[1:]], sources, "measure", drafter)
        runs = without_loops(all_runs)
        figures = system_figures(
            runs, None, self._maker.plain.tokenizer.decode, exact=GREEDY, baseline=BEAMS, beams=[BEAMS]
        )
        return {
            "num_lines": len(runs[GREEDY]),
            "num_loops": len(sources) - len(runs[GREEDY]),
            "settings": dict(settings),
            "systems": [one.as_dict() for one in figures],
            "speedups": {name: speedup(runs[GREEDY], own) for name, own in runs.items() if name != GREEDY},
            "split": time_split(timed, sources[:_NUM_SPLIT_LINES]),
            "machine": machine(),
            "threads": self._maker.plain.num_threads or torch.get_num_threads(),
            "date": now(),
        }

    def _sources(self, lines: Sequence[str], cost: float) -> tuple[list[list[int]], TargetStart]:
        """As many lines as there is time for, `cost` being what a line takes in those of greedy search."""
        request = self._request
        count = request.num_measured
        if count is None:
            count = lines_to_measure(request.budget_seconds, cost * self._single_seconds, len(lines))
        return self._maker.sources(evenly(lines, count))

    def _plain(self, start: TargetStart) -> DecodingSystem:
        return self._maker.system(GREEDY, start, None, {})

    def _drafting(self, name: str, start: TargetStart, drafter: Path, arguments: GenerationArguments) -> DecodingSystem:
        return self._maker.system(name, start, drafter, arguments)

    def _run(
        self, systems: Sequence[DecodingSystem], sources: Sequence[Sequence[int]], name: str, drafter: Path
    ) -> dict[str, list[LineRun]]:
        job = {"drafter": file_fingerprint(drafter / SAFETENSORS), "num_lines": len(sources)}
        return measure(systems, sources, self._folder / name, job, StageProgress(self._tell, "lines"))


def _tried(num_draft_tokens: int, runs: Sequence[LineRun]) -> dict[str, Any]:
    rate = sum(run.num_tokens for run in runs) / max(1, sum(run.num_rounds for run in runs))
    return {"num_draft_tokens": num_draft_tokens, "seconds": _seconds(runs), "tokens_per_round": rate}


def _seconds(runs: Sequence[LineRun]) -> float:
    return sum(run.seconds for run in runs)
