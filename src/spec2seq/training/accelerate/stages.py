"""What stages came to, each in a file that is there as soon as the stage is done: a finished stage is not repeated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spec2seq.errors import CheckpointError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

WORK_FOLDER = "accelerate"
_JOB_FILE = "job.json"


class Stages:
    """The notes of one acceleration.

    Args:
        output: the drafter's folder; notes and intermediate files are in "accelerate" in it.
        job: all that decides what comes out, by name.

    Raises:
        OptionError: the folder holds something else, or an acceleration with other arguments.
        CheckpointError: a note is damaged.
    """

    def __init__(self, output: Path, job: Mapping[str, object]) -> None:
        self.folder = output / WORK_FOLDER
        mine, file = json.loads(json.dumps(job)), self.folder / _JOB_FILE
        if file.exists():
            _check_job(output, mine, _read(file))
            return
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise OptionError(f"{output} is not empty and holds no acceleration to continue; name a new folder with -o")
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(file, mine)

    def run(self, name: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What a stage came to: read where it was done before, else worked out and noted."""
        file = self.folder / f"{name}.json"
        if not file.exists():
            _write(file, work())
        return _read(file)


def write_whole(file: Path, text: str) -> None:
    """Write a file so that it is there as a whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(text, encoding="utf-8", newline="\n")
    part.replace(file)


def _write(file: Path, note: Mapping[str, Any]) -> None:
    write_whole(file, json.dumps(note, indent=2) + "\n")


def _read(file: Path) -> dict[str, Any]:
    try:
        note: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged ({error}): delete it, and the stage is done again") from error
    return note


def _check_job(output: Path, mine: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    differing = [
        f"{name} was {other.get(name)!r} and is {mine.get(name)!r}"
        for name in sorted({*mine, *other})
        if mine.get(name) != other.get(name)
    ]
    if differing:
        raise OptionError(
            f"{output} holds an acceleration with other arguments: {'; '.join(differing)}. Repeat those to continue "
            "it, or name another folder with -o"
        )
