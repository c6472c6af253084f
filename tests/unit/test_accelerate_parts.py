"""What a budget is turned into, which lines are held out, and how a gain is told."""

from __future__ import annotations

from typing import Any

import pytest

from spec2seq.errors import OptionError
from spec2seq.evaluation.line_runs import LineRun
from spec2seq.training.accelerate import budget
from spec2seq.training.accelerate.report import gain_sentence
from spec2seq.training.accelerate.request import seconds_of, told_seconds
from spec2seq.training.accelerate.source_split import evenly, split_source
from spec2seq.training.accelerate.systems import speedup
from spec2seq.training.source_lines import SourceLines


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("45m", 2700), ("1h30m", 5400), ("90s", 90), ("0.5h", 1800)]
)
def test_times_are_understood(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "-1h", "2 h", "0s", "soon"])
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(OptionError, match="is no time; write 2h"):
        seconds_of(text)


def test_times_for_people() -> None:
    assert [told_seconds(seconds) for seconds in (40, 720, 5400)] == ["40 s", "12 min", "1.5 h"]


def test_a_budget_decides_how_much() -> None:
    assert budget.lines_to_distil(7200, 0.1, 100_000) == 21_600
    assert budget.lines_to_distil(7200, 0.1, 5000) == 5000
    assert budget.lines_to_distil(1, 0.1, 5000) == 400  # fewer teach nothing
    assert budget.training_steps(100, 0.05) == 2000
    assert budget.training_steps(1e9, 0.05) == 60_000
    assert budget.lines_to_measure(7200, 5.4, 500) == 100
    assert budget.kinds_to_try(None, 3599) == ["feature"]
    assert budget.kinds_to_try(None, 3600) == ["feature", "spec"]
    assert budget.kinds_to_try("blockwise", 7200) == ["blockwise"]


def test_a_budget_decides_how_large() -> None:
    plans = [budget.sized_plan("feature", seconds, 1000) for seconds in (60, 1800, 7200, 14_400)]
    assert [plan.settings.batch_tokens for plan in plans] == [1024, 2048, 4096, 4096]
    assert [plan.shape.block_size for plan in plans] == [6, 6, 8, 8]
    assert [getattr(plan.shape, "decoder_layers", None) for plan in plans] == [1, 1, 1, 2]
    assert [(plan.settings.eval_steps, plan.settings.save_steps) for plan in plans] == [(100, 50)] * 4


def test_every_tenth_line_is_held_out_once() -> None:
    lines = [f"line {i}" for i in range(100)]
    raw = [line.encode() for line in [*lines[:50], "", *lines]] + [b"\xff", b"a\rb"]
    split = split_source(SourceLines("text", "", raw))
    assert split.deciding + split.measuring == lines[9::20] + lines[19::20]
    assert sorted(split.training + split.deciding + split.measuring) == sorted(lines)
    assert split.num_left_out == 53


def test_of_a_long_text_about_600_lines_are_held_out() -> None:
    for num_lines in (5999, 6599, 11_999, 100_000):
        split = split_source(SourceLines("text", "", [f"line {i}".encode() for i in range(num_lines)]))
        assert 599 <= len(split.deciding) + len(split.measuring) < 660
        assert abs(len(split.deciding) - len(split.measuring)) <= 1


def test_lines_are_taken_evenly() -> None:
    assert evenly(list("abcdefgh"), 4) == list("aceg")
    assert evenly(list("abc"), 4) == list("abc")


def runs(*seconds: float) -> list[LineRun]:
    return [LineRun(i, [2], one, 1, 1, 0, 0, False) for i, one in enumerate(seconds)]


def test_the_interval_holds_the_ratio() -> None:
    steady = speedup(runs(2.0, 2.0, 2.0), runs(1.0, 1.0, 1.0))
    assert steady == {"value": 2.0, "low": 2.0, "high": 2.0}
    mixed = speedup(runs(*[2.0] * 20), runs(*[1.0, 3.0] * 10))
    assert mixed["low"] < mixed["value"] == 1.0 < mixed["high"]


@pytest.mark.parametrize(
    ("low", "value", "high", "start"),
    [
        (1.4, 1.5, 1.6, "speculative search is 1.50 times as fast as greedy search (1.40 to 1.60"),
        (0.9, 1.0, 1.1, "no certain gain: speculative search is 1.00 times"),
        (0.7, 0.8, 0.9, "no gain: speculative search is only 0.80 times"),
    ],
)
def test_a_gain_is_told_as_it_is(low: float, value: float, high: float, start: str) -> None:
    measured: dict[str, Any] = {"speedups": {"speculative": {"low": low, "value": value, "high": high}}, "num_lines": 9}
    assert gain_sentence(measured).startswith(start)
