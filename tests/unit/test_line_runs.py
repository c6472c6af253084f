"""Systems by turns on the same lines, and what their runs come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spec2seq.errors import InputError, OptionError
from spec2seq.evaluation.line_runs import FiledSystem, LineRun, LineRunFile, run_by_turns
from spec2seq.evaluation.paired_bootstrap import score_differences
from spec2seq.evaluation.quality import score_systems
from spec2seq.evaluation.system_figures import lines_that_count, system_figures
from spec2seq.types import RequestStats

SOURCES = [[1], [2, 2], [3, 3, 3], [4]]
JOB = {"model": "m", "lines": "f"}


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeSystem:
    """Repeats the source, and takes as many seconds as it has tokens, times `pace`; fails at call number `fails_at`."""

    def __init__(self, name: str, clock: FakeClock, log: list[str], pace: float = 1.0, fails_at: int = 0) -> None:
        self.name, self.clock, self.log, self.pace, self.fails_at = name, clock, log, pace, fails_at
        self.stats: list[RequestStats] = []

    def run(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        (source,) = sources
        self.log.append(f"{self.name}{source[0]}")
        if len(self.log) == self.fails_at:
            raise KeyboardInterrupt
        self.clock.now += self.pace * len(source)
        self.stats.append(RequestStats(len(source) + 1, 1, 2, 5, 4, 3, accepted_per_position=[2, 1]))
        return [list(source)]

    def take_stats(self) -> list[RequestStats]:
        stats, self.stats = self.stats, []
        self.clock.now += 100  # on nobody's clock
        return stats


def run_all(folder: Path, log: list[str], fails_at: int = 0, names: str = "ab") -> dict[str, list[LineRun]]:
    """Run the systems; their runs by name."""
    clock = FakeClock()
    systems = {
        name: FiledSystem(
            FakeSystem(name, clock, log, 1.0 + i, fails_at), LineRunFile(folder / name, {**JOB, "name": name})
        )
        for i, name in enumerate(names)
    }
    told: list[int] = []
    run_by_turns(list(systems.values()), SOURCES, clock, lambda done, all_: told.append(done))
    assert told == sorted(set(told))
    assert not told or told[-1] == 4
    return {name: system.file.first(4) for name, system in systems.items()}


def test_systems_take_turns_and_only_their_answer_is_timed(tmp_path: Path) -> None:
    log: list[str] = []
    runs = run_all(tmp_path, log)
    assert log == ["a1", "b1", "a1", "b1", "b2", "a2", "a3", "b3", "b4", "a4"]  # the first two warm up
    assert [run.seconds for run in runs["a"]] == [1, 2, 3, 1]
    assert [run.seconds for run in runs["b"]] == [2, 4, 6, 2]
    assert runs["b"][2] == LineRun(2, [3, 3, 3], 6.0, 3, 2, 4, 3, False, [2, 1])


def num_done(folder: Path) -> int:
    files = [LineRunFile(folder / name, {**JOB, "name": name}) for name in "ab"]
    return sum(line in file for file in files for line in range(4))


@pytest.mark.parametrize("fails_at", [4, 5, 8])
def test_an_interrupted_evaluation_goes_on(tmp_path: Path, fails_at: int) -> None:
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_all(tmp_path, log, fails_at)
    with (tmp_path / "a").open("a") as file:
        file.write('{"line":3,"tok')  # what a kill leaves
    assert num_done(tmp_path) == fails_at - 3
    log.clear()
    runs = run_all(tmp_path, log)
    assert len(log) == 2 + 8 - (fails_at - 3)
    assert {system: [run.token_ids for run in own] for system, own in runs.items()} == {"a": SOURCES, "b": SOURCES}
    log.clear()
    assert run_all(tmp_path, log) == runs
    assert log == []


def test_missing_lines_are_told(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_all(tmp_path, [], fails_at=6)
    with pytest.raises(InputError, match=r"a lacks 3 of 4 lines"):
        LineRunFile(tmp_path / "a", {**JOB, "name": "a"}).first(4)


def test_other_jobs_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    LineRunFile(path, JOB)
    with pytest.raises(OptionError, match=r"\(lines differ\)"):
        LineRunFile(path, {**JOB, "lines": "g"})
    path.write_text(json.dumps(JOB) + "\nnonsense\n")
    with pytest.raises(InputError, match="something else than runs"):
        LineRunFile(path, JOB)


def a_run(line: int, tokens: list[int], is_degenerate: bool = False, judged: int = 4) -> LineRun:
    return LineRun(line, tokens, 0.5 * len(tokens), len(tokens), 2, judged, judged // 2, is_degenerate)


RUNS = {
    "greedy": [a_run(0, [1, 2, 3], judged=0), a_run(1, [1] * 9, True), a_run(2, [4])],
    "exact": [
        replace(a_run(0, [1, 2, 3]), accepted_per_position=[2, 1, 1]),
        replace(a_run(1, [1] * 9, True), accepted_per_position=[1]),
        replace(a_run(2, [5]), accepted_per_position=[1]),
    ],
    "alone": [a_run(0, [7] * 9, True, 0), a_run(1, [1], judged=0), a_run(2, [4], judged=0)],
}


def test_loops_are_left_out_for_all_and_counted() -> None:
    assert lines_that_count(RUNS, ["alone"]) == [0, 2]
    assert lines_that_count(RUNS) == [2]
    figures = {
        figure.system: figure
        for figure in system_figures(RUNS, None, str, exact="greedy", baseline="greedy", unchecked=["alone"])
    }
    exact, alone = figures["exact"], figures["alone"]
    assert (exact.num_lines, exact.num_loops, exact.num_different) == (2, 1, 1)
    assert (exact.tokens_per_round, exact.acceptance_rate, exact.seconds_per_line) == (4 / 4, 1 / 2, 1.0)
    assert exact.survival == [3 / 4, 1 / 4, 1 / 4]
    assert figures["greedy"].survival == []
    assert (alone.num_lines, alone.num_loops, alone.num_different) == (1, 1, 1)
    assert (alone.tokens_per_round, alone.acceptance_rate) == (1 / 2, None)
    assert figures["greedy"].num_different == 0
    only_loops = {**RUNS, "alone": [replace(run, is_degenerate=True) for run in RUNS["alone"]]}
    last = system_figures(only_loops, None, str, exact="greedy", baseline="greedy", unchecked=["alone"])[-1]
    assert (last.num_lines, last.num_loops, last.tokens_per_round, last.seconds_per_line) == (0, 3, None, None)
    loops = {"greedy": [replace(run, is_degenerate=True) for run in RUNS["greedy"]]}
    with pytest.raises(InputError, match="all 3 lines run in circles"):
        lines_that_count(loops)


REFERENCES = [f"the package number {i} holds {'many ' * (i % 4)}files of the library" for i in range(40)]
OUTPUTS = {
    "base": [text.replace("holds", "has") for text in REFERENCES],
    "worse": [text.replace("files of the library", "things") if i % 3 else text for i, text in enumerate(REFERENCES)],
    "same": [text.replace("holds", "has") for text in REFERENCES],
}


def test_differences_are_those_of_the_scores_and_their_intervals_hold_them() -> None:
    scores = score_systems(OUTPUTS, REFERENCES, num_resamples=50)
    differences = score_differences(OUTPUTS, REFERENCES, "base", num_resamples=200)
    assert sorted(differences) == ["same", "worse"]
    for mine, base, found in zip(scores["worse"], scores["base"], differences["worse"], strict=True):
        assert found.name == mine.name == base.name
        assert found.value == pytest.approx(mine.value - base.value, abs=1e-4)  # sacreBLEU sums in fp32
        assert found.low < found.value < found.high
        assert found.low < 0
    assert [(one.value, one.low, one.high) for one in differences["same"]] == [(0.0, 0.0, 0.0)] * 2


def test_an_interval_is_that_of_resampled_corpora() -> None:
    """Slowly: every resample written out, and scored as a corpus of its own."""
    import numpy as np
    from sacrebleu.metrics.bleu import BLEU

    chance, differences = np.random.default_rng(12345), []
    for row in chance.choice(40, size=(60, 40), replace=True):
        references = [REFERENCES[i] for i in row]
        one, base = (
            BLEU().corpus_score([OUTPUTS[name][i] for i in row], [references]).score for name in ("worse", "base")
        )
        differences.append(one - base)
    found = score_differences(OUTPUTS, REFERENCES, "base", num_resamples=60)["worse"][0]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(differences, (0.025, 0.975))))


def test_outputs_of_another_length_are_no_outputs() -> None:
    with pytest.raises(InputError, match="worse has 39 lines"):
        score_differences({**OUTPUTS, "worse": OUTPUTS["worse"][:-1]}, REFERENCES, "base")
