"""fairseq's files are read without running anything they hold, and refused where they are not what they should be."""

from __future__ import annotations

import argparse
import collections
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from spec2seq.errors import CheckpointError, ModelNotFoundError
from spec2seq.weights.fairseq_checkpoint import read_checkpoint
from tests.fairseq_files import drafter_settings, transformer_settings, write_checkpoint, write_old_checkpoint

TENSORS = {"encoder.embed_tokens.weight": torch.arange(6.0).reshape(3, 2), "half": torch.ones(2).half()}


class Command:
    """Runs a shell command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


class Own:
    """A class of somebody's own."""


@pytest.mark.parametrize("write", [write_checkpoint, write_old_checkpoint])
def test_settings_and_weights_are_read(tmp_path: Path, write: Any) -> None:
    path = tmp_path / "model.pt"
    write(path, transformer_settings(update_freq=[1, 2]), TENSORS)
    checkpoint = read_checkpoint(path)
    assert dict(checkpoint.settings) == {**transformer_settings(update_freq=[1, 2]), "block_size": None}
    assert checkpoint.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert checkpoint.tensors[name].dtype == tensor.dtype
        assert torch.equal(checkpoint.tensors[name], tensor)


def test_the_block_size_is_the_tasks_where_the_model_does_not_say_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model.pt", drafter_settings(block_size=7), TENSORS)
    assert read_checkpoint(tmp_path / "model.pt").settings["block_size"] == 7


def test_a_command_is_refused_and_not_run(tmp_path: Path) -> None:
    path, mark = tmp_path / "evil.pt", tmp_path / "was-here"
    torch.save({"model": TENSORS, "args": Command(f"touch {mark}")}, path)
    with pytest.raises(CheckpointError, match=r"holds (posix|nt)\.system, .* could run code"):
        read_checkpoint(path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Command(f"touch {mark}")))  # the file would have done it
    assert mark.exists()


@pytest.mark.parametrize(
    "value",
    [
        Call(eval, "1 + 1"),
        Call(getattr, argparse.Namespace(), "x"),
        Call(argparse.FileType, "w"),
        Call(__import__, "os"),
        Own(),
        torch.nn.Linear(1, 1),
        open,
    ],
    ids=["eval", "getattr", "another of argparse", "import", "class", "module", "function"],
)
@pytest.mark.parametrize("is_in_settings", [True, False])
def test_everything_else_is_refused(tmp_path: Path, value: object, is_in_settings: bool) -> None:
    path = tmp_path / "evil.pt"
    settings = argparse.Namespace(arch="transformer", x=value if is_in_settings else 0)
    torch.save({"model": TENSORS, "args": settings, "extra_state": None if is_in_settings else value}, path)
    with pytest.raises(CheckpointError, match=r"holds [\w.]+, .* could run code"):
        read_checkpoint(path)


def test_stand_ins_do_nothing(tmp_path: Path) -> None:
    """A default factory would be called by a look-up; what a list is made from is never made."""
    path = tmp_path / "odd.pt"
    extra = {"d": collections.defaultdict(dict, a=1), "call": Call(list, (1, 2)), "number": Call(int, "9" * 5000)}
    torch.save({"model": TENSORS, "args": argparse.Namespace(arch="transformer", extra=extra)}, path)
    settings = read_checkpoint(path).settings
    assert settings["extra"]["d"] == {"a": 1}
    assert not isinstance(settings["extra"]["call"], list)
    assert not isinstance(settings["extra"]["number"], int)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_one_clear_line(tmp_path: Path, share: float) -> None:
    path = tmp_path / "model.pt"
    write_checkpoint(path, transformer_settings(), TENSORS)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"is empty|is damaged or cut off") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a checkpoint at all", "is damaged or cut off"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
        (b"<!DOCTYPE html><html>sign in</html>", "is a web page"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)


def test_checkpoints_of_other_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for content in (TENSORS, {"model": {"a": 1}}, [1, 2], {"model": "x"}):
        torch.save(content, path)
        with pytest.raises(CheckpointError, match="is not a fairseq checkpoint"):
            read_checkpoint(path)
    torch.save({"model": TENSORS}, path)
    with pytest.raises(CheckpointError, match=r"neither `cfg\.model` nor `args`"):
        read_checkpoint(path)
    with pytest.raises(ModelNotFoundError, match="there is no file"):
        read_checkpoint(tmp_path / "none.pt")


def test_settings_that_hold_themselves_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    settings = argparse.Namespace(arch="transformer")
    settings.me = settings
    torch.save({"model": TENSORS, "args": settings}, path)
    with pytest.raises(CheckpointError, match="hold themselves"):
        read_checkpoint(path)
