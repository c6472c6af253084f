"""One call on its way through the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from spec2seq.errors import NumericsError, Spec2SeqError
from spec2seq.pipelines.collecting import Collector, Reporter
from spec2seq.pipelines.plans import text_label
from spec2seq.serving.calls import Accepted, Finished
from spec2seq.serving.refusals import ModelFailureError
from spec2seq.serving.tellers import make_teller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.pipelines.piece_decoder import PieceNews
    from spec2seq.pipelines.plans import InputPlan, Piece
    from spec2seq.pipelines.results import GenerationResult
    from spec2seq.pipelines.streaming import DecodeIds
    from spec2seq.serving.calls import Event, TextCall
    from spec2seq.serving.lanes import Entry
    from spec2seq.serving.tellers import Teller
    from spec2seq.types import Emission


class Mailbox:
    """Events from the model's thread to a coroutine of the loop in which it was made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | Spec2SeqError] = asyncio.Queue()

    def put(self, events: Sequence[Event | Spec2SeqError]) -> None:
        """From any thread. Once the loop is closed nobody is there to be told."""
        if not events:
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take_in, events)

    async def get(self) -> Event:
        """The next event. Raises the error that ended the call."""
        event = await self._events.get()
        if isinstance(event, Spec2SeqError):
            raise event
        return event

    def _take_in(self, events: Sequence[Event | Spec2SeqError]) -> None:
        for event in events:
            self._events.put_nowait(event)


class Job:
    """A call, its state in the model's thread, and its events for the caller.

    The caller uses `events`, `finished` and `cancel`, the model's thread everything else.

    Attributes:
        call: what is asked for.
        submitted: when it arrived, in the seconds of `time.monotonic`, as all times here.
        deadline: when it must be done.
        is_cancelled: whether the caller has lost interest.
        error: that ended it, None before and where nothing went wrong.
        options: that apply; there once the job is planned.
        pieces: of all its texts, in order; there once the job is planned.
        began: when its first piece was let in; None before.
        results: one for each text; None until it is finished.
    """

    def __init__(self, call: TextCall, timeout: float, mailbox: Mailbox) -> None:
        self.call = call
        self.submitted = monotonic()
        self.deadline = self.submitted + timeout
        self.is_cancelled = False
        self.error: Spec2SeqError | None = None
        self.began: float | None = None
        self.options: ResolvedOptions
        self.pieces: list[Piece] = []
        self.results: list[GenerationResult] | None = None
        self._mailbox = mailbox
        self._collector: Collector
        self._teller: Teller
        self._warnings: list[str] = []
        self._num_told: list[int] = []  # tokens of every piece
        self._num_to_skip: list[int] = []  # of those, what a piece that begins anew has still to repeat
        self._num_left = 0  # pieces that are not finished

    @property
    def is_over(self) -> bool:
        """Whether the caller was told the end."""
        return self.error is not None or self.results is not None

    async def accepted(self) -> Accepted:
        """The first event. Raises as `events`."""
        event = await self._mailbox.get()
        assert isinstance(event, Accepted), "only the first event may be asked for like this"
        return event

    async def events(self) -> AsyncIterator[Event]:
        """What the caller is told, `Finished` last.

        Raises:
            OptionError, InputError: the call is not valid.
            NumericsError: the model produced NaN.
            RefusalError: something else that ended it.
        """
        while True:
            event = await self._mailbox.get()
            yield event
            if isinstance(event, Finished):
                return

    async def finished(self) -> Finished:
        """The last event. Raises as `events`."""
        while True:
            event = await self._mailbox.get()
            if isinstance(event, Finished):
                return event

    def cancel(self) -> None:
        """The result is no longer wanted; ignored when it is there."""
        self.is_cancelled = True

    def accept(
        self,
        options: ResolvedOptions,
        plans: Sequence[InputPlan],
        decode: DecodeIds,
        warnings: list[str],
        *,
        is_drafting: bool,
    ) -> None:
        """The call is valid and means this. A call of blank texts is over with it."""
        self.options, self._warnings = options, warnings
        self._collector = Collector(plans, decode, Reporter())
        self._teller = make_teller(self.call.telling, plans, decode)
        self.pieces = self._collector.pieces
        self._num_left = len(self.pieces)
        self._num_told, self._num_to_skip = [0] * self._num_left, [0] * self._num_left
        self._mailbox.put([Accepted(plans, options, is_drafting), *self._teller.begin()])
        if not self.pieces:
            self._finish()

    def begin(self) -> None:
        """The model begins with one of its pieces."""
        if self.began is None:
            self.began = monotonic()

    def take(self, news: PieceNews[Entry]) -> None:
        """One of its pieces got something."""
        if self.is_over:
            return
        piece = news.owner.piece
        emission = self._untold(piece, news.emission)
        self._mailbox.put(self._teller.take(piece, emission, self._seconds()))
        if news.outcome is not None:
            self._collector.add(piece, news.outcome)
            self._num_left -= 1
            if not self._num_left:
                self._finish()

    def restart(self, piece: int) -> bool:
        """A piece begins anew. Returns False where its output could differ from what was told of it already."""
        is_repeatable = self.options.is_seeded or not self.options.do_sample
        self._num_to_skip[piece] = self._num_told[piece]
        return is_repeatable or self.call.telling == "nothing"

    def fail(self, error: Spec2SeqError) -> None:
        """The end without a result."""
        if not self.is_over:
            self.error = error
            self._mailbox.put([error])

    def _untold(self, piece: int, emission: Emission) -> Emission:
        """The part of an emission that was not told before the piece was restarted."""
        num_repeated = min(self._num_to_skip[piece], len(emission.token_ids))
        self._num_to_skip[piece] -= num_repeated
        self._num_told[piece] += len(emission.token_ids) - num_repeated
        if not num_repeated:
            return emission
        return replace(emission, token_ids=emission.token_ids[num_repeated:], origins=emission.origins[num_repeated:])

    def _finish(self) -> None:
        try:
            results = self._collector.results(text_label)
        except NumericsError as error:
            self.fail(ModelFailureError(str(error)))
            return
        self.results = results
        num_source_tokens = sum(len(piece.source_ids) for piece in self.pieces)
        self._mailbox.put([Finished(results, num_source_tokens, self._seconds(), self._warnings)])

    def _seconds(self) -> float:
        return 0.0 if self.began is None else monotonic() - self.began
