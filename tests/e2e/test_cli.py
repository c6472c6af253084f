"""The command line on a tiny real model: text in, text out, runs continued."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spec2seq import Pipeline
from spec2seq.cli import run as cli_run
from spec2seq.cli.main import run
from spec2seq.cli.output import ResumableOutput
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from collections.abc import Callable

GREEDY = ["--num-beams", "1", "--max-new-tokens", "12"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "debian-en-it"
    make_text_model("marian", folder)
    return folder


@pytest.fixture(scope="module")
def outputs(model: Path) -> dict[str, str]:
    """What greedy search says to each of the lines."""
    results = Pipeline.from_pretrained(model, None).generate(LINES, num_beams=1, max_new_tokens=12)
    return {line: result.text for line, result in zip(LINES, results, strict=True)}


@pytest.fixture
def give_stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


def test_stdin_to_stdout_line_by_line(
    model: Path,
    outputs: dict[str, str],
    give_stdin: Callable[[bytes], None],
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    give_stdin(f"{LINES[0]}\n\n \t\n{LINES[1]}\r\n{LINES[2]}".encode())
    assert run(["generate", "--model", str(model), *GREEDY]) == 0
    captured = capsysbinary.readouterr()
    assert captured.out.decode() == f"{outputs[LINES[0]]}\n\n \t\n{outputs[LINES[1]]}\r\n{outputs[LINES[2]]}"
    assert captured.err == b""


def test_files_json_lines_and_stats(
    model: Path, outputs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    arguments = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.jsonl"), "--jsonl", "--stats"]
    assert run(["generate", "--model", str(model), "--drafter", str(model), *arguments, *GREEDY]) == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["text"] for record in records] == [outputs[line] for line in LINES]
    assert set(records[0]) == {"text", "num_tokens", "num_rounds", "num_drafted", "num_accepted", "seconds"}
    assert all(0 < record["num_rounds"] < record["num_tokens"] for record in records)
    assert all(0 < record["num_accepted"] <= record["num_drafted"] for record in records)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.jsonl"]
    error = capsys.readouterr().err
    assert "8 lines in" in error
    num_tokens, num_rounds = (sum(record[name] for record in records) for name in ("num_tokens", "num_rounds"))
    assert f"{num_tokens} tokens in {num_rounds} rounds: {num_tokens / num_rounds:.2f} tokens per round" in error
    assert "speed-up over plain search on the first 8 lines: " in error


def test_margins_of_choices(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SPEC2SEQ_MODELS", str(model.parent))
    # a fixed number: how much is drafted by itself depends on the time that it takes, and on that the last digits
    flags = ["--jsonl", "--output-margin", "--num-draft-tokens", "3", *GREEDY]
    assert run(["translate", *LINES[:2], "", *flags]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    options: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 12, "num_draft_tokens": 3, "output_margin": True}
    results = Pipeline.from_pretrained(model).generate(LINES[:2], **options)
    assert [record["min_margin"] for record in records[:2]] == [result.min_margin for result in results]
    assert "min_margin" not in records[2], "nothing was chosen for a blank line"
    assert run(["translate", LINES[0], "--output-scores", *GREEDY]) == 2
    assert "No such option: --output-scores" in capsys.readouterr().err


def test_translate_finds_the_bundled_model(
    model: Path, outputs: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPEC2SEQ_MODELS", str(model.parent))
    assert run(["translate", LINES[0], LINES[5], *GREEDY]) == 0
    assert capsys.readouterr().out == f"{outputs[LINES[0]]}\n{outputs[LINES[5]]}\n"


def test_beam_search_says_once_that_the_drafter_is_unused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_run, "CHUNK_LINES", 2)
    (tmp_path / "in.txt").write_text("\n".join(LINES[:5]) + "\n")
    assert run(["generate", "--model", str(model), "--input", str(tmp_path / "in.txt"), "--max-new-tokens", "4"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("spec2seq: warning: drafter unused: num_beams=4")
    assert "--num-beams 1" in captured.err
    assert captured.out.count("\n") == 5


def test_print_options_and_info(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["generate", "--model", str(model), "--print-options", "--num-beams", "2", "--bad-words-ids", "5,6;7"]) == 0
    )
    options = json.loads(capsys.readouterr().out)
    assert (options["num_beams"], options["bad_words_ids"], options["renormalize_logits"]) == (2, [[5, 6], [7]], True)
    assert run(["info", str(model)]) == 0
    lines = capsys.readouterr().out.splitlines()
    num_parameters = sum(
        parameter.numel() for parameter in Pipeline.from_pretrained(model, None).model.network.parameters()
    )
    assert "family: marian" in lines
    assert "d_model: 16" in lines
    assert "  num_beams: 4" in lines
    (stored,) = [line for line in lines if line.startswith("parameters: ")]
    assert 0 < int(stored.split()[1].replace(",", "")) <= num_parameters + 200 * 83
    assert any(line.startswith("memory of the weights: float32 0.") for line in lines)


def test_exactness_of_a_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    arguments = ["exactness", "--model", str(model), "--input", str(tmp_path / "in.txt")]
    assert run([*arguments, "--num-lines", "6"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("6 lines, 6 identical, 0 near ties or mistakes;")
    assert "exact: the outputs are identical" in output


def test_help_and_info_load_no_torch(model: Path) -> None:
    calls = [["--help"], ["--version"], ["info", str(model)], ["generate", "--model", str(model), "--print-options"]]
    calls += [[verb, "--help"] for verb in ("generate", "translate", "exactness", "info")]
    code = (
        "import sys; from spec2seq.cli.main import run\n"
        f"assert [run(call) for call in {calls!r}] == [0] * 8\n"
        "print('loaded:', sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: []\n")
    assert "spec2seq 0." in done.stdout


def test_an_interrupted_run_is_continued(
    model: Path,
    outputs: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Interrupted by a signal, started again with the same command: no line is lost, and none is made twice."""
    monkeypatch.setattr(cli_run, "CHUNK_LINES", 2)
    # a test run in the background of a shell inherits that interrupts are ignored
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    (tmp_path / "in.txt").write_text("\n".join(LINES))
    output = tmp_path / "out.txt"
    arguments = ["generate", "--model", str(model), "--input", str(tmp_path / "in.txt"), "-o", str(output), *GREEDY]
    write = ResumableOutput.write

    def write_and_interrupt(self: ResumableOutput, data: bytes) -> None:
        write(self, data)
        if self._part.read_bytes().count(b"\n") >= 5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ResumableOutput, "write", write_and_interrupt)
        assert run(arguments) == 130
    signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err == "spec2seq: error: interrupted\n"
    part = tmp_path / "out.txt.part"
    assert 5 <= part.read_bytes().count(b"\n") < len(LINES)
    assert not output.exists()
    # a marked line would be overwritten if it were made again; half a line is what a killed process leaves
    part.write_bytes(b"MARK" + part.read_bytes()[part.read_bytes().index(b"\n") :] + b"half a li")
    assert run(arguments) == 0
    assert output.read_text() == "\n".join(["MARK", *(outputs[line] for line in LINES[1:])])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]
