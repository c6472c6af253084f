"""The heart: draft, verify, accept. Plain greedy search is the same round with an empty draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from spec2seq.decoding.recording import ScoreRecorder
from spec2seq.decoding.search import Search
from spec2seq.decoding.stats import Stopwatch, is_degenerate, record_round
from spec2seq.types import Acceptance, DraftBlock, Emission, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.config import ResolvedOptions
    from spec2seq.decoding.search import Request
    from spec2seq.decoding.state import Commitment
    from spec2seq.interfaces import AcceptanceRule, Drafter, Verifier
    from spec2seq.types import DecoderOutput, FinishReason, Origin, Scores


class _RowOutcome(NamedTuple):
    """What a round gave one row, on the host; the last two are flags."""

    num_tokens: int
    num_accepted: int
    num_drafted: int
    num_fitted: int
    is_ended: int
    is_broken: int


class SpeculativeSearch(Search):
    """Speculative greedy search over a batch with ragged acceptance (the paper, section 3)."""

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter | None,
        rule: AcceptanceRule,
        options: ResolvedOptions,
        num_draft_tokens: int,
    ) -> None:
        super().__init__(verifier, options, is_beam=False)
        self.drafter = drafter if num_draft_tokens else None
        self.rule = rule
        self.num_draft_tokens = num_draft_tokens
        needs_processing = options.do_sample or not self.processors.is_empty
        self._needs_logits = rule.needs_logits or options.output_scores or options.output_logits or needs_processing
        is_recording = options.output_scores or options.output_logits or options.output_margin
        self._recorder = ScoreRecorder(options) if is_recording else None
        self._wanted = Wanted(
            top=max(rule.num_top, 2) if options.output_margin else rule.num_top,
            logits=self._needs_logits,
            log_sum_exp=options.output_scores,
            hidden_layers=self.drafter.hidden_layers if self.drafter else (),
            banned=self.processors.static_bans,
        )

    def round(self) -> list[Emission]:
        watch = Stopwatch()
        prefix = self.state.prefix
        proposed = self._propose()
        draft = self.state.fit(proposed)
        watch.lap("draft")
        output = self._verify(draft, self._wanted)
        raw = self._recorder.raw(output.scores) if self._recorder else None
        scores = self._scores(output, draft)
        best_scores, _ = scores.top(self.rule.num_top)
        watch.lap("verify")
        acceptance = self._force_eos(self._accept(draft, scores))
        if self.drafter:
            self.drafter.commit(prefix, acceptance, output)
        self._state, commitment = self.state.commit(draft, acceptance, self._eos)
        is_broken = _has_broken_scores(best_scores[..., 0], acceptance)
        emissions = self._book(proposed.lengths, draft.lengths, commitment, is_broken)
        if self.options.output_scores:
            self._add_log_probs(scores, commitment)
        if self._recorder:
            self._recorder.write(self.requests, raw, scores, commitment.num_tokens, self._has_forced_end())
        watch.lap("rest")
        watch.share(request.stats for request in self.requests)
        self._let_go(emissions)
        return emissions

    def _propose(self) -> DraftBlock:
        if self.drafter is None:
            return DraftBlock.empty(self.num_rows, self.verifier.device)
        return self.drafter.propose(self.state.prefix, self.num_draft_tokens)

    def _scores(self, output: DecoderOutput, draft: DraftBlock) -> Scores:
        """The scores to choose from, [B, k+1, V]."""
        return output.scores if self.processors.is_empty else self._process(output.scores.logits(), draft)

    def _accept(self, draft: DraftBlock, scores: Scores) -> Acceptance:
        return self.rule.accept(draft, scores)

    def _force_eos(self, acceptance: Acceptance) -> Acceptance:
        """The token on the last allowed position is the forced EOS; a fitted draft never reaches that far."""
        if not self.options.forced_eos_token_ids:
            return acceptance
        forced = min(self.options.forced_eos_token_ids)
        is_last = self.state.lengths + acceptance.num_accepted == self.state.max_lengths - 1
        return Acceptance(acceptance.num_accepted, acceptance.next_tokens.masked_fill(is_last, forced))

    def _select_groups(self, groups: Tensor) -> None:
        super()._select_groups(groups)
        if self.drafter:
            self.drafter.select_rows(groups)

    def _book(
        self, num_drafted: Tensor, num_fitted: Tensor, commitment: Commitment, is_broken: Tensor
    ) -> list[Emission]:
        """Move the round's outcome to the host, all of it in one transfer, and hand it to the requests."""
        counts = [commitment.num_tokens, commitment.num_accepted, num_drafted, num_fitted]
        flags = [commitment.is_ended.long(), is_broken.long()]
        table = torch.cat([torch.stack(counts + flags, dim=1), commitment.tokens], dim=1).tolist()
        return [
            self._book_row(request, _RowOutcome(*row[:6]), row[6:])
            for request, row in zip(self.requests, table, strict=True)
        ]

    def _book_row(self, request: Request, outcome: _RowOutcome, tokens: list[int]) -> Emission:
        round_number = request.stats.num_rounds + 1
        if outcome.is_broken:
            record_round(request.stats, 0, outcome.num_drafted, 0, 0)
            request.error = (
                f"the model produced NaN or infinite scores after {len(request.token_ids)} tokens; "
                "use dtype float32 or bfloat16"
            )
            return Emission(request.id, [], [], round_number, "error")
        num_tokens, num_accepted = outcome.num_tokens, outcome.num_accepted
        # a draft that ended in an accepted EOS was judged no further
        num_judged = num_accepted if num_accepted == num_tokens else outcome.num_fitted
        record_round(request.stats, num_tokens, outcome.num_drafted, num_judged, num_accepted)
        token_ids = tokens[:num_tokens]
        request.token_ids.extend(token_ids)
        origins: list[Origin] = ["accepted"] * num_accepted
        if num_tokens > num_accepted:
            origins.append("bonus" if num_accepted == outcome.num_fitted else "correction")
        return Emission(request.id, token_ids, origins, round_number, self._finish_reason(request, outcome.is_ended))

    def _finish_reason(self, request: Request, is_ended: int) -> FinishReason | None:
        if is_ended:
            return "eos"
        if request.prompt_length + len(request.token_ids) < request.max_length:
            return None
        request.stats.is_degenerate |= is_degenerate(request.token_ids)  # samples share their statistics
        return "length"

    def _add_log_probs(self, scores: Scores, commitment: Commitment) -> None:
        """Add the log-probabilities of the round's tokens under the processed scores to the requests' scores."""
        log_probs = scores.logits().gather(-1, commitment.tokens[..., None])[..., 0] - scores.log_sum_exp()
        offsets = torch.arange(log_probs.shape[1], device=log_probs.device)
        num_scored = commitment.num_tokens - self._has_forced_end().long()  # a forced token scores 0
        sums = log_probs.masked_fill(offsets >= num_scored[:, None], 0.0).double().sum(-1).tolist()
        for request, log_prob in zip(self.requests, sums, strict=True):
            request.score = (request.score or 0.0) + log_prob

    def _has_forced_end(self) -> Tensor:
        """[B] bool: rows whose last token is the forced EOS at their limit."""
        if not self.options.forced_eos_token_ids:
            return torch.zeros_like(self.state.lengths, dtype=torch.bool)
        return self.state.lengths == self.state.max_lengths

    def _let_go(self, emissions: Sequence[Emission]) -> None:
        """Finished rows leave the batch, with their one hypothesis."""
        finished = [i for i, emission in enumerate(emissions) if emission.finish_reason]
        for i in finished:
            request = self.requests[i]
            request.hypotheses = [request.hypothesis()]
        if finished:
            self.remove(finished)


def _has_broken_scores(best_scores: Tensor, acceptance: Acceptance) -> Tensor:
    """Rows whose best score [B, k+1] is NaN or infinite where it decided something. Returns [B] bool."""
    offsets = torch.arange(best_scores.shape[1], device=best_scores.device)
    return (~best_scores.isfinite() & (offsets <= acceptance.num_accepted[:, None])).any(-1)
