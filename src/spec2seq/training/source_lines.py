"""The lines of a training text, taken as they are: one bad line must not cost the others."""

from __future__ import annotations

import codecs
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec2seq.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class SourceLines:
    """A text file read as a whole.

    Attributes:
        name: its path as the caller said it.
        digest: SHA-256 of its bytes.
        raw: its lines without their endings, not decoded yet.
    """

    name: str
    digest: str
    raw: list[bytes]

    @classmethod
    def read(cls, file: Path) -> SourceLines:
        """Lines end at a newline only; a byte order mark at the start is dropped.

        Raises:
            InputError: there is no such file, or nothing in it.
        """
        if not file.is_file():
            raise InputError(f"source {file}: there is no such file; check the path")
        data = file.read_bytes()
        lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
        if not lines[-1]:
            lines.pop()
        if not lines:
            raise InputError(f"source {file} is empty; give a UTF-8 text with one input per line")
        return cls(str(file), hashlib.sha256(data).hexdigest(), [line.removesuffix(b"\r") for line in lines])
