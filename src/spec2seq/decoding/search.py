"""What every search over a batch shares: its requests, sources, cache, and the one verifier call of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from spec2seq.decoding.processors import QueryContext, build_processors
from spec2seq.decoding.state import DecodeState
from spec2seq.decoding.stats import Stopwatch
from spec2seq.decoding.transfer import on_device
from spec2seq.types import Hypothesis, RequestStats, TensorScores

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from spec2seq.decoding.drafting import Drafting
    from spec2seq.decoding.recording import ScoreRecord
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Cache, EncoderOutput, Verifier
    from spec2seq.types import DecoderOutput, DraftBlock, Emission, Scores, SourceBatch, Wanted


@dataclass(eq=False)
class Request:
    """One sequence to decode, from the queue to its result.

    `committed` holds the prompt (decoder start and target prefix) and the forced first token where there is one;
    `max_length` is the total length, prompt included, at which it is cut. `seed` and `sample`, the index among the
    samples of one source, say where the random numbers of sampling come from. `encoder_states` [S, D] are there where
    the source was encoded before.
    """

    id: int
    source_ids: Tensor
    options: ResolvedOptions
    committed: list[int]
    prompt_length: int
    max_length: int
    num_forced: int = 0
    token_ids: list[int] = field(default_factory=list)
    score: float | None = None
    stats: RequestStats = field(default_factory=RequestStats)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    error: str | None = None
    seed: int | None = None
    sample: int = 0
    encoder_states: Tensor | None = None
    record: ScoreRecord | None = None

    def hypothesis(self) -> Hypothesis:
        """The output as far as it got."""
        if self.record is None:
            return Hypothesis(self.token_ids, self.score)
        scores, logits = (torch.cat(parts) if parts else None for parts in (self.record.scores, self.record.logits))
        margin = self.record.min_margin if self.options.output_margin else None
        return Hypothesis(self.token_ids, self.score, scores, logits, margin)


def encode_requests(verifier: Verifier, requests: Sequence[Request], source: SourceBatch) -> EncoderOutput:
    """The encoded sources [B, S] of requests that all have encoder states already, or all have none."""
    states = [request.encoder_states for request in requests if request.encoder_states is not None]
    if not states:
        return verifier.encode(source)
    return verifier.from_encoder(pad_sequence(states, batch_first=True), source.lengths)


class Search(ABC):
    """A batch of requests with equal options that advances one verifier call at a time."""

    def __init__(
        self, verifier: Verifier, options: ResolvedOptions, *, is_beam: bool, rows_per_request: int = 1
    ) -> None:
        self.verifier = verifier
        self.options = options
        self.rows_per_request = rows_per_request
        self.requests: list[Request] = []
        self.drafting: Drafting | None = None
        self.processors = build_processors(options, is_beam=is_beam, forces_eos=is_beam, device=verifier.device)
        self._eos = torch.tensor(options.eos_token_ids, dtype=torch.long, device=verifier.device)
        self._cache: Cache | None = None
        self._encoded: EncoderOutput | None = None
        self._state: DecodeState | None = None
        self._num_queries = 0  # rows x tokens of the last verifier call

    @property
    def num_rows(self) -> int:
        return len(self.requests) * self.rows_per_request

    @property
    def cache(self) -> Cache:
        assert self._cache is not None, "no request was admitted yet"
        return self._cache

    @property
    def encoded(self) -> EncoderOutput:
        assert self._encoded is not None, "no request was admitted yet"
        return self._encoded

    @property
    def state(self) -> DecodeState:
        assert self._state is not None, "no request was admitted yet"
        return self._state

    @abstractmethod
    def round(self) -> list[Emission]:
        """One verifier call for all rows; finished requests leave. Returns what each request got."""

    def admit(self, requests: Sequence[Request], source: SourceBatch) -> None:
        """Encode the requests' sources [B, S] and append their rows to the batch."""
        watch = Stopwatch()
        encoded = self._encode(requests, source)
        watch.lap("encode")
        self._start_drafting(source, encoded)
        watch.lap("draft")
        state = DecodeState.start(
            [request.committed for request in requests],
            [request.prompt_length for request in requests],
            [request.max_length for request in requests],
            self.verifier.device,
        )
        if self.rows_per_request > 1:
            rows = torch.arange(len(requests), device=self.verifier.device).repeat_interleave(self.rows_per_request)
            encoded, state = encoded.select_rows(rows), state.select_rows(rows)
        if self.requests:
            self._cache = self.cache.append_rows(state.num_rows)
            self._encoded, self._state = self.encoded.concat(encoded), self.state.concat(state)
        else:
            self._cache = self.verifier.new_cache(state.num_rows)
            self._encoded, self._state = encoded, state
        self.requests.extend(requests)
        watch.lap("rest")
        watch.share(request.stats for request in requests)

    def remove(self, indices: Iterable[int]) -> None:
        """Let the requests at these places of the batch go; the last ones take their places."""
        gone = set(indices)
        num_kept = len(self.requests) - len(gone)
        survivors = [i for i in range(num_kept, len(self.requests)) if i not in gone]
        order = [survivors.pop() if i in gone else i for i in range(num_kept)]
        self.requests = [self.requests[i] for i in order]
        self._select_groups(torch.tensor(order, dtype=torch.long, device=self.verifier.device))

    def _encode(self, requests: Sequence[Request], source: SourceBatch) -> EncoderOutput:
        """The encoded sources [B, S] of these requests."""
        return encode_requests(self.verifier, requests, source)

    def _start_drafting(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """Show the drafter the newcomers."""
        if self.drafting is not None:
            self.drafting.join(source, encoded)

    def _select_groups(self, groups: Tensor) -> None:
        """Keep the rows of these requests, in that order."""
        if len(groups) == 0:
            self._cache = self._encoded = self._state = None
            return
        offsets = torch.arange(self.rows_per_request, device=groups.device)
        rows = (groups[:, None] * self.rows_per_request + offsets).flatten()
        self._cache = self.cache.select_rows(rows)
        self._encoded = self.encoded.select_rows(rows)
        self._state = self.state.select_rows(rows)

    def _verify(self, draft: DraftBlock, wanted: Wanted) -> DecoderOutput:
        """Feed every committed token that is not cached, then the draft; scores [B, k+1, V]."""
        call = self.state.verify_input(draft)
        self._num_queries = call.tokens.numel()
        return self.verifier.decode(
            call.tokens, call.positions, call.lengths, self.cache, self.encoded, wanted, queries=call.queries
        )

    def _process(self, values: Tensor, draft: DraftBlock) -> Scores:
        """Apply the processors to raw scores [B, k+1, V], each row with the prefix of that row."""
        state, device = self.state, values.device
        offsets = np.arange(draft.num_slots + 1)
        context = QueryContext(
            tokens=state.with_draft(draft),
            lengths=on_device(state.lengths[:, None] + offsets, device),
            prompt_lengths=on_device(state.prompt_lengths, device),
            max_lengths=on_device(state.max_lengths, device),
            valid=on_device(offsets, device) <= draft.lengths[:, None],
        )
        return TensorScores(self.processors(values, context))
