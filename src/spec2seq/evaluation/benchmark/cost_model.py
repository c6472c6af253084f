"""What speculation gains, from the costs of single calls and from what is accepted. Plain arithmetic.

With c the cost of a verifier call over a block and d that of drafting, both in plain greedy steps, decoding is
S = (1 + s_1 + ... + s_k) / (c + d) times as fast, s_i being the probability that draft token i is reached and accepted.
With the encoders e_v and e_d and N output tokens, the whole is (e_v + N) / (e_v + e_d + N / S) times as fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CallCosts:
    """Seconds of single calls for one text.

    Attributes:
        encode: the verifier's encoder.
        start: showing the drafter a text, its own encoder included.
        verify: a verifier call, by the number of tokens that were to be drafted for it; 0 is a plain step. A drafter
            may propose fewer: it is the mean of the calls that were made.
        draft: drafting a block and telling the drafter what became of it, by the same number.
        host: what a round takes beside these calls.
    """

    encode: float
    start: float
    verify: Mapping[int, float]
    draft: Mapping[int, float] = field(default_factory=dict)
    host: float = 0.0

    @property
    def block_sizes(self) -> list[int]:
        """The k for which the costs of a round are known."""
        return sorted(self.draft)

    def round_seconds(self, num_draft_tokens: int) -> float:
        """Drafting k tokens and verifying them; a plain step for k = 0."""
        drafting = self.draft[num_draft_tokens] if num_draft_tokens else 0.0
        return self.verify[num_draft_tokens] + drafting + self.host

    def text_seconds(self, num_tokens: float, tokens_per_round: float, num_draft_tokens: int) -> float:
        """A whole text of so many output tokens."""
        start = self.start if num_draft_tokens else 0.0
        return self.encode + start + num_tokens / tokens_per_round * self.round_seconds(num_draft_tokens)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; numbers as keys become strings there."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CallCosts:
        """What `as_dict` and JSON made."""
        tables = {name: {int(n): seconds for n, seconds in values[name].items()} for name in ("verify", "draft")}
        return cls(values["encode"], values["start"], tables["verify"], tables["draft"], values["host"])


def decoding_speedup(tokens_per_round: float, verify_cost: float, draft_cost: float) -> float:
    """S, from costs in plain greedy steps."""
    return tokens_per_round / (verify_cost + draft_cost)


def whole_speedup(speedup: float, encode_cost: float, start_cost: float, num_tokens: float) -> float:
    """The same with both encoders, in plain greedy steps, for texts of so many output tokens."""
    return (encode_cost + num_tokens) / (encode_cost + start_cost + num_tokens / speedup)


def predicted_speedup(
    costs: CallCosts, step_seconds: float, num_tokens: float, tokens_per_round: float, num_draft_tokens: int
) -> float:
    """How much faster than plain greedy search the cost model says speculation is.

    Args:
        costs: of single calls; their `host` takes no part: the model knows only calls.
        step_seconds: one plain greedy step as it was measured, all that a round does included.
        num_tokens: mean per text.
        tokens_per_round: 1 + s_1 + ... + s_k.
        num_draft_tokens: k.
    """
    verify = costs.verify[num_draft_tokens] / step_seconds
    draft = costs.draft[num_draft_tokens] / step_seconds
    speedup = decoding_speedup(tokens_per_round, verify, draft)
    return whole_speedup(speedup, costs.encode / step_seconds, costs.start / step_seconds, num_tokens)


def needed_tokens_per_round(
    costs: CallCosts, text_seconds: float, num_tokens: float, num_draft_tokens: int
) -> float | None:
    """Mean tokens per round at which a text takes `text_seconds`; None where no block of k tokens can give that."""
    left = text_seconds - costs.encode - costs.start
    if left <= 0:
        return None
    needed = num_tokens * costs.round_seconds(num_draft_tokens) / left
    return needed if needed <= num_draft_tokens + 1 else None


@dataclass(frozen=True)
class Projection:
    """What speculation would give with an acceptance measured elsewhere: a calculation, not a measurement.

    Attributes:
        num_draft_tokens: k, the best of those known.
        tokens_per_round: of the acceptance profile at that k.
        text_seconds: per text.
        speedups: over every system that was timed, by its contest.
    """

    num_draft_tokens: int
    tokens_per_round: float
    text_seconds: float
    speedups: dict[str, float]


def project(
    costs: CallCosts, tokens_per_round: Mapping[int, float], num_tokens: float, peers: Mapping[str, float]
) -> Projection | None:
    """The best k's projection.

    Args:
        costs: of single calls on the engine in question.
        tokens_per_round: by k, from an acceptance profile.
        num_tokens: per text.
        peers: seconds per text of what it is compared with.

    Returns:
        None where no k has both costs and acceptance.
    """
    known = [k for k in costs.block_sizes if k in tokens_per_round]
    if not known:
        return None
    seconds = {k: costs.text_seconds(num_tokens, tokens_per_round[k], k) for k in known}
    best = min(known, key=seconds.__getitem__)
    speedups = {name: peer / seconds[best] for name, peer in peers.items()}
    return Projection(best, tokens_per_round[best], seconds[best], speedups)


def tokens_per_round(survival: Sequence[float]) -> float:
    """1 + s_1 + ... + s_k."""
    return 1.0 + sum(survival)
