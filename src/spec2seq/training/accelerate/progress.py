"""Lines for people while a stage runs: how far it is, and how long it will take."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from spec2seq.training.accelerate.request import told_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

TELL_SECONDS = 15.0


class StageProgress:
    """Tells now and then how much of a stage is done.

    Args:
        tell: told the lines.
        unit: what is counted: "lines", "updates".
    """

    def __init__(self, tell: Callable[[str], None], unit: str) -> None:
        self._tell = tell
        self._unit = unit
        self._begin = self._last = monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int, remark: str = "") -> None:
        """So much is done, work of earlier runs included; a line where the last one is some time ago."""
        now = monotonic()
        if self._first is None:
            self._first, self._begin = done, now
        if now - self._last < TELL_SECONDS:
            return
        self._last = now
        rate = (done - self._first) / max(1e-9, now - self._begin)
        left = f", {told_seconds((total - done) / rate)} left" if rate else ""
        self._tell(f"  {done} of {total} {self._unit}{remark}{left}")
