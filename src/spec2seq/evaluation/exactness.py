"""Is speculative output what plain search gives? Compares both on real lines and weighs every difference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spec2seq.errors import NumericsError, OptionError
from spec2seq.evaluation.near_ties import FP32_TOLERANCE
from spec2seq.evaluation.teacher_forcing import forced_scores
from spec2seq.pipelines.arguments import DEFAULT_BATCH_TOKENS
from spec2seq.pipelines.piece_decoder import decoder_start
from spec2seq.pipelines.results import sum_stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Verifier
    from spec2seq.pipelines.pipeline import Pipeline
    from spec2seq.pipelines.plans import Piece, TextOptions
    from spec2seq.types import DecodedRequest, RequestStats


@dataclass(frozen=True)
class Difference:
    """The first place where the outputs for a line part.

    Attributes:
        line: index of the line.
        position: index into the generated tokens (of the piece, where the line was split).
        plain, speculative: the tokens there; None where an output had ended.
        margin: between the two best scores that the verifier gives there, with the common tokens before it; nats.
    """

    line: int
    position: int
    plain: int | None
    speculative: int | None
    margin: float


@dataclass(frozen=True)
class ExactnessReport:
    """Outcome of a comparison. `stats` are those of the speculative run."""

    num_lines: int
    differences: list[Difference]
    tolerance: float
    stats: RequestStats

    @property
    def num_identical(self) -> int:
        return self.num_lines - len(self.differences)

    @property
    def mistakes(self) -> list[Difference]:
        """Differences that no near tie explains."""
        return [difference for difference in self.differences if not difference.margin <= self.tolerance]


def compare_with_plain(
    pipeline: Pipeline,
    texts: Sequence[str],
    options: ResolvedOptions,
    text_options: TextOptions,
    *,
    tolerance: float = FP32_TOLERANCE,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
) -> ExactnessReport:
    """Decode texts with and without the drafter.

    Args:
        pipeline: with the drafter in question.
        texts: one line each.
        options: for both runs; greedy and exact.
        text_options: as in `Pipeline.generate`.
        tolerance: largest margin of a tie, in nats.

    Raises:
        OptionError: beam search, sampling or relaxed acceptance, or a pipeline without drafter.
        NumericsError: the model produced NaN.
    """
    _check(pipeline, options)
    plans = pipeline.plan(texts, options, text_options)
    pieces = [piece for plan in plans for piece in plan.pieces]
    owners = [i for i, plan in enumerate(plans) for _ in plan.pieces]
    plain = _decode(pipeline, pieces, replace(options, num_draft_tokens=0), batch_tokens)
    speculative = _decode(pipeline, pieces, options, batch_tokens)
    differences: dict[int, Difference] = {}
    for line, piece, one, other in zip(owners, pieces, plain, speculative, strict=True):
        if one.hypotheses[0].token_ids != other.hypotheses[0].token_ids and line not in differences:
            tokens = one.hypotheses[0].token_ids, other.hypotheses[0].token_ids
            differences[line] = _difference(line, piece, *tokens, pipeline.verifier, options)
    stats = sum_stats([request.stats for request in speculative])
    return ExactnessReport(len(texts), list(differences.values()), tolerance, stats)


def _check(pipeline: Pipeline, options: ResolvedOptions) -> None:
    if pipeline.make_drafter is None:
        raise OptionError(
            "no drafter (drafter=None): nothing to compare with plain search; pass prompt_lookup or a drafter's folder"
        )
    if options.num_beams > 1 or options.top_beta > 1 or options.do_sample:
        said = f"num_beams={options.num_beams}, top_beta={options.top_beta}, do_sample={options.do_sample}"
        raise OptionError(
            f"{said}: only exact greedy search can be compared; pass num_beams=1, top_beta=1 and do_sample=False"
        )


def _decode(
    pipeline: Pipeline, pieces: Sequence[Piece], options: ResolvedOptions, batch_tokens: int
) -> list[DecodedRequest]:
    outcomes: dict[int, DecodedRequest] = {}
    pipeline.decode(pieces, options, outcomes.__setitem__, batch_tokens)
    for outcome in outcomes.values():
        if outcome.error:
            raise NumericsError(outcome.error)
    return [outcomes[i] for i in range(len(pieces))]


def _difference(
    line: int, piece: Piece, plain: list[int], speculative: list[int], verifier: Verifier, options: ResolvedOptions
) -> Difference:
    position = first_difference(plain, speculative)
    prompt = [decoder_start(piece.start, verifier.config)]
    margin = top_two_margin(verifier, piece.source_ids, prompt, plain[:position], options)
    return Difference(line, position, _at(plain, position), _at(speculative, position), margin)


def first_difference(one: Sequence[object], other: Sequence[object]) -> int:
    """Index of the first item in which two sequences differ: the shorter one's length where it begins the other."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def top_two_margin(
    verifier: Verifier, source_ids: list[int], prompt: list[int], generated: list[int], options: ResolvedOptions
) -> float:
    """How much the best next token is ahead of the second best, in nats, after all processors.

    Args:
        source_ids: one source.
        prompt: what the target starts with, decoder start token included.
        generated: tokens generated after it.
    """
    best, _ = forced_scores(verifier, source_ids, prompt, generated, options, first_query=len(generated)).top(2)
    return float(best[0, 0, 0] - best[0, 0, 1])
