"""One command from a checkpoint and a text to a drafter with honest figures, however often it is interrupted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import pytest

from spec2seq import Pipeline
from spec2seq.cli.main import run
from spec2seq.errors import CheckpointError
from spec2seq.training.accelerate import progress
from spec2seq.training.accelerate import run as stages_run
from spec2seq.training.accelerate.progress import StageProgress
from spec2seq.training.distillation import Distillation
from spec2seq.weights.checkpoint import read_json
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from pathlib import Path

SIZES = ["--budget", "1m", "--lines", "40", "--steps", "6", "--num-measured", "4", "--max-new-tokens", "12"]
NOTES = ["distilling", "distilled", "training", "trained", "choice", "measured", "reported"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "marian"
    make_text_model("marian", folder)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "source.txt"
    lines = [f"{one} {two}" for one in LINES for two in LINES]
    file.write_bytes("\n".join([*lines, "", lines[0], ""]).encode() + b"caf\xe9\n")
    return file


def command(model: Path, source: Path, output: Path, *further: str) -> list[str]:
    return ["accelerate", str(model), "--source", str(source), "-o", str(output), "--backend", "torch", *further]


@pytest.fixture(scope="module")
def finished(model: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an acceleration that nothing disturbed wrote."""
    output = tmp_path_factory.mktemp("finished") / "drafter"
    assert run(command(model, source, output, "--relaxed", *SIZES)) == 0
    return output


def notes(output: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in (output / "accelerate").glob("*.json")}


def test_from_a_text_to_a_measured_drafter(finished: Path, model: Path) -> None:
    measured = json.loads((finished / "accelerate" / "measured.json").read_text())
    figures = {one["system"]: one for one in measured["systems"]}
    assert list(figures)[:3] == ["greedy", "beam 5", "speculative"]
    assert figures["greedy"]["tokens_per_round"] == 1.0
    assert figures["speculative"]["num_different"] == 0
    assert figures["speculative"]["tokens_per_round"] >= 1.0
    card = (finished / "README.md").read_text(encoding="utf-8")
    assert card.count("## Measured") == 1
    assert card.count("| speculative |") == 1
    for name in ("tokens_per_round.png", "time_split.png"):
        assert (finished / name).read_bytes().startswith(b"\x89PNG")
        assert f"]({name})" in card
    assert not (finished / "training").exists()


def test_the_chosen_number_of_draft_tokens_is_the_default(finished: Path, model: Path) -> None:
    choice = json.loads((finished / "accelerate" / "choice.json").read_text())
    assert choice["seconds"] == min(one["seconds"] for one in choice["tried"])
    assert [one["num_draft_tokens"] for one in choice["tried"]] == [1, 2, 3, 4, 6]
    assert read_json(finished / "config.json")["num_draft_tokens"] == choice["num_draft_tokens"]
    make_drafter = Pipeline.from_pretrained(model, finished, "torch").make_drafter
    assert make_drafter is not None
    assert make_drafter().default_num_draft_tokens == choice["num_draft_tokens"]
    assert [(one["top_beta"], one["tau"]) for one in choice["relaxed"]["tried"]] == [(2, 1), (3, 1), (3, 2), (5, 3)]


def test_a_number_of_draft_tokens_that_cannot_be_is_refused(finished: Path, model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(finished, damaged)
    settings = read_json(damaged / "config.json")
    (damaged / "config.json").write_text(json.dumps({**settings, "num_draft_tokens": 0}))
    with pytest.raises(CheckpointError, match="num_draft_tokens must be 1 or more, not 0"):
        Pipeline.from_pretrained(model, damaged, "torch")


def test_help_loads_no_torch() -> None:
    script = "import sys; from spec2seq.cli.main import run; code = run(['accelerate', '--help']); "
    script += "sys.exit(code or 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "--budget" in shown


def test_held_out_lines_are_not_distilled(finished: Path) -> None:
    trained = (finished / "accelerate" / "training.txt").read_text(encoding="utf-8").splitlines()
    all_lines = [f"{one} {two}" for one in LINES for two in LINES]
    assert len(trained) == 40
    assert set(trained) < set(all_lines)
    assert not set(trained) & set(all_lines[9::10])


def test_a_finished_acceleration_only_tells(
    finished: Path, model: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = notes(finished)
    for name in ("time_lines", "train_drafter", "write_report"):
        monkeypatch.setattr(stages_run, name, None)
    capsys.readouterr()
    assert run(command(model, source, finished, "--relaxed", *SIZES)) == 0
    assert "| speculative |" in capsys.readouterr().out
    assert notes(finished) == before


def test_interrupted_in_every_stage(
    model: Path,
    source: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "drafter"
    distil, shards = Distillation._distil, []

    def counted(self: Distillation, shard: int, on_line: Any) -> Any:
        shards.append(shard)
        return distil(self, shard, on_line)

    monkeypatch.setattr(Distillation, "_distil", counted)
    monkeypatch.setattr(stages_run, "SHARD_LINES", 15)
    kept: dict[str, bytes] = {}
    for stage, at in {
        "distilling": 0,
        "distilled": 20,
        "trained": 4,
        "choice": 2,
        "measured": 2,
        "reported": 0,
    }.items():
        with monkeypatch.context() as patch:
            _interrupt(patch, output, stage, at)
            assert run(command(model, source, output, "--relaxed", *SIZES)) == 130
        assert f"what is done is kept in {output}: the same command continues there" in capsys.readouterr().err
        now = notes(output)
        assert {name: now[name] for name in kept} == kept
        assert stage not in now
        kept = now
    assert run(command(model, source, output, "--relaxed", *SIZES)) == 0
    assert {name: notes(output)[name] for name in kept} == kept
    assert set(notes(output)) == {"job", *NOTES}
    assert shards == [0, 1, 1, 2]  # what was distilled is not distilled again
    assert (output / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
    assert (output / "README.md").read_text().count("## Measured") == 1


def _interrupt(patch: pytest.MonkeyPatch, output: Path, stage: str, at: int) -> None:
    """Ctrl-C in a stage, behind so many lines or updates."""
    if at == 0:
        function = {"distilling": "time_lines", "reported": "write_report"}[stage]
        patch.setattr(stages_run, function, _raise_interrupt)
        return
    before = output / "accelerate" / f"{NOTES[NOTES.index(stage) - 1]}.json"

    def tell(self: StageProgress, done: int, total: int, remark: str = "") -> None:
        if before.exists() and done >= at:
            raise KeyboardInterrupt

    patch.setattr(StageProgress, "__call__", tell)


def _raise_interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.exhaustive
def test_with_time_two_kinds_are_tried_and_the_faster_one_is_kept(
    model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "drafter"
    assert run(command(model, source, output, *SIZES, "--budget", "1h", "--steps", "2", "--num-measured", "2")) == 0
    tried = {
        kind: json.loads((output / "accelerate" / f"tried-{kind}.json").read_text()) for kind in ("feature", "spec")
    }
    ratios = {kind: one["seconds"] / one["greedy_seconds"] for kind, one in tried.items()}
    assert read_json(output / "config.json")["kind"] == min(ratios, key=ratios.__getitem__)
    assert not list((output / "accelerate").glob("trial-*"))


def test_other_arguments_for_the_same_folder_are_refused_by_name(
    finished: Path, model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = command(model, source, finished, "--relaxed", *SIZES)
    other = tmp_path / "other.txt"
    other.write_text(source.read_bytes().decode(errors="ignore").replace("tool", "box"))
    wrong = {
        "--steps was 6 and is 7": [*base, "--steps", "7"],
        "--budget was 60.0 and is 3600.0": [*base, "--budget", "1h"],
        "--kind was None and is 'spec'": [*base, "--kind", "spec"],
        "--source was '": [*base, "--source", str(other)],
    }
    for message, arguments in wrong.items():
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "name another folder with -o" in error


def test_wrong_calls(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "drafter"
    few, foreign, full, bare = (tmp_path / name for name in ("few.txt", "foreign.txt", "full", "bare"))
    few.write_text("".join(f"line {i} of a text\n" for i in range(59)) * 2)
    foreign.write_text("".join(f"{chr(0x4E00 + i)}文件包含库和工具的说明\n" for i in range(80)), encoding="utf-8")
    full.mkdir()
    (full / "thesis.txt").write_text("mine")
    shutil.copytree(model, bare, ignore=shutil.ignore_patterns("*.spm", "vocab.json", "tokenizer*"))
    base = [*command(model, source, output), *SIZES]
    wrong = {
        "has 59 different lines of text, but 60 are needed at least": [*base, "--source", str(few)],
        "unknown to the model's tokenizer; give text in the language": [*base, "--source", str(foreign)],
        "there is no such file": [*base, "--source", str(tmp_path / "none.txt")],
        "has no tokenizer": [*command(bare, source, output), *SIZES],
        "is not empty and holds no acceleration to continue": [*command(model, source, full), *SIZES],
        "--budget 'soon' is no time; write 2h, 45m": [*base, "--budget", "soon"],
        "--steps 0 is not allowed: use 1 or more": [*base, "--steps", "0"],
        "--lines -1 is not allowed": [*base, "--lines", "-1"],
        "target_lang": [*base, "--target-lang", "it"],
    }
    for message, arguments in wrong.items():
        assert run(arguments) == 2, message
        assert message in capsys.readouterr().err
    assert (full / "thesis.txt").read_text() == "mine"
    shutil.rmtree(output, ignore_errors=True)
    usage = namedtuple("usage", ["total", "used", "free"])(10**9, 10**9, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert run(base) == 2
    assert "0 MB are free there, and about" in capsys.readouterr().err
    assert not output.exists()


def test_progress_tells_now_and_then_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    clock = iter([0.0, 10.0, 20.0, 30.0, 50.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    show = StageProgress(told.append, "lines")
    for done in (100, 110, 120, 140):
        show(done, 300)
    assert told == ["  110 of 300 lines, 3 min left", "  140 of 300 lines, 3 min left"]
