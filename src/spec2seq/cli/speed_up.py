"""How much faster drafting makes a run, measured at its end on some of its lines."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_LINES = 16
_NUM_PAIRS = 3
_MOST_SECONDS = 10.0


def speed_up_text(drafted: Callable[[], object], plain: Callable[[], object], num_lines: int) -> str:
    """A sentence about what two ways to decode the same lines take, by turns.

    `drafted` has run before; `plain` runs once before it is timed. At most three pairs are, fewer where they are slow.
    """
    plain()
    ratios: list[float] = []
    start = perf_counter()
    while len(ratios) < _NUM_PAIRS and (not ratios or perf_counter() - start < _MOST_SECONDS):
        seconds = []
        for decode in (plain, drafted):
            begin = perf_counter()
            decode()
            seconds.append(perf_counter() - begin)
        ratios.append(seconds[0] / seconds[1])
    spread = f", {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} pairs by turns" if len(ratios) > 1 else ""
    lines = "first line" if num_lines == 1 else f"first {num_lines} lines"
    return f"speed-up over plain search on the {lines}: {median(ratios):.2f}{spread}"
