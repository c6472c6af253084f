"""The recipe's ablations: one thing changed at a time, trained and measured run by run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ablate
import ablation_figures
import pytest
import run
import write_readme
from figures import read_records

from spec2seq.cli.main import run as run_verb
from spec2seq.errors import OptionError
from spec2seq.evaluation.benchmark.provenance import machine
from tests.text_models import LINES, make_text_model

STEPS = 4
NAMES = [variant.name for variant in ablate.VARIANTS]


class Trainings:
    """Runs the stages in this process, up to the one that is to be interrupted."""

    def __init__(self, output: Path, interrupted: str | None = None) -> None:
        self.output, self.interrupted = output, interrupted
        self.started: list[str] = []

    def __call__(self, stage: run.Stage, work: Path) -> None:
        assert work == self.output
        self.started.append(stage.name)
        if stage.name == self.interrupted:
            raise KeyboardInterrupt
        assert run_verb(stage.command[1:]) == 0
        note = {"stage": stage.name, "seconds": 20 if stage.name == "1-start" else 60, "processes": stage.processes}
        with (work / run.STAGES_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments of the script: a model, pairs and test lines."""
    folder = tmp_path_factory.mktemp("inputs")
    make_text_model("marian", folder / "model", generation={"max_length": 13})
    lines = [f"{LINES[i % 8]} {LINES[i // 8]}" for i in range(40)]
    (folder / "lines.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "test.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in LINES[:4]), encoding="utf-8")
    source = ["--source", str(folder / "lines.txt"), "-o", str(folder / "pairs")]
    assert run_verb(["distill", str(folder / "model"), *source]) == 0
    parts = ("--model", folder / "model", "--data", folder / "pairs", "--test", folder / "test.tsv")
    return [*map(str, parts), "--backend", "torch", "--processes", "1"]


def call(monkeypatch: pytest.MonkeyPatch, trainings: Trainings, *arguments: str) -> None:
    monkeypatch.setattr(ablate, "run_stage", trainings)
    monkeypatch.setattr(ablate, "NUM_COST_ROUNDS", 2)
    monkeypatch.setattr(sys, "argv", ["ablate.py", *arguments, "-o", str(trainings.output)])
    ablate.main()


def plan_of(output: Path, name: str) -> dict[str, Any]:
    """What a run trained, flattened."""
    job = json.loads((output / "drafters" / name / "training" / "job.json").read_text())
    parts = {part: job[part] for part in ("shape", "objective", "settings")}
    return {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}


def test_runs_differ_in_one_thing_and_are_measured(
    inputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainings = Trainings(tmp_path, interrupted="causal")
    with pytest.raises(KeyboardInterrupt):
        call(monkeypatch, trainings, *inputs, "--steps", str(STEPS))
    trainings.interrupted = None
    call(monkeypatch, trainings, *inputs, "--steps", str(STEPS), "--train-only")
    place = NAMES.index("causal") + 1
    assert trainings.started == [*NAMES[:place], *NAMES[place - 1 :]]
    assert not (tmp_path / ablation_figures.FIGURES_FILE).exists()
    default, schedule = plan_of(tmp_path, "default"), {"settings.steps", "settings.eval_steps", "settings.save_steps"}
    changed = {name: {key for key, value in plan_of(tmp_path, name).items() if value != default[key]} for name in NAMES}
    assert {name: keys - schedule for name, keys in changed.items()} == {
        "default": set(),
        "states-none": {"shape.states"},
        "states-last": {"shape.states"},
        "2-layers": {"shape.decoder_layers"},
        "causal": {"shape.block_attention"},
        "no-bigrams": {"shape.bigram_rank"},
        "tokens": {"objective.targets"},
        "adamw": {"settings.optimizer"},
        "1-start": {"objective.num_cuts"},
        "1-start-same-time": {"objective.num_cuts"},
    }
    assert {name for name, keys in changed.items() if keys & schedule} == {"1-start-same-time"}
    assert plan_of(tmp_path, "1-start-same-time")["settings.steps"] == 3 * STEPS

    capsys.readouterr()
    call(monkeypatch, trainings, *inputs, "--steps", str(STEPS))
    assert len(trainings.started) == len(NAMES) + 1  # nothing is trained again
    printed = capsys.readouterr().out
    assert printed.count("is complete") == len(NAMES)
    records = read_records(tmp_path / ablation_figures.FIGURES_FILE)
    check_records(records)
    assert (tmp_path / ablation_figures.TABLE_FILE).read_text(encoding="utf-8") in printed
    with pytest.raises(OptionError, match="holds a 4-update run; name another folder for a 5-update one"):
        call(monkeypatch, trainings, *inputs, "--steps", "5")


def check_records(records: list[dict[str, Any]]) -> None:
    assert [one["record"] for one in records] == ["run", "greedy", *["variant"] * len(NAMES)]
    assert (records[0]["backend"], records[0]["lines"]) == ("torch float32", 4)
    runs = {one["name"]: one for one in records[2:]}
    assert list(runs) == NAMES
    assert {name: one["steps"] for name, one in runs.items()} == {
        name: 3 * STEPS if name == "1-start-same-time" else STEPS for name in NAMES
    }
    assert {name: one["minutes"] for name, one in runs.items() if one["minutes"] != 1} == {"1-start": 1 / 3}
    for one in runs.values():
        assert one["exact"]["num_different"] == 0
        assert one["relaxed"]["tokens_per_round"] >= 1.0
        assert one["exact"]["tokens_per_round"] >= 1.0
        assert one["num_draft_tokens"] == 8
        assert one["draft_cost"] > 0
        assert one["verify_cost"] > 0


def a_run(label: str, steps: int, survival: list[float], **costs: float) -> dict[str, Any]:
    def figures(rate: float, seconds: float, bleu: float) -> dict[str, Any]:
        scores = [{"name": "BLEU", "value": bleu, "signature": "v"}]
        return {"tokens_per_round": rate, "seconds_per_line": seconds, "scores": scores, "num_different": 1}

    exact = {**figures(1 + sum(survival), 0.0104, 20.0), "survival": survival}
    numbers = {"steps": steps, "minutes": 15.04, "num_draft_tokens": 3, "tolerance": [5, 3.0], **costs}
    return {"record": "variant", "label": label, **numbers, "exact": exact, "relaxed": figures(3.5, 0.008, 18.04)}


RECORDS: list[dict[str, Any]] = [
    {"record": "run", "lines": 3, "input": "f.tsv", "weights": "abc", "backend": "openvino int8", "threads": 1}
    | {"date": "today", "commit": "c", "machine": machine()},
    {"record": "greedy", "num_lines": 2, "seconds_per_line": 0.0208}
    | {"scores": [{"name": "BLEU", "value": 20.04, "signature": "v"}]},
    a_run("default", 4000, [0.75, 0.5], draft_cost=0.304, verify_cost=1.25),
    a_run("causal", 4000, [0.7, 0.4, 0.25], draft_cost=0.3, verify_cost=1.26),
]


def test_the_tables_of_ablations() -> None:
    text = ablation_figures.report(RECORDS)
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "| run | updates | minutes | tokens per round | drafting | verifying | ms per line | greedy | other "
        "| relaxed (5, 3.0): tokens per round | ms per line | BLEU |",
        "|" + " --- |" * 12,
        "| default | 4000 | 15.0 | 2.25 | 0.30 | 1.25 | 10.4 | 2.00 | 1 | 3.50 | 8.0 | 18.0 |",
        "| causal | 4000 | 15.0 | 2.35 | 0.30 | 1.26 | 10.4 | 2.00 | 1 | 3.50 | 8.0 | 18.0 |",
        "| run | 1 | 2 | 3 |",
        "|" + " --- |" * 4,
        "| default | 0.750 | 0.500 | 0.000 |",
        "| causal | 0.700 | 0.400 | 0.250 |",
    ]
    assert "3 draft tokens in every round; 2 lines count; greedy search takes 20.8 ms a line, BLEU 20.0 (`v`)." in text
    assert "model weights abc, openvino int8, 1 of" in text


def test_the_page_shows_ablations_and_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, kept = tmp_path / "work", tmp_path / "results"
    work.mkdir()
    ablation_figures.write_records(work, RECORDS)
    assert write_readme.ablations_text(kept) == write_readme.NOTHING
    monkeypatch.setattr(write_readme, "KEPT", kept)
    monkeypatch.setattr(write_readme, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text((Path(run.__file__).parent / "README.md").read_text(encoding="utf-8"))
    monkeypatch.setattr(sys, "argv", ["write_readme.py", "--ablations", str(work)])
    write_readme.main()
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| default | 0.750 | 0.500 | 0.000 |" in text
    assert f"](results/{ablation_figures.PLOT_FILE})" in text
    assert (kept / ablation_figures.PLOT_FILE).read_bytes().startswith(b"\x89PNG")
    assert read_records(kept / ablation_figures.FIGURES_FILE) == RECORDS
