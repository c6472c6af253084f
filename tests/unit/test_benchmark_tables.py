"""From records to rows, tables and plots."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from spec2seq.errors import MissingExtraError
from spec2seq.evaluation.benchmark.plots import write_plots
from spec2seq.evaluation.benchmark.records import system_as_dict
from spec2seq.evaluation.benchmark.reporting import report, write_report
from spec2seq.evaluation.benchmark.run import text_seconds
from spec2seq.evaluation.benchmark.summary import PEER_GREEDY, PLAIN, Spread, speed_rows
from spec2seq.evaluation.benchmark.systems import Engine, System
from spec2seq.evaluation.benchmark.tables import table
from spec2seq.evaluation.quality import Score
from tests.unit.test_repository import ROOT, load_script

if TYPE_CHECKING:
    from pathlib import Path

PLAIN_SYSTEM = System("greedy", Engine("spec2seq", "torch", "float32", 1))
EXACT = System("exact", Engine("spec2seq", "openvino", "int8", 2))
PEER = System("greedy", Engine("ctranslate2", "ctranslate2", "int8", 1))
SLOW_PEER = System("greedy", Engine("ctranslate2", "ctranslate2", "float32", 1))


def passed(system: System, turn: int, seconds: float, batch_size: int = 1) -> dict[str, Any]:
    record = {
        "record": "pass",
        "system": system_as_dict(system),
        "batch_size": batch_size,
        "round": turn,
        "seconds": seconds,
        "texts": 10,
        "tokens": 200,
        "load": 0.5,
    }
    if system.engine.maker == "spec2seq":
        stats = {"num_tokens": 200, "num_forced": 0, "num_rounds": 80 if system == EXACT else 200}
        stats |= {"num_judged": 320, "num_accepted": 120} if system == EXACT else {"num_judged": 0, "num_accepted": 0}
        parts = {"seconds_encode": 0.1, "seconds_draft": 0.2, "seconds_verify": 0.3, "seconds_rest": 0.1}
        record |= {"stats": {**stats, **parts}, "in_circles": 1}
    return record


def records() -> list[dict[str, Any]]:
    machine = {"cpu": "a CPU", "cores": 2, "torch": "2", "transformers": "5", "openvino": None, "ctranslate2": "4"}
    run = {"model": "m", "weights": "abc", "drafter": "d", "input": "f.tsv", "texts": 10, "date": "today"}
    score = {"name": "BLEU", "value": 31.25, "signature": "tok:13a", "low": 30, "high": 32, "p_value": 0.5}
    exact = system_as_dict(EXACT)
    costs = {"encode": 0.01, "start": 0.02, "verify": {"0": 0.001, "4": 0.002}, "draft": {"4": 0.003}, "host": 0.0001}
    check = {"num_draft_tokens": 4, "tokens_per_round": 2.5, "verify_cost": 1.5, "draft_cost": 0.5}
    speedups = {"predicted_speedup": 2.0, "measured_speedup": 1.9, "share": 0.95}
    needed = {"needed_tokens_per_round": {PEER_GREEDY: {"1.3": 3.25, "1.5": None}}}
    return [
        {"record": "run", **run, "commit": "c", "command": "spec2seq bench", "machine": machine},
        {"record": "reference", "texts": 10, "tokens": 200, "left_out_in_circles": [3]},
        {"record": "agreement", "maker": "spec2seq", "engine": "openvino-int8", "positions": 100, "same": 99}
        | {"texts": 4, "share": 0.99, "competes": True},
        {"record": "skipped", "engine": "transformers", "reason": "not here"},
        *(passed(system, 0, 50.0) for system in (PLAIN_SYSTEM, EXACT, PEER, SLOW_PEER)),
        *(passed(PLAIN_SYSTEM, turn, seconds) for turn, seconds in ((1, 4.0), (2, 6.0), (3, 5.0))),
        *(passed(EXACT, turn, seconds) for turn, seconds in ((1, 2.0), (2, 2.0), (3, 1.0))),
        *(passed(PEER, turn, seconds) for turn, seconds in ((1, 3.0), (2, 2.0))),
        *(passed(SLOW_PEER, turn, 9.0) for turn in (1, 2)),
        {"record": "outputs", "system": exact, "batch_size": 1, "texts": 10, "identical": 9},
        {"record": "quality", "system": exact, "batch_size": 1, "scores": [score]},
        {"record": "memory", "system": exact, "batch_size": 1, "peak_bytes": 123_400_000},
        {"record": "costs", "system": exact, **costs},
        {"record": "cost_model", "system": exact, **check, **speedups, **needed},
        {"record": "projection", "size": "base", "profile": "card", "num_draft_tokens": 8, "tokens_per_round": 4.0}
        | {"text_seconds": 0.05, "speedups": {PEER_GREEDY: 3.5}},
    ]


def test_medians_quartiles_and_ratios_by_hand() -> None:
    rows = {row.system: row for row in speed_rows(records())}
    exact = rows[EXACT]
    assert (exact.num_rounds, exact.num_texts) == (3, 10)
    # of 1, 2 and 2 seconds for 10 texts with 200 tokens; the warm-up of 50 s does not count
    assert exact.text_seconds.middle == pytest.approx(0.2)
    assert exact.tokens_per_second == Spread(100.0, 100.0, 200.0)
    # 4 / 2, 6 / 2 and 5 / 1 in the same rounds
    assert exact.ratios[PLAIN].middle == 3.0
    # against the faster of the two peers, in the rounds that both have
    assert exact.ratios[PEER_GREEDY] == Spread.of([1.5, 1.0])
    assert exact.tokens_per_round == 2.5
    assert exact.seconds_by_part == pytest.approx(
        {"encode": 0.01, "draft": 0.02, "verify": 0.03, "rest": 0.01, "outside": 0.13}
    )
    assert (exact.num_identical, exact.num_in_circles, exact.agreement, exact.peak_bytes) == (9, 1, 0.99, 123_400_000)
    assert exact.scores == {"BLEU": Score("BLEU", 31.25, "tok:13a", 30, 32, 0.5)}
    assert exact.acceptance_rate == 0.375
    assert rows[PLAIN_SYSTEM].acceptance_rate is None
    assert rows[PLAIN_SYSTEM].ratios[PLAIN].middle == 1.0
    assert rows[PEER].seconds_by_part == {}
    assert rows[PEER].agreement is None
    assert text_seconds(records(), 1) == {PEER_GREEDY: pytest.approx(0.25)}


def test_one_round_has_no_spread() -> None:
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)


def test_the_report_tells_it_all() -> None:
    page = report(records())
    line = (
        "| spec2seq exact | openvino int8 | 2 | 100 | 100 to 200 | 200.0 | 3.00 | 1.25 | 2.50 | 31.2 | 99.00% | 123 |"
    )
    assert line in page
    assert "| ctranslate2 greedy | int8 | 1 |" in page
    assert "| 1 | spec2seq exact | openvino int8 | 2 | 10.0 | 20.0 | 30.0 | 10.0 | 130.0 | 2.50 | 38% |" in page
    assert "| 1 | spec2seq exact | openvino int8 | 2 | 31.2 (30.0 to 32.0), p = 0.50 | 9 of 10 | 1 |" in page
    assert "| 4 | 2.50 | 1.50 | 0.50 | 1.90 | 2.00 | 95% | 3.25 | out of reach |" in page
    assert "| openvino int8, 2 threads | 4 | 2.00 | 3.00 | 0.10 | 10.00 | 20.00 |" in page
    assert "| spec2seq openvino-int8 | 4 | 100 | 99.00% | yes |" in page
    assert "| base | card | 8 | 4.00 | 50.0 | 3.50 x ctranslate2-greedy |" in page
    assert "A projection, not a measurement" in page
    assert "Left out: 1 texts whose fp32 greedy outputs run in circles" in page
    assert "- transformers: not here" in page
    assert "Signature: `tok:13a`" in page
    assert "load 0.5 to 0.5" in page
    assert "Command: `spec2seq bench`" in page


def test_batch_sizes_become_a_column() -> None:
    more = [*records(), *(passed(PLAIN_SYSTEM, turn, 2.0, batch_size=8) for turn in (1, 2))]
    rows = speed_rows(more)
    assert [row.batch_size for row in rows if row.system == PLAIN_SYSTEM] == [1, 8]
    assert [row.ratios.keys() for row in rows if row.batch_size == 8] == [{PLAIN}]
    assert "| batch | system |" in report(more)
    assert "| 8 | spec2seq greedy | torch float32 | 1 | 100 |" in report(more)


def test_an_empty_table_is_nothing() -> None:
    assert table(["a"], []) == []
    assert table(["a", "b"], [["1", "2"]]) == ["| a | b |", "| --- | --- |", "| 1 | 2 |"]


def test_plots_of_what_there_is(tmp_path: Path) -> None:
    names = [path.name for path in write_plots(records(), tmp_path)]
    assert names == ["speed_and_quality.png", "time_split.png", "tokens_per_round.png"]
    more = [*records(), passed(PLAIN_SYSTEM, 1, 2.0, batch_size=8)]
    assert "speed_by_batch.png" in [path.name for path in write_plots(more, tmp_path)]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_without_matplotlib_there_is_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'spec2seq\[bench\]'"):
        write_plots(records(), tmp_path)
    told: list[str] = []
    write_report(records(), tmp_path, told.append)
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == report(records())
    assert ["pip install" in message for message in told] == [True]


def test_nothing_is_reported_before_the_first_pass(tmp_path: Path) -> None:
    write_report(records()[:4], tmp_path, print)
    assert list(tmp_path.iterdir()) == []


def test_the_pages_of_the_checkout_come_from_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script(ROOT / "benchmarks" / "write_readme.py")
    folder = tmp_path / "benchmarks"
    monkeypatch.setattr(script, "FOLDER", folder)
    (folder / "results" / "bench").mkdir(parents=True)
    lines = "".join(json.dumps(record) + "\n" for record in records())
    (folder / "results" / "bench" / "debian-en-it.jsonl").write_text(lines, encoding="utf-8")
    (folder / "results" / "bench" / "base.jsonl").write_text(lines, encoding="utf-8")
    exact = {
        "engine": "torch:float32",
        "tolerance": 1e-4,
        "system": "greedy, batch 16",
        "lines": 10,
        "differences": [{"margin": 1e-5}, {"margin": 1e-3}],
        "tokens_per_round": 1.5,
    }
    (folder / "results" / "exactness.jsonl").write_text(json.dumps(exact) + "\n", encoding="utf-8")
    (tmp_path / "README.md").write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n", encoding="utf-8")
    script.main()
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert page.startswith("before\n")
    assert page.endswith("\nafter\n")
    assert "old" not in page
    assert "| spec2seq exact | openvino int8 | 2 | 100 |" in page
    assert page.count("3.50 x ctranslate2-greedy") == 2  # both runs tell a projection
    assert "| torch float32 | greedy, batch 16 | 10 | 8 | 1, at most 1.0e-05 | 1 | 1.500 |  |" in page
    (plot,) = re.findall(r"!\[[^]]+\]\((benchmarks/[^)]+)\)", page)
    assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")
    assert script.fill(page, script.in_main_readme()) == page
    other = (folder / "README.md").read_text(encoding="utf-8")
    assert other == script.in_benchmarks_readme()
    assert [line for line in other.splitlines() if line.startswith("## ")][:3] == [
        "## debian-en-it",
        "## base",
        "## Is the output the same?",
    ]
    assert "\n### Speed\n" in other


def test_the_page_of_measurements_is_up_to_date() -> None:
    script = load_script(ROOT / "benchmarks" / "write_readme.py")
    written = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert written == script.in_benchmarks_readme(), "run `python benchmarks/write_readme.py`"
