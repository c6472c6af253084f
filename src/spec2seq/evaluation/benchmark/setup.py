"""What the stages of a benchmark share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec2seq.evaluation.benchmark.loading import EngineLoader
    from spec2seq.evaluation.benchmark.records import Record, RecordFile
    from spec2seq.evaluation.benchmark.settings import BenchmarkSettings
    from spec2seq.evaluation.benchmark.systems import System
    from spec2seq.evaluation.benchmark.timing import Clock


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
        skipped: engines that were left out, and why.
    """

    loader: EngineLoader
    sources: list[list[int]]
    references: list[str] | None
    to_text: Callable[[Sequence[int]], str] | None
    settings: BenchmarkSettings
    records: RecordFile
    tell: Callable[[str], None]
    clock: Clock
    skipped: dict[str, str] = field(default_factory=dict)

    def skip(self, system: System, reason: str) -> None:
        """Leave out an engine, and say why, once."""
        engine = system.engine
        self._leave_out(f"{engine.maker} {engine.name}" if engine.maker == "spec2seq" else engine.maker, reason)

    def skip_method(self, system: System, batch_size: int, reason: str) -> None:
        """Leave out one method of an engine at a batch size, and say why."""
        engine = system.engine
        threads = f"{engine.threads} thread{'s' if engine.threads > 1 else ''}"
        self._leave_out(f"{system.contest}, {engine.dtype}, {threads}, batch size {batch_size}", reason)

    def _leave_out(self, what: str, reason: str) -> None:
        if what not in self.skipped:
            self.skipped[what] = reason
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
