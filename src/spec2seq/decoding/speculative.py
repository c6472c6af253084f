"""The heart: draft, verify, accept. Plain greedy search is the same round with an empty draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spec2seq.arrays import numbers
from spec2seq.decoding.recording import ScoreRecorder
from spec2seq.decoding.search import Search
from spec2seq.decoding.stats import Stopwatch, is_degenerate, record_round
from spec2seq.decoding.transfer import on_device, on_host
from spec2seq.types import Acceptance, DraftBlock, Emission, SourceBatch, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from torch import Tensor

    from spec2seq.decoding.drafting import Drafting
    from spec2seq.decoding.search import Request
    from spec2seq.decoding.state import Commitment, Flags
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import AcceptanceRule, Drafter, Verifier
    from spec2seq.types import DecoderOutput, FinishReason, Origin, Prefix, Scores


class _RowOutcome(NamedTuple):
    """What a round gave one row."""

    num_asked: int
    num_tokens: int
    num_accepted: int
    num_drafted: int
    num_fitted: int
    is_ended: bool
    is_broken: bool


class _Outcome(NamedTuple):
    """What a round decided, on the host: the fitted draft, what was accepted of it, how many tokens each row had been
    proposed [B], and which rows had scores that are NaN or infinite where these decided something [B]."""

    draft: DraftBlock
    acceptance: Acceptance
    num_drafted: Tensor
    is_broken: Flags

    @classmethod
    def read(cls, proposed: DraftBlock, draft: DraftBlock, acceptance: Acceptance, best_scores: Tensor) -> Self:
        """The one place of a round where a GPU is waited for. best_scores [B, k+1, C], best first."""
        drafted, accepted = (draft.tokens, draft.lengths), (acceptance.num_accepted, acceptance.next_tokens)
        tokens, lengths, num_accepted, next_tokens, num_drafted, scores = on_host(
            (*drafted, *accepted, proposed.lengths, best_scores)
        )
        is_finite = np.isfinite(numbers(scores)[..., 0])
        is_broken = np.zeros(len(is_finite), dtype=np.bool_)
        if not np.logical_and.reduce(is_finite, axis=None):
            is_broken = (~is_finite & (np.arange(draft.num_slots + 1) <= numbers(num_accepted)[:, None])).any(-1)
        return cls(DraftBlock(tokens, lengths), Acceptance(num_accepted, next_tokens), num_drafted, is_broken)


class SpeculativeSearch(Search):
    """Speculative greedy search over a batch with ragged acceptance (the paper, section 3).

    Args:
        drafting: whom to ask for drafts; None for plain search.
        rule: decides about them.
    """

    def __init__(
        self, verifier: Verifier, drafting: Drafting | None, rule: AcceptanceRule, options: ResolvedOptions
    ) -> None:
        super().__init__(verifier, options, is_beam=False)
        self.drafting = drafting
        self.rule = rule
        needs_processing = options.do_sample or not self.processors.is_empty
        self._needs_logits = rule.needs_logits or options.output_scores or options.output_logits or needs_processing
        is_recording = options.output_scores or options.output_logits or options.output_margin
        self._recorder = ScoreRecorder(options) if is_recording else None
        self._empty_draft = DraftBlock.empty(0)
        self._wanted = Wanted(
            top=max(rule.num_top, 2) if options.output_margin else rule.num_top,
            logits=self._needs_logits,
            log_sum_exp=options.output_scores,
            hidden_layers=drafting.drafter.hidden_layers if drafting else (),
            banned=self.processors.static_bans,
        )

    def round(self) -> list[Emission]:
        watch = Stopwatch()
        prefix = self._begin_round(watch)
        proposed = self._propose(prefix)
        draft = self.state.fit(proposed)
        watch.lap("draft")
        output = self._verify(draft, self._wanted)
        raw = self._recorder.raw(output.scores) if self._recorder else None
        scores = self._scores(output, draft)
        best_scores, _ = scores.top(self.rule.num_top)
        watch.lap("verify")
        acceptance = self._force_eos(self._accept(draft, scores), draft.num_slots)
        if self.drafting and prefix:
            self.drafting.drafter.commit(prefix, acceptance, output)
        outcome = _Outcome.read(proposed, draft, acceptance, best_scores)
        self._state, commitment = self.state.commit(outcome.draft, outcome.acceptance, self.options.eos_token_ids)
        emissions = self._book(outcome, commitment)
        if self.options.output_scores:
            self._add_log_probs(scores, commitment)
        if self._recorder:
            self._recorder.write(self.requests, raw, scores, commitment.num_tokens, self._has_forced_end())
        watch.lap("rest")
        self._end_round(outcome, commitment, watch)
        self._let_go(emissions)
        return emissions

    def sources(self) -> SourceBatch:
        """The token ids of the sources of all rows."""
        rows = [request.source_ids.tolist() for request in self.requests]
        return SourceBatch.from_lists(rows, self.verifier.config.pad_token_id, self.verifier.device)

    def tokens_left(self) -> float:
        """How many tokens each row is expected to get yet: in all as many as its source has, for want of better."""
        expected = np.array([len(request.source_ids) for request in self.requests]) + self.state.prompt_lengths
        limits = np.minimum(np.maximum(expected, self.state.lengths + 1), self.state.max_lengths)
        return float((limits - self.state.lengths).mean())

    def _begin_round(self, watch: Stopwatch) -> Prefix | None:
        """What the drafter is shown; None where there is none, or none was started."""
        if self.drafting is None:
            return None
        self.drafting.begin_round(self, watch)
        return self.state.prefix if self.drafting.is_started else None

    def _propose(self, prefix: Prefix | None) -> DraftBlock:
        if self.drafting is None or prefix is None or not self.drafting.num_draft_tokens:
            return self._no_draft()
        return self._ask(self.drafting.drafter, prefix, self.drafting.num_draft_tokens)

    def _ask(self, drafter: Drafter, prefix: Prefix, num_draft_tokens: int) -> DraftBlock:
        return drafter.propose(prefix, num_draft_tokens)

    def _end_round(self, outcome: _Outcome, commitment: Commitment, watch: Stopwatch) -> None:
        watch.share([request.stats for request in self.requests])
        if self.drafting is not None:
            num_drafted = numbers(outcome.num_drafted)
            self.drafting.end_round(self._num_queries, num_drafted, commitment, self.state, watch)

    def _no_draft(self) -> DraftBlock:
        """An empty draft for all rows; the same one as long as there are as many."""
        if self._empty_draft.tokens.shape[0] != self.num_rows:
            tokens, device = DraftBlock.empty(self.num_rows, self.verifier.device).tokens, self.verifier.device
            self._empty_draft = DraftBlock(tokens, on_device(np.zeros(self.num_rows, dtype=np.int64), device))
        return self._empty_draft

    def _scores(self, output: DecoderOutput, draft: DraftBlock) -> Scores:
        """The scores to choose from, [B, k+1, V]."""
        return output.scores if self.processors.is_empty else self._process(output.scores.logits(), draft)

    def _accept(self, draft: DraftBlock, scores: Scores) -> Acceptance:
        return self.rule.accept(draft, scores)

    def _force_eos(self, acceptance: Acceptance, num_slots: int) -> Acceptance:
        """The token on the last allowed position is the forced EOS; a fitted draft never reaches that far."""
        room = self.state.max_lengths - 1 - self.state.lengths
        if not self.options.forced_eos_token_ids or min(room.tolist()) > num_slots:
            return acceptance
        forced = min(self.options.forced_eos_token_ids)
        is_last = acceptance.num_accepted == on_device(room, self.verifier.device)
        return Acceptance(acceptance.num_accepted, acceptance.next_tokens.masked_fill(is_last, forced))

    def _select_groups(self, groups: Tensor) -> None:
        super()._select_groups(groups)
        if self.drafting is not None:
            self.drafting.select_rows(groups)

    def _book(self, outcome: _Outcome, commitment: Commitment) -> list[Emission]:
        """Hand the round's outcome to the requests."""
        num_asked = self.drafting.num_draft_tokens if self.drafting else 0
        columns = (
            commitment.num_tokens,
            commitment.num_accepted,
            numbers(outcome.num_drafted),
            numbers(outcome.draft.lengths),
            commitment.is_ended,
            outcome.is_broken,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            self._book_row(request, _RowOutcome(num_asked, *row), tokens)
            for request, row, tokens in zip(self.requests, rows, commitment.tokens.tolist(), strict=True)
        ]

    def _book_row(self, request: Request, outcome: _RowOutcome, tokens: list[int]) -> Emission:
        round_number = request.stats.num_rounds + 1
        if outcome.is_broken:
            record_round(request.stats, outcome.num_asked, 0, outcome.num_drafted, 0, 0)
            request.error = (
                f"the model produced NaN or infinite scores after {len(request.token_ids)} tokens; "
                "use dtype float32 or bfloat16"
            )
            return Emission(request.id, [], [], round_number, "error")
        num_tokens, num_accepted = outcome.num_tokens, outcome.num_accepted
        # a draft that ended in an accepted EOS was judged no further
        num_judged = num_accepted if num_accepted == num_tokens else outcome.num_fitted
        record_round(request.stats, outcome.num_asked, num_tokens, outcome.num_drafted, num_judged, num_accepted)
        token_ids = tokens[:num_tokens]
        request.token_ids.extend(token_ids)
        origins: list[Origin] = ["accepted"] * num_accepted
        if num_tokens > num_accepted:
            origins.append("bonus" if num_accepted == outcome.num_fitted else "correction")
        return Emission(request.id, token_ids, origins, round_number, self._finish_reason(request, outcome.is_ended))

    def _finish_reason(self, request: Request, is_ended: bool) -> FinishReason | None:
        if is_ended:
            return "eos"
        if request.prompt_length + len(request.token_ids) < request.max_length:
            return None
        request.stats.is_degenerate |= is_degenerate(request.token_ids)  # samples share their statistics
        return "length"

    def _add_log_probs(self, scores: Scores, commitment: Commitment) -> None:
        """Add the log-probabilities of the round's tokens under the processed scores to the requests' scores."""
        device = self.verifier.device
        tokens = on_device(commitment.tokens, device)
        log_probs = scores.logits().gather(-1, tokens[..., None])[..., 0] - scores.log_sum_exp()
        num_scored = commitment.num_tokens - self._has_forced_end()  # a forced token scores 0
        is_left_out = np.arange(tokens.shape[1]) >= num_scored[:, None]
        sums = log_probs.masked_fill(on_device(is_left_out, device), 0.0).double().sum(-1).tolist()
        for request, log_prob in zip(self.requests, sums, strict=True):
            request.score = (request.score or 0.0) + log_prob

    def _has_forced_end(self) -> Flags:
        """[B] rows whose last token is the forced EOS at their limit."""
        is_forced = bool(self.options.forced_eos_token_ids)
        return np.asarray((self.state.lengths == self.state.max_lengths) & is_forced)

    def _let_go(self, emissions: Sequence[Emission]) -> None:
        """Finished rows leave the batch, with their one hypothesis."""
        finished = [i for i, emission in enumerate(emissions) if emission.finish_reason]
        for i in finished:
            request = self.requests[i]
            request.hypotheses = [request.hypothesis()]
        if finished:
            self.remove(finished)
