"""Wrong calls and failed work: one clear line, the right exit code, and nothing lost."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.cli import run as cli_run
from spec2seq.cli import translate
from spec2seq.cli.main import run
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from collections.abc import Callable

GREEDY = ["--num-beams", "1", "--max-new-tokens", "8"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "marian"
    make_text_model("marian", folder)
    return folder


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "nllb"
    make_text_model("nllb", folder)
    return folder


@pytest.fixture
def fails(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Callable[[int, list[str], str], str]:
    """Run a call on these bytes as stdin; expect this exit code and exactly one line on stderr, which is returned."""

    def check(code: int, arguments: list[str], stdin: str = "The small package\n") -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        assert run(arguments) == code
        error = capsysbinary.readouterr().err.decode()
        assert error.startswith("spec2seq: error: "), error
        assert error.count("\n") == 1, error
        return error

    return check


def copied(model: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def generate(model: Path | str, *arguments: str) -> list[str]:
    return ["generate", "--model", str(model), *arguments]


def test_missing_folder(fails: Callable[..., str], tmp_path: Path) -> None:
    error = fails(2, generate(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in error
    fails(2, ["info", str(tmp_path / "nowhere")])


def test_wrong_family(fails: Callable[..., str], model: Path, tmp_path: Path) -> None:
    folder = copied(model, tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert", "architectures": ["BertModel"]}))
    error = fails(2, generate(folder))
    assert "bert" in error
    assert "marian" in error
    assert "bert" in fails(2, ["info", str(folder)])


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 27000000\n", "git"),
        (b"", "model.safetensors"),
        (b"\x80\x02}q\x00.", "model.safetensors"),
        (None, "model.safetensors"),
    ],
)
def test_damaged_weights(
    fails: Callable[..., str], model: Path, tmp_path: Path, content: bytes | None, word: str
) -> None:
    folder = copied(model, tmp_path / "damaged")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2] if content is None else content)
    assert word in fails(1, generate(folder))


def test_too_many_draft_tokens(fails: Callable[..., str], model: Path) -> None:
    error = fails(2, generate(model, *GREEDY, "--num-draft-tokens", "9000"))
    assert "num_draft_tokens=9000 exceeds the" in error


def test_unknown_and_wrong_options(fails: Callable[..., str], model: Path) -> None:
    assert "--num-beams" in fails(2, generate(model, "--num-beam", "3"))
    assert "--model" in fails(2, ["generate"])
    assert "generate" in fails(2, ["generat"])
    assert "num_beams=0 is not allowed: it must be an integer of at least 1" in fails(
        2, generate(model, "--num-beams", "0")
    )
    assert "--eos-token-id 'x' is not allowed" in fails(2, generate(model, "--eos-token-id", "x"))
    assert "early_stopping='maybe' is not allowed" in fails(2, generate(model, "--early-stopping", "maybe"))
    assert "tau" in fails(2, generate(model, *GREEDY, "--tau", "1"))
    assert "float32" in fails(2, generate(model, "--dtype", "float13"))
    assert "prompt_lookup" in fails(2, generate(model, "--drafter", "promt_lookup"))
    assert "target_lang='fra'" in fails(2, generate(model, "--target-lang", "fra"))


def test_unknown_and_missing_language(fails: Callable[..., str], nllb: Path) -> None:
    assert "did you mean ita_Latn?" in fails(2, generate(nllb, "--target-lang", "ita_Lat"))
    assert "did you mean deu_Latn?" in fails(2, generate(nllb, "--source-lang", "de", "--target-lang", "ita_Latn"))
    assert "target_lang is missing" in fails(2, generate(nllb))


def test_input_that_is_not_utf8_loses_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = f"{LINES[0]}\n{LINES[1]}\n".encode() + b"caf\xe9\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert run(generate(model, *GREEDY)) == 2
    captured = capsysbinary.readouterr()
    assert captured.out.count(b"\n") == 2, "the lines before it are done"
    assert captured.err.startswith(b"spec2seq: error: stdin, line 3: byte 4 (0xe9) is not UTF-8")
    (tmp_path / "in.txt").write_bytes(data)
    assert run(generate(model, "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt"))) == 2
    assert b"in.txt, line 3: byte 4" in capsysbinary.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_full_disk_on_an_output_device(fails: Callable[..., str], model: Path) -> None:
    said = fails(1, generate(model, *GREEDY, "--output", "/dev/full"))
    assert "No space left on device: /dev/full" in said
    assert Path("/dev/full").is_char_device()
    assert not Path("/dev/full.part").exists()


def test_full_disk_loses_nothing_written(
    fails: Callable[..., str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_run, "CHUNK_LINES", 2)
    text = "".join(f"{line}\n" for line in LINES)
    room = 2
    write = os.write

    def write_while_there_is_room(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        room -= 1
        return write(descriptor, data)

    arguments = generate(model, *GREEDY, "--output", str(tmp_path / "out"))
    with monkeypatch.context() as patch:
        patch.setattr("spec2seq.cli.output.os.write", write_while_there_is_room)
        assert "No space left on device" in fails(1, arguments, text)
    part = (tmp_path / "out.part").read_bytes()
    assert part.count(b"\n") >= 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run(arguments) == 0
    assert (tmp_path / "out").read_bytes().startswith(part)
    assert (tmp_path / "out").read_bytes().count(b"\n") == len(LINES)


def test_stdout_that_cannot_be_written(model: Path) -> None:
    """In a process of its own: the interpreter flushes stdout once more when it ends."""
    command = [sys.executable, "-c", "from spec2seq.cli.main import main; main()", "info", str(model)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"spec2seq: error: No space left on device\n")
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b""), "a reader that has gone is told nothing"


def test_a_part_of_another_job(fails: Callable[..., str], model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.part").write_bytes(b"one\n")
    (tmp_path / "out.part.json").write_text('{"input": "another"}')
    error = fails(2, generate(model, *GREEDY, "--output", str(tmp_path / "out")))
    assert "belongs to another job" in error
    assert "delete it and" in error
    assert (tmp_path / "out.part").read_bytes() == b"one\n"


def test_missing_files(fails: Callable[..., str], model: Path, tmp_path: Path) -> None:
    assert "in.txt: there is no such file" in fails(2, generate(model, "--input", str(tmp_path / "in.txt")))
    assert "is a folder" in fails(2, generate(model, "--input", str(tmp_path)))
    assert "is a folder" in fails(2, generate(model, "--output", str(tmp_path)))
    assert "name of the model is empty" in fails(2, ["generate", "--model", ""])
    assert "neither a known drafter nor a folder" in fails(2, generate(model, "--drafter", ""))
    assert "there is no folder" in fails(2, generate(model, "--output", str(tmp_path / "nowhere" / "out")))
    folder = copied(model, tmp_path / "no_tokenizer")
    for name in ("vocab.json", "source.spm", "target.spm", "tokenizer_config.json"):
        (folder / name).unlink()
    assert "has no tokenizer" in fails(2, generate(folder))


@pytest.mark.parametrize(("redirection", "flag"), [("<&-", "--input"), (">&- <$LINES", "--output")])
def test_closed_streams(model: Path, tmp_path: Path, redirection: str, flag: str) -> None:
    lines = tmp_path / "lines"
    lines.write_text("The small package\n", encoding="utf-8")
    call = f'"$PYTHON" -c "from spec2seq.cli.main import main; main()" generate --model "$MODEL" {redirection}'
    variables = {**os.environ, "PYTHON": sys.executable, "MODEL": str(model), "LINES": str(lines)}
    done = subprocess.run(["sh", "-c", call], env=variables, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("spec2seq: error: ")
    assert done.stderr.endswith(f"name a file with {flag}\n")
    assert done.stderr.count("\n") == 1


def test_missing_bundled_model(fails: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC2SEQ_MODELS", str(tmp_path))
    monkeypatch.setattr(translate, "__file__", str(tmp_path / "src" / "spec2seq" / "cli" / "translate.py"))
    error = fails(2, ["translate", "Hello"])
    assert f"$SPEC2SEQ_MODELS ({tmp_path})" in error
    assert str(tmp_path / "models") in error
    assert "use one of both" in fails(2, ["translate", "Hello", "--output", "x"])


def test_not_enough_positions(fails: Callable[..., str], model: Path) -> None:
    assert "max_new_tokens=5000 exceeds the 128 positions" in fails(2, generate(model, "--max-new-tokens", "5000"))
    long_line = " ".join(LINES)
    error = fails(2, generate(model, *GREEDY, "--long-input", "error"), f"short\n{long_line}\n")
    assert "line 2 has" in error
    assert "at most 128" in error


def test_not_enough_memory(fails: Callable[..., str], model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*arguments: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99999999999 bytes")

    monkeypatch.setattr(TorchVerifier, "encode", allocate)
    error = fails(1, generate(model, *GREEDY, "--batch-tokens", "8000"))
    assert "not enough memory for batches of batch_tokens=8000" in error


def test_nan_names_the_line(
    fails: Callable[..., str], model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from_encoder = TorchVerifier.from_encoder

    def poison(self: TorchVerifier, hidden: torch.Tensor, lengths: torch.Tensor) -> object:
        hidden = hidden.clone()
        hidden[lengths == lengths.max()] = float("nan")
        return from_encoder(self, hidden, lengths)

    monkeypatch.setattr(TorchVerifier, "from_encoder", poison)
    error = fails(1, generate(model, *GREEDY, "--output", str(tmp_path / "out")), f"x\n{LINES[0]}\ny\n")
    assert "line 2: the model produced NaN or infinite scores" in error
    assert (tmp_path / "out.part").read_bytes().count(b"\n") == 1


def test_exactness_needs_something_to_compare(fails: Callable[..., str], model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("x\n")
    arguments = ["exactness", "--model", str(model), "--input", str(tmp_path / "in.txt")]
    assert "no drafter" in fails(2, [*arguments, "--drafter", "none"])
    assert "num_beams=4" in fails(2, [*arguments, "--num-beams", "4"])
    assert "do_sample=True" in fails(2, [*arguments, "--do-sample"])


def test_the_output_cannot_be_the_input(
    fails: Callable[[int, list[str], str], str], model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The small package\n", encoding="utf-8")
    call = ["generate", "--model", str(model), "--input", str(file), "--output", f"{tmp_path}/./text.txt"]
    assert "is the input itself" in fails(2, call)
    assert file.read_text(encoding="utf-8") == "The small package\n"


def test_nothing_to_compare_is_not_exact(
    fails: Callable[[int, list[str], str], str], model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "empty.txt"
    file.touch()
    assert "has no line" in fails(2, ["exactness", "--model", str(model), "--input", str(file)])
