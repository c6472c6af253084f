"""The drafter at work for a batch: started once it pays, asked for as many tokens as pay, told what became of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from spec2seq.decoding.controller import Round

if TYPE_CHECKING:
    from spec2seq.decoding.controller import DraftLength
    from spec2seq.decoding.state import Commitment, Counts, DecodeState
    from spec2seq.decoding.stats import Stopwatch
    from spec2seq.interfaces import Drafter, EncoderOutput
    from spec2seq.types import SourceBatch


class StartableBatch(Protocol):
    """The rows of a search, as a drafter is started with them."""

    @property
    def num_rows(self) -> int:
        """How many there are."""

    @property
    def encoded(self) -> EncoderOutput:
        """Their sources, encoded by the verifier."""

    def sources(self) -> SourceBatch:
        """The token ids of their sources."""

    def tokens_left(self) -> float:
        """How many tokens each row is expected to get yet."""


class Drafting:
    """A drafter and who says how much it drafts.

    Where that may be nothing, the drafter is not started before it is more, and then with all the rows that there are;
    rows that join while it is idle make it drop the others. One that reads the verifier's states has to see all of
    them, and is started with every row at once.

    Attributes:
        drafter, length: these two.
        is_started: whether the drafter has the rows of the batch. It has all of them or none.
        num_draft_tokens: how many tokens the present round is to draft.
    """

    def __init__(self, drafter: Drafter, length: DraftLength) -> None:
        self.drafter = drafter
        self.length = length
        self.is_started = False
        self.num_draft_tokens = 0
        self._may_wait = length.is_free and not drafter.hidden_layers

    def join(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """Rows come to the end of the batch."""
        if not self._may_wait or (self.is_started and self.num_draft_tokens):
            self.drafter.start(source, encoded)
            self.is_started = True
        elif self.is_started:
            self.select_rows(torch.zeros(0, dtype=torch.long, device=source.ids.device))

    def begin_round(self, batch: StartableBatch, watch: Stopwatch) -> None:
        """Settle how many tokens to draft, and start the drafter if these are the first."""
        tokens_left = None if self.is_started else batch.tokens_left
        self.num_draft_tokens = self.length.plan(batch.num_rows, tokens_left)
        if self.num_draft_tokens and not self.is_started:
            self.drafter.start(batch.sources(), batch.encoded)
            self.is_started = True
            self.length.learn_start(batch.num_rows, watch.lap("start"))

    def end_round(
        self, num_queries: int, num_drafted: Counts, commitment: Commitment, state: DecodeState, watch: Stopwatch
    ) -> None:
        """Tell what became of the round, before finished rows leave.

        Args:
            num_queries: rows x tokens of the verifier call.
            num_drafted: [B] tokens proposed.
            commitment, state: what each row got, and where that left it.
            watch: of the round.
        """
        count = self.num_draft_tokens
        seconds_rest = watch.seconds["verify"] + watch.seconds["rest"]
        num_accepted, num_judged, num_drafts = [], [], 0
        if count:
            accepted = commitment.num_accepted
            # behind an accepted end, and at the end of a budget, nothing more could have been kept
            goes_on = (accepted < commitment.num_tokens) & (state.lengths < state.max_lengths)
            num_accepted, num_judged = accepted.tolist(), np.minimum(accepted + goes_on, count).tolist()
            num_drafts = int(np.count_nonzero(num_drafted))
        seconds = watch.seconds["draft"], seconds_rest
        self.length.learn(Round(state.num_rows, count, num_queries, *seconds, num_accepted, num_judged, num_drafts))

    def select_rows(self, rows: torch.Tensor) -> None:
        """Keep the rows `rows` [B'] of the batch, in that order."""
        if self.is_started:
            self.drafter.select_rows(rows)
            self.is_started = len(rows) > 0
