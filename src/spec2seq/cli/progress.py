"""A progress bar on stderr when somebody watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def line_progress(num_lines: int | None, num_done: int) -> Iterator[Callable[[], None]]:
    """Show finished lines while inside; gives a function to call after each. `num_lines` None means unknown."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), "lines", TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("lines", total=num_lines, completed=num_done)
        yield lambda: progress.advance(task)
