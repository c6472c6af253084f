"""How far blocks of a drafter are expected to survive, from what is known of it and from what was seen since."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from spec2seq.interfaces import Drafter

# s_1, s_2, ... of a drafter that says nothing of itself.
MILD = (0.5, 0.3, 0.2, 0.14, 0.1, 0.08, 0.06, 0.05)
# What is known of a drafter counts as much as so many blocks of the present batch.
PRIOR_WEIGHT = 2.0
# Whenever so many blocks were seen, all counts are halved: texts change.
MEMORY = 512.0


class Survival:
    """The chances that draft token i of a block is proposed, reached and accepted, s_1..s_k; they start with a prior.

    Args:
        prior: number of slots -> s_1..s_k. For numbers between, those of the next larger one hold.
        chance_of_draft: share of blocks with at least one token; 1 for drafters that always propose.
    """

    def __init__(self, prior: Mapping[int, Sequence[float]], chance_of_draft: float = 1.0) -> None:
        # chances of a token that is reached, for every number of slots apart
        self._prior = [(num_slots, _steps(chances)) for num_slots, chances in sorted(prior.items())]
        self._prior_of_draft = chance_of_draft
        self._reached: list[float] = []
        self._accepted: list[float] = []
        self._num_blocks = self._num_drafts = 0.0

    @classmethod
    def expected_of(cls, drafter: Drafter) -> Self:
        """What a drafter says of itself, or something between good and bad."""
        prior = getattr(drafter, "survival", None) or {len(MILD): MILD}
        return cls(prior, getattr(drafter, "chance_of_draft", 1.0))

    @property
    def chance_of_draft(self) -> float:
        """How probable it is that a block has any token."""
        return (PRIOR_WEIGHT * self._prior_of_draft + self._num_drafts) / (PRIOR_WEIGHT + self._num_blocks)

    def gains(self, max_draft_tokens: int) -> list[float]:
        """Tokens that a row gains by a block of k = 0..`max_draft_tokens`: s_1 + ... + s_k."""
        gains = [0.0]
        for index, (num_slots, steps) in enumerate(self._prior):
            is_last = index == len(self._prior) - 1
            end = max_draft_tokens if is_last else min(num_slots, max_draft_tokens)
            sums = self._sums(steps, end)
            gains.extend(sums[len(gains) :])
        return gains

    def learn(self, num_accepted: Iterable[int], num_judged: Iterable[int], num_drafts: int) -> None:
        """Take in the outcome of a round.

        Args:
            num_accepted: of every row, tokens kept.
            num_judged: of every row, tokens that were reached and could have been kept, had they been proposed and
                right: never fewer.
            num_drafts: rows that were proposed anything.
        """
        for accepted, judged in zip(num_accepted, num_judged, strict=True):
            _count(self._accepted, accepted)
            _count(self._reached, judged)
            self._num_blocks += 1
        self._num_drafts += num_drafts
        if self._num_blocks > MEMORY:
            self._forget_half()

    def _sums(self, steps: Sequence[float], count: int) -> list[float]:
        """Sums of s_1..s_i for i = 0..count, where `steps` are the prior chances of a token that is reached."""
        sums, total, chance = [0.0], 0.0, 1.0
        for i in range(count):
            step = steps[min(i, len(steps) - 1)]
            if i < len(self._reached):
                accepted = self._accepted[i] if i < len(self._accepted) else 0.0
                step = (PRIOR_WEIGHT * step + accepted) / (PRIOR_WEIGHT + self._reached[i])
            chance *= step
            total += chance
            sums.append(total)
        return sums

    def _forget_half(self) -> None:
        self._reached = [count / 2 for count in self._reached]
        self._accepted = [count / 2 for count in self._accepted]
        self._num_blocks /= 2
        self._num_drafts /= 2


def _steps(chances: Sequence[float]) -> list[float]:
    """The chance of each token given that the one before was accepted."""
    return [min(1.0, after / before) if before > 0 else 0.0 for before, after in pairwise((1.0, *chances))]


def _count(counts: list[float], num_leading: int) -> None:
    counts.extend([0.0] * (num_leading - len(counts)))
    for i in range(num_leading):
        counts[i] += 1
