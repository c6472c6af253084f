"""What calls of an engine and of a drafter cost, learned from the rounds that are decoded anyway.

Measuring apart would cost a short call more than it can gain: five calls of eight sizes take as long as a sentence. A
round that is decoded takes no time more, and it tells about this machine with its load and about contexts as long as
they are. What was not seen yet is estimated in favour of what is unknown: then it is tried, and seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.interfaces import Drafter, Verifier

    # sizes, ascending, and the seconds of each
    Points = tuple[list[float], list[float]]

# Rows x tokens at which a call is taken to need twice the time of the smallest one, before more is known. A CPU does
# worse and a GPU better, but a size that looks too expensive would never be tried.
DOUBLING_SIZES = {"cpu": 64.0}
DOUBLING_SIZE_ELSEWHERE = 512.0
# Sizes are considered up to this one, or up to so many times the largest that was seen: a call of many more than that
# could take as long as many rounds.
SMALL = 32
REACH = 3
# Plain rounds to begin with for a number of rows, and rounds with a draft after which one is due again.
MIN_PLAIN = 2
MAX_SINCE_PLAIN = 64
NUM_SAMPLES = 5
# The first sample of a size counts at most as so many times what was expected.
MAX_SURPRISE = 2.0
_FAR = 1e6


class CostTable(Protocol):
    """Seconds that the parts of a round are expected to take."""

    def verify(self, num_rows: int, max_draft_tokens: int) -> Sequence[float]:
        """Everything but drafting, for blocks of 0..k tokens: [k+1]. Infinite where a block is not to be tried."""

    def draft(self, num_rows: int, max_draft_tokens: int) -> Sequence[float]:
        """Drafting blocks of 0..k tokens: [k+1]."""


class CostCurve:
    """Seconds by size.

    Sizes are put together by halves of doublings (1, 2, 3, 4-5, 6-7, 8-11, ...). Of the latest samples of each the
    least counts: whatever else a machine does can only make a call slower.

    Args:
        doubling: the size at which the cost is twice that of size 0, as long as that is not known better.
    """

    def __init__(self, doubling: float) -> None:
        self._doubling = doubling
        self._samples: dict[int, deque[tuple[float, int]]] = {}
        self._discounts: dict[int, float] = {}
        self._points: Points | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is any sample."""
        return bool(self._samples)

    @property
    def points(self) -> Points:
        """Sizes of which there are samples, and their seconds."""
        if self._points is None:
            best = sorted((min(samples)[::-1], place) for place, samples in self._samples.items())
            seconds = [cost * self._discounts.get(place, 1.0) for (_, cost), place in best]
            self._points = [size for (size, _), _ in best], seconds
        return self._points

    def add(self, size: int, seconds: float) -> None:
        """Take in a sample of a size, 1 or more."""
        place = place_of(size)
        samples = self._samples.get(place)
        if samples is not None:
            self._discounts.pop(place, None)
        else:
            if self._samples:
                # A first call may take long for reasons that do not come again. A cost that looks far too large would
                # never be tried again, one that looks too small will.
                likeness = self.at([size])[0] / seconds
                self._discounts[place] = min(1.0, (1.0 + likeness) / 2, MAX_SURPRISE * likeness)
            samples = self._samples[place] = deque(maxlen=NUM_SAMPLES)
        samples.append((seconds, size))
        self._points = None

    def at(self, sizes: Sequence[float]) -> list[float]:
        """Seconds at these sizes, ascending; there must be a sample."""
        known, seconds = self.points
        (first, last), (at_first, at_last) = (known[0], known[-1]), (seconds[0], seconds[-1])
        at_nothing = at_first * self._doubling / (self._doubling + first)
        # beyond the largest size as between the smallest and it, if these are far from each other
        is_wide = last >= 2 * first and at_last > at_first
        slope = (at_last - at_first) / (last - first) if is_wide else at_last / (self._doubling + last)
        return interpolated(sizes, ([0.0, *known, last + _FAR], [at_nothing, *seconds, at_last + slope * _FAR]))


class VerifyCosts:
    """What a round takes beside drafting, by rows x tokens of its verifier call.

    As many products cost more in more rows with fewer tokens each, and a plain round is what all is compared with. So
    each number of rows has a curve of its own, of which the one of all calls gives the shape where it was not seen.
    """

    def __init__(self, doubling: float) -> None:
        self._doubling = doubling
        self._all = CostCurve(doubling)
        self._by_rows: dict[int, _RowCosts] = {}

    def needs_plain_round(self, num_rows: int) -> bool:
        """Whether too little is known about rounds of so many rows without a draft, or it is too long ago."""
        own = self._by_rows.get(place_of(num_rows))
        return own is None or own.num_plain < MIN_PLAIN or own.num_since_plain > MAX_SINCE_PLAIN

    def add(self, num_rows: int, num_queries: int, seconds: float) -> None:
        """Take in a sample of a call with so many rows x tokens."""
        self._all.add(num_queries, seconds)
        own = self._by_rows.get(place_of(num_rows))
        if own is None:
            own = self._by_rows[place_of(num_rows)] = _RowCosts(CostCurve(self._doubling))
        own.add(num_queries, seconds, is_plain=num_queries == num_rows)

    def at(self, num_rows: int, max_draft_tokens: int) -> list[float]:
        """Seconds with 1..k+1 tokens in every row, [k+1], infinite where that is too far from what is known. There must
        be a sample for as many rows."""
        sizes = range(num_rows, num_rows * (max_draft_tokens + 2), num_rows)
        limit = max(REACH * self._all.points[0][-1], SMALL)
        own_sizes, own_seconds = self._by_rows[place_of(num_rows)].curve.points
        shape_there = self._all.at(own_sizes)
        ratios = [own / common for own, common in zip(own_seconds, shape_there, strict=True)]
        shape, factors = self._all.at(sizes), interpolated(sizes, (own_sizes, ratios))
        return [
            seconds * factor if size <= limit else float("inf")
            for size, seconds, factor in zip(sizes, shape, factors, strict=True)
        ]


@dataclass
class _RowCosts:
    """Rounds with the same number of rows: how many were plain, and how many others came after the last of these."""

    curve: CostCurve
    num_plain: int = 0
    num_since_plain: int = 0

    def add(self, size: int, seconds: float, *, is_plain: bool) -> None:
        self.curve.add(size, seconds)
        self.num_plain += is_plain
        self.num_since_plain = 0 if is_plain else self.num_since_plain + 1


class DraftCosts:
    """What a drafter takes: to be started, by rows, and to draft, by rows for every number of tokens."""

    def __init__(self) -> None:
        self._starting = CostCurve(1.0)
        self._drafting: dict[int, CostCurve] = {}

    def add_start(self, num_rows: int, seconds: float) -> None:
        """Take in how long it took to start the drafter with so many rows."""
        self._starting.add(num_rows, seconds)

    def add(self, num_rows: int, num_draft_tokens: int, seconds: float) -> None:
        """Take in how long drafting took in one round."""
        curve = self._drafting.get(num_draft_tokens)
        if curve is None:
            curve = self._drafting[num_draft_tokens] = CostCurve(DOUBLING_SIZE_ELSEWHERE)
        curve.add(num_rows, seconds)

    def start(self, num_rows: int) -> float:
        """Seconds that it takes to start the drafter with so many rows; 0 where that is unknown."""
        return self._starting.at([num_rows])[0] if self._starting.is_known else 0.0

    def at(self, num_rows: int, max_draft_tokens: int) -> list[float]:
        """Seconds for blocks of 0..k tokens, [k+1]; 0 where nothing is known.

        Up to the smallest number seen the cost is taken to grow from nothing, beyond the largest not to grow: in favour
        of drafters that take a step per token, and of those that take one for all.
        """
        known = sorted(self._drafting)
        seconds = [self._drafting[number].at([num_rows])[0] for number in known]
        return interpolated(range(max_draft_tokens + 1), ([0.0, *known], [0.0, *seconds]))


class LearnedCosts:
    """`CostTable` of an engine and a drafter."""

    def __init__(self, verifying: VerifyCosts, drafting: DraftCosts) -> None:
        self.verifying = verifying
        self.drafting = drafting

    def verify(self, num_rows: int, max_draft_tokens: int) -> list[float]:
        return self.verifying.at(num_rows, max_draft_tokens)

    def draft(self, num_rows: int, max_draft_tokens: int) -> list[float]:
        return self.drafting.at(num_rows, max_draft_tokens)


class _EngineCosts:
    """What is known about one engine: its calls, in searches and in sampling apart, and the drafters it worked with."""

    def __init__(self, verifier: Verifier) -> None:
        doubling = DOUBLING_SIZES.get(verifier.device.type, DOUBLING_SIZE_ELSEWHERE)
        self._verifying = {is_sampling: VerifyCosts(doubling) for is_sampling in (False, True)}
        self._drafting: WeakKeyDictionary[object, DraftCosts] = WeakKeyDictionary()

    def with_drafter(self, drafter: Drafter, *, is_sampling: bool) -> LearnedCosts:
        drafting = self._drafting.setdefault(getattr(drafter, "network", type(drafter)), DraftCosts())
        return LearnedCosts(self._verifying[is_sampling], drafting)


_KNOWN: WeakKeyDictionary[Verifier, _EngineCosts] = WeakKeyDictionary()


def costs_of(verifier: Verifier, drafter: Drafter, *, is_sampling: bool = False) -> LearnedCosts:
    """What is known about an engine with a drafter, to be added to by whoever decodes with them.

    It is kept as long as both are loaded. Every call makes a drafter of its own: costs are those of its `network`,
    where it has one, else of its class. Sampling needs all scores, and so takes longer than search.
    """
    if verifier not in _KNOWN:
        _KNOWN[verifier] = _EngineCosts(verifier)
    return _KNOWN[verifier].with_drafter(drafter, is_sampling=is_sampling)


def place_of(size: int) -> int:
    """The same number for all sizes that count as one."""
    num_bits = size.bit_length()
    return 2 * num_bits + bool(size & (1 << num_bits >> 2))


def interpolated(sizes: Sequence[float], points: Points) -> list[float]:
    """What lies on the lines between the points at `sizes`, both ascending; beyond the ends, what is there."""
    known, values = points
    found, i, last = [], 0, len(known) - 1
    for size in sizes:
        while i < last and known[i + 1] < size:
            i += 1
        if size <= known[i] or i == last:
            found.append(values[i])
        else:
            share = (size - known[i]) / (known[i + 1] - known[i])
            found.append(values[i] + share * (values[i + 1] - values[i]))
    return found
