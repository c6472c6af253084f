"""What a caller gets back, and how the outputs of a text's pieces become one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import torch

from spec2seq.types import RequestStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.types import DecodedRequest, FinishReason

_WORST_FIRST: tuple[FinishReason, ...] = ("error", "cancelled", "length", "eos")


@dataclass(frozen=True)
class Alternative:
    """One more output of a beam search, or one more sample; the fields are those of `GenerationResult`."""

    text: str
    token_ids: list[int]
    score: float | None
    scores: Tensor | None = field(default=None, compare=False, repr=False)
    logits: Tensor | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class GenerationResult:
    """The output for one input.

    Attributes:
        text: the generated text; "" where token ids were given instead of text.
        token_ids: what follows the decoder start token, end of sequence included: a given target prefix and what was
            generated; for a text that was split, the pieces' ids one after another. Empty for a blank text, which
            never reaches the model.
        score: sum of the log-probabilities of the tokens, for beams divided by length ** length_penalty; of a text that
            was split, the sum of its pieces' scores. None unless output_scores was asked for.
        alternatives: the other num_return_sequences - 1 outputs, best first; samples in the order of their index.
        finish_reason: "eos", or "length" where the limit cut the output (of any piece).
        scores: [num_tokens, V] fp32, what each generated token was chosen from: the model's scores after all options,
            and in sampling after temperature and the like. None unless output_scores was asked for, and for beams.
        logits: [num_tokens, V] fp32, the model's own scores there. None unless output_logits was asked for.
        min_margin: by how much the closest of all choices was decided: the smallest gap between the two best scores,
            infinity where nothing was chosen. None unless output_margin was asked for.
        seed: what the random numbers of sampling came from (of the first piece), given or drawn; None in a search.
        stats: rounds, drafted and accepted tokens and time, summed over the pieces.
    """

    text: str
    token_ids: list[int]
    score: float | None
    alternatives: list[Alternative]
    finish_reason: FinishReason
    stats: RequestStats = field(repr=False)
    seed: int | None = None
    scores: Tensor | None = field(default=None, compare=False, repr=False)
    logits: Tensor | None = field(default=None, compare=False, repr=False)
    min_margin: float | None = None


def blank_result(text: str) -> GenerationResult:
    """The result for a text without content: itself, at no cost."""
    return GenerationResult(text, [], None, [], "eos", RequestStats())


def join_results(requests: Sequence[DecodedRequest], texts: Sequence[str]) -> GenerationResult:
    """One result from the decoded pieces of an input.

    Args:
        requests: at least one.
        texts: the input's joined text for every rank of hypotheses, best first.
    """
    ranks = [
        Alternative(
            text,
            [token_id for request in requests for token_id in request.hypotheses[rank].token_ids],
            _sum_scores([request.hypotheses[rank].score for request in requests]),
            _joined([request.hypotheses[rank].scores for request in requests]),
            _joined([request.hypotheses[rank].logits for request in requests]),
        )
        for rank, text in enumerate(texts)
    ]
    margins = [margin for request in requests if (margin := request.hypotheses[0].min_margin) is not None]
    return GenerationResult(
        ranks[0].text,
        ranks[0].token_ids,
        ranks[0].score,
        ranks[1:],
        min((request.finish_reason for request in requests), key=_WORST_FIRST.index),
        sum_stats([request.stats for request in requests]),
        requests[0].seed,
        ranks[0].scores,
        ranks[0].logits,
        min(margins, default=None),
    )


def sum_stats(stats: Sequence[RequestStats]) -> RequestStats:
    """Counts and times added up; degenerate when one of them is."""
    total = RequestStats()
    for one in stats:
        for name in (item.name for item in fields(RequestStats)):
            mine, its = getattr(total, name), getattr(one, name)
            if isinstance(mine, bool):
                setattr(total, name, mine or its)
            elif isinstance(mine, list):
                setattr(total, name, _add_lists(mine, its))
            else:
                setattr(total, name, mine + its)
    return total


def _sum_scores(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return sum(known) if len(known) == len(scores) else None


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None


def _add_lists(one: list[int], other: list[int]) -> list[int]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    return [count + (shorter[i] if i < len(shorter) else 0) for i, count in enumerate(longer)]
