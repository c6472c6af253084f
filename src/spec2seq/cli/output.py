"""Where output lines go: stdout, a device, or a file that is written beside its name until it is complete."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Protocol

from spec2seq.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import FileIO
    from pathlib import Path


class Output(Protocol):
    """A place for lines. `num_done` lines are there already from a run that was interrupted."""

    num_done: int

    def write(self, data: bytes) -> None:
        """Write all of it and keep nothing back in memory, so that a killed run loses no finished line."""

    def finish(self) -> None:
        """Called once, when all lines were written."""


class StreamOutput:
    """stdout."""

    num_done = 0

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def finish(self) -> None:
        pass


class DeviceOutput:
    """A path that is no regular file (a pipe, /dev/null): written directly, never renamed over."""

    num_done = 0

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        _write_all(self._file, data)

    def finish(self) -> None:
        self._file.close()


class ResumableOutput:
    """PATH.part, renamed to PATH at the end; PATH.part.json says which job it belongs to.

    A part without any whole line is nobody's: a job that failed at once is no obstacle to the next one.

    Raises:
        OptionError: there is a part of another job.
        OSError: a file cannot be written.
    """

    def __init__(self, path: Path, job: Mapping[str, object]) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._note = path.with_name(path.name + ".part.json")
        if self._part.exists() and b"\n" in self._part.read_bytes():
            self._check_job(job)
        else:
            self._note.write_text(json.dumps(job, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        self._file = self._part.open("ab", buffering=0)
        self.num_done = self._drop_unfinished_line()

    def write(self, data: bytes) -> None:
        _write_all(self._file, data)

    def finish(self) -> None:
        self._file.close()
        self._part.replace(self._path)
        self._note.unlink(missing_ok=True)

    def _check_job(self, job: Mapping[str, object]) -> None:
        try:
            other = json.loads(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            other = {}
        # compared as JSON, which knows no tuples
        mine = json.loads(json.dumps(job))
        if other != mine:
            differing = sorted(name for name in {*mine, *other} if mine.get(name) != other.get(name))
            raise OptionError(
                f"{self._part} belongs to another job ({', '.join(differing)} differ); delete it and {self._note} to "
                "start anew, or choose another --output"
            )

    def _drop_unfinished_line(self) -> int:
        """Cut what a killed run left of its last line. Returns the number of complete lines."""
        content = self._part.read_bytes()
        os.truncate(self._part, content.rfind(b"\n") + 1)
        return content.count(b"\n")


def open_output(path: Path | None, job: Mapping[str, object]) -> Output:
    """The place for a job's lines; `job` is all that makes its output what it is.

    Raises:
        OptionError: a part of another job is in the way, or stdout is closed.
        OSError: the place cannot be written to.
    """
    if path is None:
        if sys.stdout is None:
            raise OptionError("stdout is closed; name a file with --output")
        return StreamOutput()
    if is_resumable(path):
        return ResumableOutput(path, job)
    return DeviceOutput(path)


def is_resumable(path: Path | None) -> bool:
    """Whether an interrupted run into this path can be continued.

    Raises:
        OptionError: there is no folder to put it in, or it is a folder itself.
    """
    if path is not None and path.is_dir():
        raise OptionError(f"output {path} is a folder; name a file in it")
    if path is not None and not path.parent.is_dir():
        raise OptionError(f"output {path}: there is no folder {path.parent}; make it first")
    return path is not None and (path.is_file() or not path.exists())


def _write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(file.fileno(), view) :]
    except OSError as error:
        error.filename = file.name  # which it does not know otherwise
        raise
