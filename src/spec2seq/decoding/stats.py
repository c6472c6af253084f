"""Where a round's time went, what a request's rounds gained, and whether its output runs in circles."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spec2seq.types import RequestStats

MAX_LOOP_NGRAM = 8
MIN_LOOP_REPEATS = 3


class Stopwatch:
    """Splits a stretch of time into parts, and shares it out among the rows that used it.

    Attributes:
        seconds: of encoding, of starting a drafter that had waited (for the rows a part of drafting), of drafting, of
            verifying, and of the rest.
    """

    def __init__(self) -> None:
        self.seconds = {"encode": 0.0, "start": 0.0, "draft": 0.0, "verify": 0.0, "rest": 0.0}
        self._last = perf_counter()

    def lap(self, part: str) -> float:
        """Book the time since the last lap on `part`, and return it."""
        now = perf_counter()
        seconds, self._last = now - self._last, now
        self.seconds[part] += seconds
        return seconds

    def share(self, stats: Iterable[RequestStats]) -> None:
        """Add an even share of the booked time to each of `stats`."""
        users = list(stats)
        for user in users:
            user.seconds_encode += self.seconds["encode"] / len(users)
            user.seconds_draft += (self.seconds["start"] + self.seconds["draft"]) / len(users)
            user.seconds_verify += self.seconds["verify"] / len(users)
            user.seconds_rest += self.seconds["rest"] / len(users)


def record_round(
    stats: RequestStats, num_asked: int, num_tokens: int, num_drafted: int, num_judged: int, num_accepted: int
) -> None:
    """Count one round of one request, for which `num_asked` draft tokens were asked."""
    _count_asked(stats, num_asked)
    stats.num_tokens += num_tokens
    stats.num_drafted += num_drafted
    stats.num_judged += num_judged
    stats.num_accepted += num_accepted
    _count_leading(stats.judged_per_position, num_judged)
    _count_leading(stats.accepted_per_position, num_accepted)


def record_beam_round(stats: RequestStats, num_asked: int, num_steps: int, num_drafted: int, num_accepted: int) -> None:
    """Count one round of a beam search that took `num_steps` steps; drafted tokens are prefixes, judged once each."""
    _count_asked(stats, num_asked)
    stats.num_free_steps += num_steps - 1
    stats.num_drafted += num_drafted
    stats.num_judged += num_drafted
    stats.num_accepted += num_accepted


def _count_asked(stats: RequestStats, num_asked: int) -> None:
    stats.num_rounds += 1
    rounds = stats.rounds_by_num_draft_tokens
    rounds.extend([0] * (num_asked + 1 - len(rounds)))
    rounds[num_asked] += 1


def _count_leading(counts: list[int], num_positions: int) -> None:
    counts.extend([0] * (num_positions - len(counts)))
    for position in range(num_positions):
        counts[position] += 1


def is_degenerate(token_ids: list[int]) -> bool:
    """Whether the last tokens are one n-gram (n <= 8) three times over, as in outputs that loop to the limit."""
    for size in range(1, MAX_LOOP_NGRAM + 1):
        tail = token_ids[-size * MIN_LOOP_REPEATS :]
        if len(tail) == size * MIN_LOOP_REPEATS and tail == tail[:size] * MIN_LOOP_REPEATS:
            return True
    return False
