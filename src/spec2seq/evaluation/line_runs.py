"""Several systems on the same lines, by turns, every answer kept as soon as it is there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from spec2seq.errors import InputError, OptionError
from spec2seq.evaluation.benchmark.timing import by_turns, timed_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from spec2seq.evaluation.benchmark.timing import Clock, Runner


@dataclass(frozen=True)
class LineRun:
    """What a system made of a line, alone in its batch.

    Attributes:
        line: index of the line.
        token_ids: the output, end of sequence included.
        seconds: from ids to ids.
        num_tokens: of the output that took rounds: a forced first one does not count.
        num_rounds: calls of the verifier, or, where a drafter writes alone, of the drafter.
        num_judged, num_accepted: drafted tokens.
        is_degenerate: whether the output runs in circles up to the limit.
        accepted_per_position: rounds in which draft token i, and with it all before it, was kept.
    """

    line: int
    token_ids: list[int]
    seconds: float
    num_tokens: int
    num_rounds: int
    num_judged: int
    num_accepted: int
    is_degenerate: bool
    accepted_per_position: list[int] = field(default_factory=list)


class LineRunFile:
    """The runs of one system as JSON lines, the first of which says what was run. What a kill left half-written is
    dropped.

    Args:
        path: made where it is not there.
        job: all that decides what the runs are, but how many there are.

    Raises:
        OptionError: the file holds the runs of another job.
        InputError: the file is damaged.
    """

    def __init__(self, path: Path, job: Mapping[str, object]) -> None:
        self.path = path
        self._runs: dict[int, LineRun] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        wanted = json.loads(json.dumps(job))
        try:
            records = [json.loads(line) for line in self._complete_lines()]
            self._runs = {record["line"]: LineRun(**record) for record in records[1:]}
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} holds something else than runs ({error}); restore it, or delete it") from error
        if not records:
            self._append(wanted)
        elif records[0] != wanted:
            differing = sorted(name for name in wanted if records[0].get(name) != wanted[name])
            raise OptionError(
                f"{path} holds runs of something else ({', '.join(differing)} differ); delete it or name another folder"
            )

    def _complete_lines(self) -> list[str]:
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        return whole.splitlines()

    def __contains__(self, line: int) -> bool:
        return line in self._runs

    def add(self, run: LineRun) -> None:
        """Write a run down."""
        self._append(asdict(run))
        self._runs[run.line] = run

    def _append(self, record: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def first(self, num_lines: int) -> list[LineRun]:
        """The runs on the first lines, in their order.

        Raises:
            InputError: some are missing.
        """
        missing = [line for line in range(num_lines) if line not in self._runs]
        if missing:
            raise InputError(f"{self.path} lacks {len(missing)} of {num_lines} lines; run the evaluation again")
        return [self._runs[line] for line in range(num_lines)]


@dataclass(frozen=True)
class FiledSystem:
    """A loaded system, and where its runs go."""

    runner: Runner
    file: LineRunFile


def run_by_turns(
    systems: Sequence[FiledSystem],
    sources: Sequence[Sequence[int]],
    clock: Clock,
    on_line: Callable[[int, int], None],
) -> None:
    """Every system on every line that is missing in its file. The order of the systems changes from line to line, so
    that what else the machine does, and what is in its caches, meets all of them alike.

    Args:
        systems: what to run.
        sources: ids of each line.
        clock: seconds.
        on_line: told (lines done, all) after every line that there was something to do for.
    """
    num_lines = len(sources)
    waiting = [system for system in systems if any(line not in system.file for line in range(num_lines))]
    for system in waiting:  # the first call makes tables
        system.runner.run([sources[0]])
        system.runner.take_stats()
    for turn, i in by_turns(range(len(systems)), num_lines):
        line, system = turn - 1, systems[i]
        if line in system.file:
            continue
        system.file.add(_timed(system.runner, line, sources[line], clock))
        if all(line in other.file for other in systems):
            on_line(turn, num_lines)


def _timed(runner: Runner, line: int, source: Sequence[int], clock: Clock) -> LineRun:
    timed = timed_pass(runner, [[source]], clock)
    stats = timed.stats[0]
    return LineRun(
        line,
        timed.outputs[0],
        timed.seconds,
        stats.num_tokens - stats.num_forced,
        stats.num_rounds,
        stats.num_judged,
        stats.num_accepted,
        stats.is_degenerate,
        stats.accepted_per_position,
    )
