"""The measurement: one pass that warms up and gives the outputs, then timed rounds in which systems take turns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from spec2seq.evaluation.benchmark.choice import engines_of, load_or_skip
from spec2seq.evaluation.benchmark.engines import LoadedSystem
from spec2seq.evaluation.benchmark.provenance import load
from spec2seq.evaluation.benchmark.records import system_as_dict
from spec2seq.evaluation.benchmark.timing import batches_of, by_turns, in_order, timed_pass
from spec2seq.evaluation.peer_errors import PeerError
from spec2seq.pipelines.results import sum_stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.evaluation.benchmark.choice import Contestants
    from spec2seq.evaluation.benchmark.engines import LoadedEngine
    from spec2seq.evaluation.benchmark.records import Record
    from spec2seq.evaluation.benchmark.setup import BenchmarkSetup
    from spec2seq.evaluation.benchmark.systems import Engine, System
    from spec2seq.evaluation.benchmark.timing import TimedPass

WARM_UP = 0  # number of the round that is not timed


@dataclass(frozen=True)
class MeasuredOutputs:
    """What a system said to every text, in the order of the texts, called with so many texts at once."""

    system: System
    batch_size: int
    outputs: list[list[int]]


def measure(setup: BenchmarkSetup, contestants: Contestants) -> list[MeasuredOutputs]:
    """Time the systems of every batch size; every pass becomes a record as soon as it is over."""
    engines = _load(setup, [system for systems in contestants.values() for system in systems])
    outputs: list[MeasuredOutputs] = []
    for batch_size, systems in contestants.items():
        runners = [LoadedSystem(system, engines[system.engine]) for system in systems if system.engine in engines]
        outputs += _Measurement(setup, runners, batch_size).run()
    return outputs


def _load(setup: BenchmarkSetup, systems: Sequence[System]) -> dict[Engine, LoadedEngine]:
    engines = {}
    for engine in engines_of(systems):
        setup.tell(f"loading: {engine.maker} {engine.label}")
        loaded = load_or_skip(setup, next(system for system in systems if system.engine == engine))
        if loaded is not None:
            engines[engine] = loaded
    return engines


class _Measurement:
    """All systems with one batch size."""

    def __init__(self, setup: BenchmarkSetup, runners: Sequence[LoadedSystem], batch_size: int) -> None:
        self._setup = setup
        self._runners = runners
        self._batch_size = batch_size
        self._batches, self._order = batches_of(setup.sources, batch_size)
        self._expected: dict[System, float] = {}

    def run(self) -> list[MeasuredOutputs]:
        warm = [found for runner in self._runners if (found := self._warm_up(runner))]
        able = [runner for runner in self._runners if runner.system in self._expected]
        num_rounds = self._setup.settings.num_rounds
        left = num_rounds * sum(self._expected.values())
        for turn, runner in by_turns(able, num_rounds):
            timed = timed_pass(runner, self._batches, self._setup.clock)
            left -= self._expected[runner.system]
            self._note(runner.system, turn, timed)
            self._tell(runner.system, f"round {turn} of {num_rounds}", timed, left)
        return warm

    def _warm_up(self, runner: LoadedSystem) -> MeasuredOutputs | None:
        system = runner.system
        try:
            timed = timed_pass(runner, self._batches, self._setup.clock)
        except PeerError as error:
            self._setup.skip_method(system, self._batch_size, str(error))  # the report lists it
            return None
        self._expected[system] = timed.seconds
        self._note(system, WARM_UP, timed)
        self._tell(system, "warm-up", timed, None)
        return MeasuredOutputs(system, self._batch_size, in_order(timed.outputs, self._order))

    def _note(self, system: System, turn: int, timed: TimedPass) -> None:
        values: Record = {
            "system": system_as_dict(system),
            "batch_size": self._batch_size,
            "round": turn,
            "seconds": timed.seconds,
            "texts": len(timed.outputs),
            "tokens": self._num_tokens(timed),
            "load": load(),
        }
        if timed.stats:
            values["stats"] = asdict(sum_stats(timed.stats))
            values["in_circles"] = sum(one.is_degenerate for one in timed.stats)
        self._setup.records.add("pass", values)

    def _num_tokens(self, timed: TimedPass) -> int:
        """Tokens that a system chose itself."""
        num_forced = int(self._setup.loader.task.start.forced_first is not None)
        return sum(max(0, len(output) - num_forced) for output in timed.outputs)

    def _tell(self, system: System, what: str, timed: TimedPass, left: float | None) -> None:
        speed = self._num_tokens(timed) / timed.seconds if timed.seconds else 0.0
        rest = "" if left is None else f"; about {max(0.0, left) / 60:.1f} min left"
        batch = ""
        if len(self._setup.settings.batch_sizes) > 1:
            batch = f", {self._batch_size} texts per call"
            rest = rest and f"{rest} with this batch size"
        self._setup.tell(f"{what}: {system.label}{batch}: {speed:.0f} tokens/s{rest}")
