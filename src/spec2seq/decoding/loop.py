"""The steppable decoder: requests join, every step is one verifier call for all live rows, finished requests leave."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from spec2seq.decoding.admission import check_encoder_states, check_rows, check_source
from spec2seq.decoding.batch_size import BatchSize
from spec2seq.decoding.noise import fresh_seed
from spec2seq.decoding.recording import ScoreRecord, certain_scores, record_start_logits
from spec2seq.decoding.samples import SampleGroup
from spec2seq.decoding.search import Request
from spec2seq.decoding.search_choice import make_search, resolve_num_draft_tokens
from spec2seq.errors import OptionError
from spec2seq.types import DecodedRequest, Emission, SourceBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spec2seq.decoding.search import Search
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Drafter, Verifier
    from spec2seq.types import FinishReason


class Decoder:
    """Decodes requests in continuous batches. Not safe for use from several threads at once.

    Args:
        verifier: the model that owns the output.
        drafter: proposes tokens; None means plain search. Owned by this decoder as long as it lives.
        max_rows: most rows in one verifier call (a beam search has num_beams of them per request).
        max_batch_tokens: most rows x (longest source + longest target), estimated when rows join; None for no limit.
            A single request is always let in.
    """

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter | None = None,
        *,
        max_rows: int = 64,
        max_batch_tokens: int | None = None,
    ) -> None:
        self.verifier = verifier
        self.drafter = drafter
        self.max_rows = max_rows
        self.max_batch_tokens = max_batch_tokens
        self._waiting: deque[Request] = deque()
        self._search: Search | None = None
        self._live: dict[int, Request] = {}
        self._groups: dict[int, SampleGroup] = {}  # by the id of every sample, where a source has more than one
        self._emissions: list[Emission] = []
        self._results: dict[int, DecodedRequest] = {}
        self._next_id = 0

    @property
    def alive(self) -> bool:
        """Whether a step would still do or tell something."""
        return bool(self._live or self._emissions)

    @property
    def size(self) -> BatchSize:
        """What runs, and what waits to join it."""
        return _size([*(self._search.requests if self._search else []), *self._waiting])

    def add(
        self,
        source: SourceBatch,
        options: ResolvedOptions,
        *,
        prompts: Sequence[Sequence[int]] | None = None,
        forced_first_tokens: Sequence[int | None] | None = None,
        budgets: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
        encoder_states: Sequence[torch.Tensor] | None = None,
    ) -> list[int]:
        """Queue one request per source row. Requests share a batch only with requests of equal options.

        Args:
            source: ids [B, S] and lengths [B].
            options: resolved options of all these requests.
            prompts: what each target starts with, decoder start token included; the model's decoder start by default.
            forced_first_tokens: token each target must begin with after a prompt of one token (a language code, say);
                `options.forced_bos_token_id` by default.
            budgets: most new tokens of each request, at most what `options.budget` allows; that by default.
            seeds: what the random numbers of each request come from, if it samples; by default `options.seed`, and
                fresh ones where there is none. The results tell them.
            encoder_states: [S_i, D] of each source, where they were encoded elsewhere.

        Returns:
            The ids of the requests, in the order of the rows.

        Raises:
            OptionError: an option does not suit the model or the drafter, or a budget is below 1.
            InputError: a source is empty, longer than the model's positions, or not of its vocabulary; or what is said
                about single sources does not fit them.
        """
        num_rows, config = len(source.lengths), self.verifier.config
        check_source(source, config)
        check_rows(num_rows, config, prompts, forced_first_tokens, budgets, seeds)
        check_encoder_states(encoder_states, source, config)
        self._check(options)
        prompts = prompts or [[self._decoder_start()]] * num_rows
        limits = [options.budget(len(prompt)) for prompt in prompts]
        budgets = [min(pair) for pair in zip(budgets, limits, strict=True)] if budgets else limits
        forced = forced_first_tokens or options.forced_first_tokens(num_rows)
        lengths = source.lengths.tolist()
        source_ids = source.ids.clone()  # requests may wait for long, and the caller's tensor is the caller's
        requests = [
            self._make_request(source_ids[i, : lengths[i]], options, list(prompts[i]), forced[i], budgets[i])
            for i in range(num_rows)
        ]
        if encoder_states is not None:
            for request, states in zip(requests, encoder_states, strict=True):
                request.encoder_states = states
        if options.output_logits and any(request.num_forced for request in requests):
            record_start_logits(self.verifier, requests)
        for i, request in enumerate(requests):
            self._live[request.id] = request
            for sample in self._samples(request, seeds[i] if seeds else options.seed):
                if sample.num_forced and not self._emit_forced(sample):
                    continue
                self._waiting.append(sample)
        return [request.id for request in requests]

    @torch.inference_mode()
    def step(self) -> list[Emission]:
        """Let waiting requests in, run one round, and tell what every live request got from it."""
        self._admit_waiting()
        if self._search is not None and self._search.requests:
            self._tell(self._search.round())
        emissions, self._emissions = self._emissions, []
        for emission in emissions:
            if emission.finish_reason and emission.request in self._live:
                self._finish(self._live[emission.request], emission.finish_reason)
        return emissions

    @torch.inference_mode()
    def cancel(self, request: int) -> None:
        """Stop a request; its result holds what it had by then. Unknown and finished requests are ignored."""
        target = self._live.get(request)
        is_told = any(told.request == request and told.finish_reason for told in self._emissions)
        if target is None or is_told:
            return
        for sample in self._groups[request].samples if request in self._groups else [target]:
            if sample in self._waiting:
                self._waiting.remove(sample)
            elif self._search is not None and sample in self._search.requests:
                self._search.remove([self._search.requests.index(sample)])
        self._emissions.append(Emission(request, [], [], target.stats.num_rounds, "cancelled"))
        self._finish(target, "cancelled")

    def result(self, request: int) -> DecodedRequest:
        """The outcome of a finished request, once: it is forgotten afterwards. KeyError when it is not finished."""
        return self._results.pop(request)

    def _check(self, options: ResolvedOptions) -> None:
        if options.num_beams > self.max_rows:
            raise OptionError(
                f"num_beams={options.num_beams} exceeds max_rows={self.max_rows} of this decoder; use fewer beams, or "
                "more rows"
            )
        resolve_num_draft_tokens(self.drafter, options, self.verifier.config)

    def _decoder_start(self) -> int:
        start = self.verifier.config.decoder_start_token_id
        if start < 0:
            raise OptionError("this model starts its output with a language code; give the target language")
        return start

    def _make_request(
        self, source_ids: torch.Tensor, options: ResolvedOptions, prompt: list[int], forced: int | None, budget: int
    ) -> Request:
        request = Request(self._next_id, source_ids, options, prompt, len(prompt), len(prompt) + budget)
        self._next_id += 1
        request.record = ScoreRecord.wanted_by(options)
        if forced is not None and len(prompt) == 1:
            token = min(options.forced_eos_token_ids) if budget == 1 and options.forced_eos_token_ids else forced
            request.committed = [*prompt, token]
            request.num_forced = request.stats.num_forced = request.stats.num_tokens = 1
        return request

    def _samples(self, request: Request, seed: int | None) -> list[Request]:
        """The rows that a request needs: one per sample, all with the same source, statistics and seed."""
        count = request.options.num_return_sequences
        if not request.options.do_sample:
            return [request]
        request.seed = fresh_seed() if seed is None else seed
        if count == 1:
            return [request]
        copies = [
            replace(
                request,
                id=self._next_id + i,
                sample=i + 1,
                token_ids=[],
                record=request.record.copy() if request.record else None,
            )
            for i in range(count - 1)
        ]
        self._next_id += len(copies)
        request.stats.num_forced = request.stats.num_tokens = request.num_forced * count
        group = SampleGroup([request, *copies])
        self._groups.update({sample.id: group for sample in group.samples})
        return group.samples

    def _tell(self, emissions: Iterable[Emission]) -> None:
        """Keep what the next step tells the caller, who knows only the first of several samples."""
        for emission in emissions:
            group = self._groups.get(emission.request)
            self._emissions.extend(group.follow(emission) if group else [emission])

    def _emit_forced(self, request: Request) -> bool:
        """Tell the forced first token. Returns whether the request goes on after it."""
        token = request.committed[-1]
        request.token_ids.append(token)
        request.score = 0.0 if request.options.output_scores else None
        if request.record is not None and request.options.output_scores:
            request.record.scores.append(certain_scores([token], self.verifier.config.target_vocab_size))
        reason: FinishReason | None = "length" if request.max_length == len(request.committed) else None
        if token in request.options.eos_token_ids:
            reason = "eos"
        self._tell([Emission(request.id, [token], ["forced"], 0, reason)])
        if reason:
            request.hypotheses = [request.hypothesis()]
        return reason is None

    def _finish(self, request: Request, reason: FinishReason) -> None:
        group = self._groups.get(request.id)
        if group:
            group.gather()
            for sample in group.samples:
                del self._groups[sample.id]
        hypotheses = request.hypotheses or [request.hypothesis()]
        self._results[request.id] = DecodedRequest(hypotheses, reason, request.stats, request.error, request.seed)
        del self._live[request.id]

    def _admit_waiting(self) -> None:
        """Let requests in when the batch is empty, when all that wait fit, or when they make up a quarter of it."""
        if not self._waiting:
            return
        if self._search is None or not self._search.requests:
            self._search = make_search(self.verifier, self.drafter, self._waiting[0].options)
        search = self._search
        newcomers = self._newcomers(search)
        if not newcomers or (
            search.requests
            and len(newcomers) < len(self._waiting)
            and 4 * len(newcomers) < len(newcomers) + len(search.requests)
        ):
            return
        for _ in newcomers:
            self._waiting.popleft()
        rows = [request.source_ids.tolist() for request in newcomers]
        config, device = self.verifier.config, self.verifier.device
        search.admit(newcomers, SourceBatch.from_lists(rows, config.pad_token_id, device))

    def _newcomers(self, search: Search) -> list[Request]:
        """The leading waiting requests that may join the search now."""
        newcomers: list[Request] = []
        size = _size(search.requests)
        for request in self._waiting:
            size = size.joined(request.options.num_beams, len(request.source_ids))
            is_full = not size.is_within(self.max_rows, self.max_batch_tokens)
            is_alike = not newcomers or (request.encoder_states is None) == (newcomers[0].encoder_states is None)
            if request.options != search.options or not is_alike or (is_full and (search.requests or newcomers)):
                break
            newcomers.append(request)
        return newcomers


def _size(requests: Iterable[Request]) -> BatchSize:
    size = BatchSize()
    for request in requests:
        target_length = request.prompt_length + len(request.token_ids)
        size = size.joined(request.options.num_beams, len(request.source_ids), target_length)
    return size
