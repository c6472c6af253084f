"""Failures of the libraries that we compare with, told apart from ours."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from spec2seq.errors import Spec2SeqError

if TYPE_CHECKING:
    from collections.abc import Iterator


class PeerError(Spec2SeqError):
    """A library that we compare with failed in a call of its own."""


@contextmanager
def call_of(library: str) -> Iterator[None]:
    """Nothing but a call into the library stands below: whatever is ours fails as such, and no peer drops out by it.

    Raises:
        PeerError: the library refused the call, or ran out of memory.
    """
    try:
        yield
    except (RuntimeError, ValueError, MemoryError) as error:
        raise PeerError(f"{library} failed: {type(error).__name__}: {error}") from error
