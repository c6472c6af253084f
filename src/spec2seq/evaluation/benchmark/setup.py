"""What the stages of a benchmark share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec2seq.evaluation.benchmark.loading import EngineLoader
    from spec2seq.evaluation.benchmark.records import Record, RecordFile
    from spec2seq.evaluation.benchmark.systems import System
    from spec2seq.evaluation.benchmark.timing import Clock
    from spec2seq.evaluation.quality import Task

MIN_AGREEMENT = 0.99
PROBE_PASSES = 3


@dataclass(frozen=True)
class BenchmarkSettings:
    """What is measured, and how often.

    Attributes:
        batch_sizes: texts per call.
        num_rounds: timed passes of every system, after one that warms it up.
        contests, engines: which systems, see `systems.select`; all when empty.
        threads: numbers of threads that compete.
        is_full: every system is shown, not only the best engine of each method.
        block_sizes: numbers of draft tokens to look at; none when empty.
        num_probe_texts: on so few texts the best engine of each method is found.
        num_agreement_texts: on so many the engines' choices are compared with those in fp32.
        num_cost_texts: on so many the costs of single calls are measured.
        measures_memory: whether every system is run once more in a process of its own.
        task: which scores are computed.
        min_agreement: share of equal choices below which an engine of ours does not compete.
    """

    batch_sizes: tuple[int, ...] = (1,)
    num_rounds: int = 5
    contests: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    threads: tuple[int, ...] = (1, 2)
    is_full: bool = False
    block_sizes: tuple[int, ...] = (2, 4, 8, 12, 16, 24)
    num_probe_texts: int = 12
    num_agreement_texts: int = 40
    num_cost_texts: int = 8
    measures_memory: bool = True
    task: Task = "translation"
    min_agreement: float = MIN_AGREEMENT


@dataclass
class BenchmarkSetup:
    """One model, its texts, and where results go.

    Attributes:
        loader: of the engines.
        sources: ids of every text.
        references: what a human wrote for each, or None.
        to_text: detokenises outputs; None where ids mean nothing.
        records: results, as they come.
        tell: is told what happens, for people who wait.
        clock: seconds.
    """

    loader: EngineLoader
    sources: list[list[int]]
    references: list[str] | None
    to_text: Callable[[Sequence[int]], str] | None
    settings: BenchmarkSettings
    records: RecordFile
    tell: Callable[[str], None]
    clock: Clock
    skipped: set[str] = field(default_factory=set)

    def skip(self, system: System, reason: str) -> None:
        """Leave out an engine, and say why, once."""
        engine = system.engine
        what = f"{engine.maker} {engine.name}" if engine.maker == "spec2seq" else engine.maker
        if what not in self.skipped:
            self.skipped.add(what)
            self.records.add("skipped", {"engine": what, "reason": reason})
            self.tell(f"left out: {what}: {reason}")

    def typical(self, count: int) -> list[list[int]]:
        """At most `count` of the sources, of all lengths."""
        ordered = sorted(self.sources, key=len)
        step = max(1, len(ordered) // count)
        return ordered[step // 2 :: step][:count]


def engine_record(system: System) -> Record:
    """What tells an engine's outputs from another's."""
    return {"maker": system.engine.maker, "engine": system.engine.name}
