"""How many tokens to draft in a round: as many as give most tokens per second, none included.

The decision looks at what calls cost and at the fate of earlier blocks, never at the tokens of the block it is about.
Therefore it changes no law in sampling.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spec2seq.decoding.costs import CostTable, LearnedCosts
    from spec2seq.decoding.survival import Survival

# A number is left for another one only where that is better by so much: all of this is estimated.
MIN_GAIN = 1.05
# Where drafting does not pay, such a share of the time may be lost on finding out whether it does by now, and at least
# so many plain rounds lie between two attempts.
PROBE_SHARE = 0.01
ROUNDS_BETWEEN_PROBES = 8
# The same number is used for at most so many rounds before the next decision, and for fewer in the beginning.
MAX_ROUNDS = 8


class Batch(NamedTuple):
    """What a decision is about.

    Attributes:
        num_rows: of the batch.
        chance_of_draft: how probable it is that a row is proposed anything. Where no row is, a round is a plain one.
        start_seconds: what it takes to start the drafter, if it has not been started.
        tokens_left: how many tokens each row is expected to get yet.
    """

    num_rows: int
    chance_of_draft: float = 1.0
    start_seconds: float = 0.0
    tokens_left: float = math.inf


def speeds(costs: CostTable, gains: Sequence[float], batch: Batch) -> list[float]:
    """Expected tokens per second with blocks of 0..k tokens, [k+1].

    Args:
        costs: of the engine and the drafter.
        gains: [k+1] how many more tokens a row is expected to get from a round by a block of 0..k tokens.
        batch: what they are drafted for.
    """
    num_rows, max_draft_tokens = batch.num_rows, len(gains) - 1
    verifying, drafting = costs.verify(num_rows, max_draft_tokens), costs.draft(num_rows, max_draft_tokens)
    plain = verifying[0]
    chance = 1.0 - (1.0 - batch.chance_of_draft) ** num_rows
    found = [num_rows / plain]
    for gain, verify, draft in zip(gains[1:], verifying[1:], drafting[1:], strict=True):
        tokens = 1.0 + gain
        start = batch.start_seconds * tokens / batch.tokens_left
        found.append(num_rows * tokens / (plain + chance * (verify - plain) + draft + start))
    return found


def settle(found: Sequence[float], current: int) -> int:
    """How many tokens to draft, from the speeds with 0..k and the number so far.

    That one stays unless another is clearly better; but nothing is drafted at a loss.
    """
    best = max(range(len(found)), key=found.__getitem__)
    return best if found[best] > MIN_GAIN * found[current] or found[0] > found[current] else current


def choose(costs: CostTable, gains: Sequence[float], batch: Batch, current: int = 0) -> int:
    """How many tokens to draft in the next round; see `speeds` and `settle`."""
    return settle(speeds(costs, gains, batch), current)


class Round(NamedTuple):
    """What became of a round.

    Attributes:
        num_rows, num_draft_tokens: as planned.
        num_queries: rows x tokens of the verifier call.
        seconds_draft, seconds_rest: of drafting, and of all else.
        num_accepted: [B] draft tokens kept.
        num_judged: [B] draft tokens kept, and the one that was not, if it could have been.
        num_drafts: rows that were proposed anything.
    """

    num_rows: int
    num_draft_tokens: int
    num_queries: int
    seconds_draft: float
    seconds_rest: float
    num_accepted: Sequence[int] = ()
    num_judged: Sequence[int] = ()
    num_drafts: int = 0


class DraftLength(Protocol):
    """Says how many tokens to draft."""

    max_draft_tokens: int
    is_free: bool  # whether it may say 0 where drafting is possible, so that the drafter need not be started at once

    def plan(self, num_rows: int, tokens_left: Callable[[], float] | None) -> int:
        """How many tokens to draft in the next round.

        Args:
            num_rows: of the batch.
            tokens_left: says how many tokens each row is expected to get yet; None once the drafter was started.
        """

    def learn_start(self, num_rows: int, seconds: float) -> None:
        """Told how long it took to start the drafter with so many rows, if that had waited."""

    def learn(self, outcome: Round) -> None:
        """Told what became of every round."""


class FixedLength:
    """Always the same number."""

    is_free = False

    def __init__(self, num_draft_tokens: int) -> None:
        self.max_draft_tokens = num_draft_tokens

    def plan(self, num_rows: int, tokens_left: Callable[[], float] | None) -> int:
        return self.max_draft_tokens

    def learn_start(self, num_rows: int, seconds: float) -> None:
        """There is nothing to learn."""

    def learn(self, outcome: Round) -> None:
        """There is nothing to learn."""


class Controller:
    """Decides for one batch as it goes.

    Args:
        costs: of the engine and the drafter, kept beyond this batch.
        survival: of the drafts of this batch.
        max_draft_tokens: the largest number that is considered.
    """

    is_free = True

    def __init__(self, costs: LearnedCosts, survival: Survival, max_draft_tokens: int) -> None:
        self.max_draft_tokens = max_draft_tokens
        self._costs = costs
        self._survival = survival
        self._current = self._num_rows = 0
        self._num_rounds = self._rounds_left = 0
        self._probe = 0  # what to try where nothing is drafted, and what that is expected to lose
        self._probe_seconds = 0.0
        self._credit = 0.0  # seconds that a probe may lose by now; below 0 when one lost more

    def plan(self, num_rows: int, tokens_left: Callable[[], float] | None) -> int:
        """As `DraftLength.plan`."""
        if self._costs.verifying.needs_plain_round(num_rows):
            return 0
        if num_rows != self._num_rows or self._rounds_left == 0:
            self._decide(num_rows, tokens_left)
        if self._current == 0 and self._credit > self._probe_seconds:
            self._rounds_left = 0  # decide again right after it
            return self._probe
        self._rounds_left -= 1
        return self._current

    def learn_start(self, num_rows: int, seconds: float) -> None:
        """As `DraftLength.learn_start`."""
        self._costs.drafting.add_start(num_rows, seconds)
        if self._current == 0:
            self._credit -= seconds

    def learn(self, outcome: Round) -> None:
        """As `DraftLength.learn`."""
        self._num_rounds += 1
        self._costs.verifying.add(outcome.num_rows, outcome.num_queries, outcome.seconds_rest)
        if outcome.num_draft_tokens == 0:
            self._credit += PROBE_SHARE * outcome.seconds_rest
            return
        if self._current == 0:
            self._pay_for_probe(outcome)
        self._costs.drafting.add(outcome.num_rows, outcome.num_draft_tokens, outcome.seconds_draft)
        self._survival.learn(outcome.num_accepted, outcome.num_judged, outcome.num_drafts)

    def _decide(self, num_rows: int, tokens_left: Callable[[], float] | None) -> None:
        batch = Batch(num_rows, self._survival.chance_of_draft)
        if tokens_left is not None:
            batch = batch._replace(start_seconds=self._costs.drafting.start(num_rows), tokens_left=tokens_left())
        gains = self._survival.gains(self.max_draft_tokens)
        found = speeds(self._costs, gains, batch)
        self._num_rows = num_rows
        self._current = settle(found, self._current)
        self._rounds_left = min(MAX_ROUNDS, 1 + self._num_rounds // 2)
        if self._current == 0:
            self._prepare_probe(found, gains, batch)

    def _prepare_probe(self, found: Sequence[float], gains: Sequence[float], batch: Batch) -> None:
        """Choose what to try; estimate how many seconds it loses against plain rounds for as many tokens."""
        self._rounds_left = 1 + self._num_rounds
        self._probe = max(range(1, len(found)), key=found.__getitem__)
        tokens = batch.num_rows * (1.0 + gains[self._probe])
        plain_seconds = batch.num_rows / found[0]
        loss = tokens / found[self._probe] - tokens / found[0] if found[self._probe] else math.inf
        self._probe_seconds = max(loss + batch.start_seconds, PROBE_SHARE * ROUNDS_BETWEEN_PROBES * plain_seconds)

    def _pay_for_probe(self, outcome: Round) -> None:
        """Take off what a probe lost against plain rounds for as many tokens; what it won is not saved up."""
        plain_seconds = self._costs.verify(outcome.num_rows, 0)[0]
        num_plain = 1.0 + sum(outcome.num_accepted) / outcome.num_rows
        lost = outcome.seconds_draft + outcome.seconds_rest - num_plain * plain_seconds
        self._credit = min(0.0, self._credit - lost)
