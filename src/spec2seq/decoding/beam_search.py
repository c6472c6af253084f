"""Plain beam search as rounds of the decoder: one request owns num_beams rows of the verifier call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from spec2seq.decoding.beam import BeamSettings, BeamState, advance, finalize
from spec2seq.decoding.search import Search
from spec2seq.decoding.stats import Stopwatch, is_degenerate, record_round
from spec2seq.decoding.transfer import on_device
from spec2seq.types import DraftBlock, Emission, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.decoding.search import Request
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Verifier
    from spec2seq.types import DecoderOutput, FinishReason, Hypothesis, SourceBatch


class BeamSearch(Search):
    """Beam search with transformers' semantics; every source's outcome is that of decoding it alone."""

    def __init__(self, verifier: Verifier, options: ResolvedOptions, *, rows_per_request: int | None = None) -> None:
        """`rows_per_request`: rows of cache and encoder output that a request owns; one per beam by default."""
        super().__init__(verifier, options, is_beam=True, rows_per_request=rows_per_request or options.num_beams)
        self._settings = BeamSettings.from_options(options)
        self._num_candidates = min(self._settings.num_candidates, verifier.config.target_vocab_size)
        needs_logits = not self.processors.is_empty
        self._wanted = Wanted(
            top=self._num_candidates,
            logits=needs_logits,
            log_sum_exp=not needs_logits,
            banned=self.processors.static_bans,
        )
        self._beams: BeamState | None = None

    @property
    def beams(self) -> BeamState:
        assert self._beams is not None, "no request was admitted yet"
        return self._beams

    def admit(self, requests: Sequence[Request], source: SourceBatch) -> None:
        num_before = self.num_rows
        super().admit(requests, source)
        firsts = torch.arange(num_before, self.num_rows, self.rows_per_request, device=self.verifier.device)
        new = self.state.select_rows(firsts)
        prompt_lengths = on_device(new.prompt_lengths, self.verifier.device)
        max_lengths = on_device(new.max_lengths, self.verifier.device)
        beams = BeamState.start(new.prefix, prompt_lengths, max_lengths, self.options.num_beams)
        self._beams = self.beams.append(beams) if num_before else beams

    def round(self) -> list[Emission]:
        watch = Stopwatch()
        output = self._verify(DraftBlock.empty(self.num_rows, self.verifier.device), self._wanted)
        values, ids = self._candidates(output)
        watch.lap("verify")
        step = advance(self.beams, values, ids, self._settings)
        self._follow(step.state, step.parents)
        is_broken = values[..., 0].isnan().any(-1) | ~values[..., 0].isfinite().any(-1)
        outcome = torch.stack([step.is_done, is_broken]).tolist()
        for request in self.requests:
            record_round(request.stats, 0, 0, 0, 0, 0)
        watch.lap("rest")
        watch.share(request.stats for request in self.requests)
        finished = [i for i in range(len(self.requests)) if outcome[0][i] or outcome[1][i]]
        emissions = [self._finish(i, is_broken=outcome[1][i]) for i in finished]
        if finished:
            self.remove(finished)
        return emissions

    def _candidates(self, output: DecoderOutput) -> tuple[Tensor, Tensor]:
        """The best continuations of every beam by processed log-probability: values and ids [G, num_beams, C]."""
        if self.processors.is_empty:
            values, ids = self._top_log_probs(output)
        else:
            draft = DraftBlock.empty(self.num_rows, self.verifier.device)
            values, ids = self._process(output.scores.logits(), draft).top(self._num_candidates)
        shape = (len(self.requests), self.rows_per_request, -1)
        return values.reshape(shape), ids.reshape(shape)

    def _top_log_probs(self, output: DecoderOutput) -> tuple[Tensor, Tensor]:
        """The best continuations of every query where no processor changes them: values and ids [B, m, C]."""
        values, ids = output.scores.top(self._num_candidates)
        return values - output.scores.log_sum_exp()[..., None], ids

    def _follow(self, beams: BeamState, parents: Tensor) -> None:
        """Put every row's cache and tokens where its beam went; parents [G, num_beams]."""
        firsts = torch.arange(0, self.num_rows, self.rows_per_request, device=parents.device)
        rows = (parents + firsts[:, None]).flatten()
        self._cache = self.cache.select_rows(rows)
        self._beams = beams
        lengths = self.state.lengths + 1
        self._state = replace(self.state, tokens=beams.tokens.flatten(0, 1), lengths=lengths, cached=lengths - 1)

    def _select_groups(self, groups: Tensor) -> None:
        super()._select_groups(groups)
        self._beams = self.beams.select_groups(groups)

    def _finish(self, index: int, *, is_broken: bool) -> Emission:
        request = self.requests[index]
        num_rounds = request.stats.num_rounds
        if is_broken:
            request.error = "the model produced NaN or infinite scores; use dtype float32 or bfloat16"
            return Emission(request.id, [], [], num_rounds, "error")
        hypotheses = finalize(self.beams, index, self._settings)
        request.hypotheses = [self._without_prompt(request, hypothesis) for hypothesis in hypotheses]
        best = request.hypotheses[0].token_ids
        request.stats.num_tokens = len(best)
        reason: FinishReason = "eos" if best and best[-1] in self.options.eos_token_ids else "length"
        request.stats.is_degenerate = reason == "length" and is_degenerate(best)
        news = best[request.num_forced :]
        return Emission(request.id, news, ["bonus"] * len(news), num_rounds, reason)

    def _without_prompt(self, request: Request, hypothesis: Hypothesis) -> Hypothesis:
        """What was generated after the prompt, with its score where scores are asked for."""
        token_ids = hypothesis.token_ids[request.prompt_length - 1 :]
        return replace(hypothesis, token_ids=token_ids, score=hypothesis.score if self.options.output_scores else None)
