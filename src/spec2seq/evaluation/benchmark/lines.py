"""The lines that a benchmark decodes, with their references."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec2seq.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class BenchmarkLines:
    """Texts and what a human wrote for them.

    Attributes:
        references: as many as sources, or None where there are none.
        name: of the file.
        num_blank: blank lines that were left out: no system would be asked about them.
    """

    sources: list[str]
    references: list[str] | None
    name: str
    num_blank: int = 0


def read_lines(file: Path, references: Path | None = None, limit: int | None = None) -> BenchmarkLines:
    """The first lines of a file that are not blank.

    Args:
        file: text, one source per line, or .tsv with source and reference; either may be .gz.
        references: one per line of a text file.
        limit: how many lines at most.

    Raises:
        InputError: a file is missing or not UTF-8, there is no line, or the two files differ in length.
    """
    lines = _read(file)
    names_tsv = ".tsv" in file.suffixes
    if names_tsv and references is not None:
        raise InputError(f"{file} has references of its own, in its second column; leave out {references}")
    answers = _read(references) if references else None
    if answers is not None and len(answers) != len(lines):
        raise InputError(
            f"{file} has {len(lines)} lines and {references} has {len(answers)}: they do not belong together"
        )
    if names_tsv:
        columns = [line.split("\t") for line in lines]
        lines = [row[0] for row in columns]
        answers = [row[1] for row in columns] if all(len(row) > 1 for row in columns) else None
    kept = [i for i, line in enumerate(lines) if line.strip()]
    if not kept:
        raise InputError(f"{file} has no line with text; name another file")
    num_blank, kept = len(lines) - len(kept), kept[:limit]
    chosen = None if answers is None else [answers[i] for i in kept]
    return BenchmarkLines([lines[i] for i in kept], chosen, str(file), num_blank)


def _read(file: Path) -> list[str]:
    if not file.is_file():
        raise InputError(f"{file}: there is no such file; check the path")
    try:
        if file.suffix == ".gz":
            with gzip.open(file, "rt", encoding="utf-8", newline="\n") as stream:
                text = stream.read()
        else:
            text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 ({error.reason} at byte {error.start}); convert it first") from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise InputError(f"{file} is no complete gzip file ({error}); copy or download it again") from error
    # only "\n" ends a line: other breaks belong to the text
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines
