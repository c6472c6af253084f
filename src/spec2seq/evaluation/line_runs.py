"""Several systems on the same lines, by turns, every answer kept as soon as it is there."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
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
        system: its name.
        line: index of the line.
        token_ids: the output, end of sequence included.
        seconds: from ids to ids.
        num_tokens: of the output that took rounds: a forced first one does not count.
        num_rounds: calls of the verifier, or, where a drafter writes alone, of the drafter.
        num_judged, num_accepted: drafted tokens.
        is_degenerate: whether the output runs in circles up to the limit.
    """

    system: str
    line: int
    token_ids: list[int]
    seconds: float
    num_tokens: int
    num_rounds: int
    num_judged: int
    num_accepted: int
    is_degenerate: bool


class LineRunFile:
    """Runs as JSON lines, the first of which says what was run. What a kill left half-written is dropped.

    Args:
        path: made where it is not there.
        job: all that decides what the runs are; not the systems, which may join later.

    Raises:
        OptionError: the file holds the runs of another job.
        InputError: the file is damaged.
    """

    def __init__(self, path: Path, job: Mapping[str, object]) -> None:
        self.path = path
        self.runs: list[LineRun] = []
        job = json.loads(json.dumps(job))
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = self._complete_lines()
        try:
            records = [json.loads(line) for line in lines]
            self.runs = [LineRun(**record) for record in records[1:]]
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} holds something else than runs ({error}); restore it, or delete it") from error
        if not records:
            self._append(job)
        elif records[0] != job:
            differing = sorted(name for name in job if records[0].get(name) != job[name])
            raise OptionError(f"{path} holds another evaluation ({', '.join(differing)} differ); name another folder")
        self._done = {(run.system, run.line) for run in self.runs}

    def _complete_lines(self) -> list[str]:
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        return whole.splitlines()

    def has(self, system: str, line: int) -> bool:
        """Whether this run was made."""
        return (system, line) in self._done

    def add(self, run: LineRun) -> None:
        """Write a run down."""
        self._append(asdict(run))
        self.runs.append(run)
        self._done.add((run.system, run.line))

    def _append(self, record: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def by_system(self, num_lines: int) -> dict[str, list[LineRun]]:
        """The runs of every system on the first lines, in their order.

        Raises:
            InputError: some are missing.
        """
        found: dict[str, dict[int, LineRun]] = defaultdict(dict)
        for run in self.runs:
            if run.line < num_lines:
                found[run.system][run.line] = run
        for system, runs in found.items():
            if len(runs) < num_lines:
                raise InputError(
                    f"{self.path}: {system} has {len(runs)} of {num_lines} lines; run the evaluation again"
                )
        return {system: [runs[i] for i in range(num_lines)] for system, runs in found.items()}


def run_by_turns(
    runners: Mapping[str, Runner],
    sources: Sequence[Sequence[int]],
    file: LineRunFile,
    clock: Clock,
    on_line: Callable[[int, int], None],
) -> None:
    """Every system on every line that is missing in the file. The order of the systems changes from line to line, so
    that what else the machine does, and what is in its caches, meets all of them alike.

    Args:
        runners: by name.
        sources: ids of each line.
        file: where the runs go.
        clock: seconds.
        on_line: told (lines done, all) after every line.
    """
    _warm_up(runners, sources[0])
    for turn, system in by_turns(list(runners), len(sources)):
        line = turn - 1
        if not file.has(system, line):
            file.add(_timed(system, runners[system], line, sources[line], clock))
        if all(file.has(name, line) for name in runners):
            on_line(turn, len(sources))


def _warm_up(runners: Mapping[str, Runner], source: Sequence[int]) -> None:
    for runner in runners.values():
        runner.run([source])
        runner.take_stats()


def _timed(system: str, runner: Runner, line: int, source: Sequence[int], clock: Clock) -> LineRun:
    timed = timed_pass(runner, [[source]], clock)
    stats = timed.stats[0]
    return LineRun(
        system,
        line,
        timed.outputs[0],
        timed.seconds,
        stats.num_tokens - stats.num_forced,
        stats.num_rounds,
        stats.num_judged,
        stats.num_accepted,
        stats.is_degenerate,
    )
