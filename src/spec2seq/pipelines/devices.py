"""Where a model runs, and with how many threads."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from spec2seq.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator


def find_device(name: str | None) -> torch.device:
    """The device of that name; the CPU for None.

    Raises:
        OptionError: there is none.
    """
    try:
        device = torch.device(name or "cpu")
    except RuntimeError as error:
        raise OptionError(f"device={name!r} does not exist; use cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device={name!r}: torch finds no CUDA device here; use cpu")
    return device


@contextmanager
def cpu_threads(num_threads: int | None) -> Iterator[None]:
    """Run with so many CPU threads and put the caller's number back."""
    before = torch.get_num_threads()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        if num_threads is not None:
            torch.set_num_threads(before)
