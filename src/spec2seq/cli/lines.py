"""Input lines: read, counted and fingerprinted, with a clear word about what is not UTF-8."""

from __future__ import annotations

import codecs
import hashlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from spec2seq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Line:
    """One input line. `number` counts from 1; `ending` is "\\n", "\\r\\n", or "" at the end of the input."""

    number: int
    text: str
    ending: str


@dataclass(frozen=True)
class LineSource:
    """Where lines come from. `digest` and `num_lines` are known for files, not for a stream."""

    name: str
    data: bytes = b""
    stream: BinaryIO | None = None
    digest: str | None = None
    num_lines: int | None = None

    def lines(self) -> Iterator[Line]:
        """All lines. Raises InputError at a line that is not UTF-8."""
        return _decoded(self.stream or _split(self.data), self.name)


def open_lines(file: Path | None, *, is_resumable: bool) -> LineSource:
    """The lines of a file, or of stdin.

    A file is read and checked as a whole, so that mistakes show before hours of work; so is stdin where the run must
    be resumable. Otherwise stdin is a stream.

    Raises:
        InputError: there is no such file, stdin is closed, or what is there is not UTF-8.
        OSError: the file cannot be read.
    """
    if file is None and sys.stdin is None:
        raise InputError("stdin is closed; name a file with --input")
    if file is None and not is_resumable:
        return LineSource("stdin", stream=sys.stdin.buffer)
    if file is not None and not file.exists():
        raise InputError(f"input {file}: there is no such file; check the path")
    if file is not None and file.is_dir():
        raise InputError(f"input {file} is a folder; name a file in it")
    name = "stdin" if file is None else str(file)
    data = sys.stdin.buffer.read() if file is None else file.read_bytes()
    num_lines = sum(1 for _ in _decoded(_split(data), name))
    return LineSource(name, data, digest=hashlib.sha256(data).hexdigest(), num_lines=num_lines)


def in_chunks(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    """Groups of `size` lines. An error in the middle of a group is raised after the lines before it were given out."""
    chunk: list[Line] = []
    try:
        for line in lines:
            chunk.append(line)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except InputError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _split(data: bytes) -> Iterator[bytes]:
    """Lines that end at b"\\n" only (bytes.splitlines would end them at b"\\r" too)."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        yield data[start:end]
        start = end


def _decoded(raw_lines: Iterable[bytes], name: str) -> Iterator[Line]:
    for number, raw in enumerate(raw_lines, start=1):
        line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}, line {number}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; "
                "convert the input, with iconv -f latin1 -t utf8 for instance"
            ) from None
        body = text.rstrip("\n")
        body = body.removesuffix("\r") if text.endswith("\r\n") else body
        yield Line(number, body, text[len(body) :])
