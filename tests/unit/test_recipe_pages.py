"""The recipe's commands, tables and page."""

from __future__ import annotations

import importlib
import json
import re
import sys
from argparse import ArgumentTypeError
from dataclasses import replace
from pathlib import Path
from typing import Any

import figures
import pytest
import run
import typer.main
import write_readme
from compared_systems import ComparedSystem, NamedDrafter, exact_systems, main_systems

from spec2seq.cli.main import app
from spec2seq.errors import InputError, OptionError, Spec2SeqError
from spec2seq.evaluation.benchmark.provenance import machine
from spec2seq.evaluation.paired_bootstrap import ScoreDifference
from spec2seq.evaluation.quality import Score
from spec2seq.evaluation.system_figures import SystemFigures

RECIPE = Path(run.__file__).parent
PAGE = (RECIPE / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("scale", [run.FULL, run.SMOKE], ids=["full", "smoke"])
def test_every_stage_is_a_command_that_exists(
    scale: run.Scale, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verbs: Any = typer.main.get_command(app)
    stages = run.stages(tmp_path, scale, [tmp_path / "pairs.tsv"], 2)
    for program, *arguments in (stage.command for stage in stages):
        if program.endswith(".py"):
            monkeypatch.setattr(sys, "argv", [program, *arguments])
            module = importlib.import_module(Path(program).stem)
            if hasattr(module, "parse_arguments"):
                module.parse_arguments()
        else:
            verbs.commands[arguments[0]].make_context(arguments[0], arguments[1:])
    assert [stage.name for stage in stages] == [
        *("corpus", "tokenizer", "verifier", "model", "pairs", "spec", "spec-6+2-short", "spec-6+1-short", "feature"),
        *("blockwise", "small", "results"),
    ]


def test_stages_hand_over_what_the_next_ones_read(tmp_path: Path) -> None:
    made: list[str] = []
    for stage in run.stages(tmp_path, run.FULL, None, 2):
        read = [part for part in stage.command[1:] if str(tmp_path) in part]
        if stage.name == "model":
            made.append(read.pop())
        else:
            place = stage.command.index("-o") + 1
            read.remove(stage.command[place])
            made.append(stage.command[place])
        for part in read:
            path = re.sub(r":[\d,]+$", "", part.rpartition("=")[2])
            assert any(path == folder or path.startswith(f"{folder}/") for folder in made[:-1]), (stage.name, part)


def test_a_failed_stage_is_named_and_its_time_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, time; time.sleep(0.1); sys.exit(int(sys.argv[1]))")
    run.run_stage(run.Stage("good", [str(script), "0"]), tmp_path)
    with pytest.raises(Spec2SeqError, match="stage bad failed with exit code 3"):
        run.run_stage(run.Stage("bad", [str(script), "3"]), tmp_path)
    assert str(script) in capsys.readouterr().out
    notes = run.read_notes(tmp_path / run.STAGES_FILE)
    assert {name: processes for name, (_, processes) in notes.items()} == {"good": 1, "bad": 1}
    run.run_stage(run.Stage("bad", [str(script), "0"]), tmp_path)  # goes on: both times count
    assert run.read_notes(tmp_path / run.STAGES_FILE)["bad"][0] > notes["bad"][0] > 0
    assert run.Stage("many", ["x.py"], 3).line()[1:] == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "x.py")
    ]


def test_a_trial_and_a_full_run_have_folders_of_their_own(tmp_path: Path) -> None:
    run.check_work(tmp_path / "work", "smoke")
    run.check_work(tmp_path / "work", "smoke")
    with pytest.raises(OptionError, match="holds a smoke run; name another folder for a full one"):
        run.check_work(tmp_path / "work", "full")


@pytest.mark.parametrize(
    ("text", "drafter"),
    [
        ("a=b/c", NamedDrafter("a", "b/c")),
        ("6+2, 30 updates=/x y/z:5,10", NamedDrafter("6+2, 30 updates", "/x y/z", (5, 10))),
        ("a=b:7", NamedDrafter("a", "b", (7,))),
    ],
)
def test_named_drafters(text: str, drafter: NamedDrafter) -> None:
    assert NamedDrafter.parse(text) == drafter


@pytest.mark.parametrize("text", ["folder", "=folder", "name=", ""])
def test_what_is_no_named_drafter(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is not NAME=FOLDER"):
        NamedDrafter.parse(text)


def test_systems_and_their_files() -> None:
    systems = [*main_systems("d", None), *exact_systems([NamedDrafter("heads", "h", (10, 25)), NamedDrafter("s", "t")])]
    names = ["greedy", "beam 5", "exact", "relaxed (3, 1.0)", "relaxed (5, 3.0)", "drafter alone"]
    assert [one.name for one in systems] == [*names, "heads, k = 10", "heads, k = 25", "s"]
    assert len({one.file_name for one in systems}) == len(systems)
    assert [one.name for one in main_systems(None, None)] == names[:2]
    assert ComparedSystem("relaxed (3, 1.0)").file_name == "relaxed_3_1.0.jsonl"


def test_a_system_is_known_by_its_drafters_weights(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    exact = ComparedSystem("exact", str(tmp_path), 5)
    first = exact.job()
    weights.write_bytes(b"two")
    assert exact.job() != first
    assert replace(exact, name="other").job() == exact.job()


def system(
    name: str, num_loops: int, num_different: int, rates: tuple[float | None, ...], bleu: float, *to_beams: float
) -> dict[str, Any]:
    """The record of a system; rates are tokens per round, acceptance and seconds per line."""
    rate, acceptance, seconds = rates
    differences = [ScoreDifference("BLEU", *to_beams)] if to_beams else []
    scores = [Score("BLEU", bleu, "BLEU|v")]
    one = SystemFigures(name, 2, num_loops, num_different, rate, acceptance, seconds, scores, differences)
    return {"record": "system", **one.as_dict(), "num_draft_tokens": 25 if name == "alone" else None}


RUN = {"record": "run", "lines": 3, "input": "f.tsv", "weights": "abc", "backend": "torch", "threads": 1}
RECORDS: list[dict[str, Any]] = [
    {**RUN, "date": "today", "commit": "c", "machine": machine()},
    system("greedy", 1, 0, (1.0, None, 0.25), 20.04, -0.5, -1.25, 0.3),
    system("beam 5", 0, 2, (None, None, 0.5), 20.54),
    system("alone", 3, 3, (None, 0.5, None), 0.0, -20.54, -21.0, -20.0),
    {"record": "slots", "drafter": "deep", "slots": 5, "tokens_per_round": 3.123},
    {"record": "slots", "drafter": "deep", "slots": 10, "tokens_per_round": 4.0},
    {"record": "slots", "drafter": "flat", "slots": 5, "tokens_per_round": 2.0},
]


def test_the_tables(tmp_path: Path) -> None:
    figures.write_records(tmp_path, RECORDS)
    text = (tmp_path / figures.TABLE_FILE).read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "| system | k | tokens per round | acceptance | ms per line | times greedy | BLEU | to beam 5 "
        "| other | loops |",
        "|" + " --- |" * 10,
        "| greedy |  | 1.00 |  | 250.0 | 1.00 | 20.0 | -0.5 [-1.2, +0.3] | 0 | 1 |",
        "| beam 5 |  |  |  | 500.0 | 0.50 | 20.5 |  | 2 | 0 |",
        "| alone | 25 |  | 0.500 |  |  | 0.0 | -20.5 [-21.0, -20.0] | 3 | 3 |",
        "| drafter | 5 slots | 10 slots |",
        "|" + " --- |" * 3,
        "| deep | 3.12 | 4.00 |",
        "| flat | 2.00 |  |",
    ]
    assert "2 lines count" in text
    assert "BLEU: `BLEU|v`" in text
    assert (tmp_path / figures.PLOT_FILE).read_bytes().startswith(b"\x89PNG")
    figures.write_records(tmp_path, RECORDS[:-3])
    assert "slots" not in (tmp_path / figures.TABLE_FILE).read_text(encoding="utf-8")


def test_the_page_is_filled_from_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, kept, page = tmp_path / "work", tmp_path / "kept", tmp_path / "page.md"
    work.mkdir()
    marks = [f"<!-- {part}: write_readme.py -->\nold\n<!-- end of {part} -->\n" for part in ("figures", "ablations")]
    page.write_text("between\n".join(["before\n", *marks, "after\n"]))
    monkeypatch.setattr(write_readme, "KEPT", kept)
    monkeypatch.setattr(write_readme, "PAGE", page)

    def fill(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["write_readme.py", *map(str, arguments)])
        write_readme.main()
        return page.read_text(encoding="utf-8")

    assert fill().count(write_readme.NOTHING) == 2
    with pytest.raises(InputError, match="there is no such file; run evaluate"):
        fill("--results", work)
    figures.write_records(work, RECORDS)
    notes = [("corpus", 30.0), ("verifier", 600.0), ("verifier", 60.0)]
    lines = [json.dumps({"stage": stage, "seconds": seconds, "processes": 2}) + "\n" for stage, seconds in notes]
    (work / run.STAGES_FILE).write_text("".join(lines))
    text = fill("--results", work, "--stages", work / run.STAGES_FILE)
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| greedy |  | 1.00 |" in text
    assert "| corpus | 2 | 0.5 |\n| verifier | 2 | 11.0 |" in text
    assert (kept / figures.PLOT_FILE).exists()
    assert text.count(write_readme.NOTHING) == 1  # no ablations yet
    assert fill() == text


def test_the_page_shows_the_results_that_are_kept() -> None:
    kept = write_readme.KEPT
    for section, text in (
        ("figures", write_readme.figures_text(kept)),
        ("ablations", write_readme.ablations_text(kept)),
    ):
        assert write_readme.fill(PAGE, section, text) == PAGE, "run write_readme.py"


def test_the_page_names_every_file_and_no_other() -> None:
    named = set(re.findall(r"[\w/-]*?(\w+\.py)", PAGE))
    assert named == {path.name for path in RECIPE.glob("*.py")} - {"command_line.py"}


def test_the_page_uses_options_that_exist() -> None:
    for script, rest in re.findall(r"(\w+\.py)([^`\n]*)", PAGE):
        source = (RECIPE / script).read_text(encoding="utf-8")
        for option in re.findall(r" (--[a-z-]+)", rest):
            assert f'"{option}"' in source, (script, option)
