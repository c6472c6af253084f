"""The records that travel between tokenization, models, drafters, acceptance and the loop.

Shapes: B rows, S source positions, T target positions, k drafted tokens, n queries of one verifier call,
D model width, V target vocabulary. Padding is always on the right; `lengths` say what is real.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from spec2seq.ranking import best_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

FinishReason = Literal["eos", "length", "error", "cancelled"]
Origin = Literal["forced", "accepted", "correction", "bonus"]


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Right-pad id lists. Returns ids [B, longest] and lengths [B], both int64."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    ids = torch.full((len(rows), int(lengths.max()) if len(rows) else 0), pad_id, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.as_tensor(row, dtype=torch.long)
    return ids.to(device), lengths.to(device)


@dataclass(frozen=True)
class SourceBatch:
    """Source token ids [B, S] and their real lengths [B]."""

    ids: Tensor
    lengths: Tensor

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu") -> SourceBatch:
        """Right-pad id lists into a batch."""
        return cls(*pad_rows(rows, pad_id, device))


@dataclass(frozen=True)
class Prefix:
    """Committed target tokens [B, T], decoder start included, and how many are real [B]. Stale ids may follow."""

    ids: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class DraftBlock:
    """Proposed next tokens [B, k] and how many of them each row really proposes [B].

    `log_probs` [B, k, V] is the law each token was drawn from; None means every token is a point mass.
    """

    tokens: Tensor
    lengths: Tensor
    log_probs: Tensor | None = None

    @property
    def num_slots(self) -> int:
        return self.tokens.shape[1]

    @classmethod
    def empty(cls, num_rows: int, device: torch.device | str = "cpu") -> DraftBlock:
        """A draft of nothing: the round is then one step of plain search."""
        return cls(
            torch.zeros((num_rows, 0), dtype=torch.long, device=device),
            torch.zeros(num_rows, dtype=torch.long, device=device),
        )


@dataclass(frozen=True)
class Wanted:
    """What a verifier call must be able to answer, said before the call.

    Attributes:
        top: how many best ids per query `Scores.top` may be asked for.
        logits: whether `Scores.logits` may be called.
        log_sum_exp: whether `Scores.log_sum_exp` may be called.
        hidden_layers: decoder layers whose outputs are returned in `DecoderOutput.hidden` (0 = embeddings, L = last).
        banned: ids whose score is minus infinity everywhere; engines fold them into the output bias.
    """

    top: int = 1
    logits: bool = False
    log_sum_exp: bool = False
    hidden_layers: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()


class Scores(Protocol):
    """Next-token scores of m queries per row, in fp32 (logits, or whatever the processors made of them)."""

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` best values and ids, [B, m, count] each, descending; ties go to the lowest id."""

    def logits(self) -> Tensor:
        """All scores [B, m, V], fp32."""

    def log_sum_exp(self) -> Tensor:
        """log of the sum of exp of all scores [B, m], fp32."""


@dataclass(frozen=True)
class TensorScores:
    """`Scores` over a tensor [B, m, V] of fp32 scores that is already there. What was asked for once is remembered."""

    values: Tensor
    _best: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        if count not in self._best:
            self._best[count] = best_ids(self.values, count)
        return self._best[count]

    def logits(self) -> Tensor:
        return self.values

    def log_sum_exp(self) -> Tensor:
        return self.values.logsumexp(dim=-1)


@dataclass(frozen=True)
class DecoderOutput:
    """Answer of one verifier call: scores of the asked queries, and decoder states [B, n, layers, D] if wanted."""

    scores: Scores
    hidden: Tensor | None = None


@dataclass(frozen=True)
class Acceptance:
    """How many leading draft tokens each row keeps [B], and the verifier's own token after them [B]."""

    num_accepted: Tensor
    next_tokens: Tensor


@dataclass
class RequestStats:
    """What one request cost and gained. Times are seconds; a shared call is divided evenly among its rows.

    `num_tokens` counts emitted tokens, EOS and a forced first token included. `num_judged` leaves out drafted tokens
    cut by the budget or drafted past an accepted EOS. `accepted_per_position[i]` counts rounds in which draft token i
    was kept, `judged_per_position[i]` those in which it was judged. `rounds_by_num_draft_tokens[k]` counts rounds
    in which k draft tokens were asked for.

    Beam search takes `num_rounds + num_free_steps` steps: the free ones needed no verifier call of their own. There a
    drafted token is a prefix put into the call ahead of time, accepted when it became a running hypothesis, and nothing
    is counted per position.
    """

    num_tokens: int = 0
    num_forced: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_judged: int = 0
    num_accepted: int = 0
    num_free_steps: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    judged_per_position: list[int] = field(default_factory=list)
    rounds_by_num_draft_tokens: list[int] = field(default_factory=list)
    seconds_encode: float = 0.0
    seconds_draft: float = 0.0
    seconds_verify: float = 0.0
    seconds_rest: float = 0.0
    is_degenerate: bool = False

    @property
    def seconds(self) -> float:
        return self.seconds_encode + self.seconds_draft + self.seconds_verify + self.seconds_rest

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens per round: emitted tokens, a forced first token not counted, per verifier call."""
        return (self.num_tokens - self.num_forced) / self.num_rounds if self.num_rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens per judged one."""
        return self.num_accepted / self.num_judged if self.num_judged else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Every field and property, for JSON output."""
        names = [*self.__dataclass_fields__, "seconds", "tokens_per_round", "acceptance_rate"]
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Emission:
    """What one round gave one request: new token ids with their origins; the reason on the last one."""

    request: int
    token_ids: list[int]
    origins: list[Origin]
    round: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Hypothesis:
    """One output: token ids after the prompt, EOS included, and what else was asked for; None where it was not.

    Attributes:
        score: sum of log-probabilities, for beams divided by length ** length_penalty.
        scores: [num_tokens, V] fp32 on the CPU, what each token was chosen from: processed and, in sampling, warped.
        logits: [num_tokens, V] fp32 on the CPU, the model's own scores there.
        min_margin: smallest gap between the two best processed scores; infinity where no token was chosen by scores.
    """

    token_ids: list[int]
    score: float | None = None
    scores: Tensor | None = field(default=None, compare=False, repr=False)
    logits: Tensor | None = field(default=None, compare=False, repr=False)
    min_margin: float | None = None


@dataclass(frozen=True)
class DecodedRequest:
    """A finished request. `hypotheses` best first, samples in the order of their index, never empty; `error` says why
    when the reason is "error"; `seed` is what the random numbers of sampling came from, given or drawn."""

    hypotheses: list[Hypothesis]
    finish_reason: FinishReason
    stats: RequestStats
    error: str | None = None
    seed: int | None = None
