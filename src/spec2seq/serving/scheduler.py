"""Who is let in, whose round it is, and what happens when the model fails on a batch. Runs in the model's thread."""

from __future__ import annotations

import logging
import warnings
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Protocol

from spec2seq.errors import InputError, OptionError, Spec2SeqError
from spec2seq.pipelines.drafter_choice import is_drafter_used
from spec2seq.pipelines.streaming import check_streamable
from spec2seq.serving.fair_queue import FairQueue
from spec2seq.serving.lanes import Entry, LaneKey, LaneSet, rows_of
from spec2seq.serving.refusals import ModelFailureError

if TYPE_CHECKING:
    from spec2seq.decoding.loop import Decoder
    from spec2seq.generation_options import GenerationOptions, ResolvedOptions
    from spec2seq.pipelines.pipeline import Pipeline
    from spec2seq.pipelines.plans import InputPlan
    from spec2seq.serving.jobs import Job
    from spec2seq.serving.lanes import Lane

LOG = logging.getLogger("spec2seq.serving")
# Source tokens that may be encoded between two rounds: the rows that are running wait meanwhile.
NEWCOMER_TOKENS = 1024
# What a broken model or a tokenizer may raise. Whoever it happened to is told, and the others go on.
MODEL_ERRORS = (ArithmeticError, AssertionError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class Observer(Protocol):
    """Takes the figures."""

    def began(self, seconds: float) -> None:
        """A job waited so long for the model."""

    def stepped(self, num_rows: int, seconds: float) -> None:
        """A round of so many rows took so long."""

    def failed_batch(self) -> None:
        """The model raised an error."""


class Scheduler:
    """Jobs in, rounds out.

    Args:
        pipeline: the model; nobody else decodes with it meanwhile.
        defaults: options where a call says nothing.
        max_batch_tokens: as in `Limits`.
        observer: told about waiting and rounds.
    """

    def __init__(
        self, pipeline: Pipeline, defaults: GenerationOptions, max_batch_tokens: int, observer: Observer
    ) -> None:
        self._pipeline = pipeline
        self._defaults = defaults
        self._max_batch_tokens = max_batch_tokens
        self._observer = observer
        self._queue: FairQueue[Job, Entry] = FairQueue()
        self._lanes = LaneSet(self._new_decoder, max_batch_tokens)

    @property
    def num_running(self) -> int:
        """How many pieces are being decoded."""
        return len(self._lanes.entries)

    def plan(self, job: Job) -> None:
        """Find out what a job comes to and queue its pieces; one that is not valid fails."""
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                options, plans = self._prepare(job)
            decode = self._pipeline.tokenizer.decode
            told = [str(warning.message) for warning in caught]
            is_drafting = self._pipeline.make_drafter is not None and is_drafter_used(options)
            job.accept(options, plans, decode, told, is_drafting=is_drafting)
        except (InputError, OptionError) as error:
            job.fail(error)
        except (*MODEL_ERRORS, Spec2SeqError) as error:
            self._give_up(job, error)
        else:
            self._queue.add(job, [(entry := Entry(job, i), _size(entry)) for i in range(len(job.pieces))])

    def let_in(self) -> None:
        """Let those in whose turn it is, as far as there is room and running rows need not wait for long."""
        closed: set[LaneKey] = set()
        num_tokens = 0
        while num_tokens < NEWCOMER_TOKENS and (found := self._next_entry(closed)):
            lane, entry = found
            self._queue.take(entry.job)
            num_tokens += _size(entry)
            if entry.job.began is None:
                self._observer.began(monotonic() - entry.job.submitted)
            entry.job.begin()
            try:
                lane.add(entry)
            except (InputError, OptionError) as error:
                self._fail(entry.job, error)

    def step(self) -> None:
        """One round of the lane whose turn it is."""
        lane = self._lanes.next()
        if lane is None:
            return
        num_rows, start = lane.decoder.size.num_rows, perf_counter()
        try:
            news = lane.step()
        except (*MODEL_ERRORS, Spec2SeqError) as error:
            self._isolate(lane, error)
            return
        seconds = perf_counter() - start
        lane.charge(seconds)
        self._observer.stepped(num_rows, seconds)
        for one in news:
            job = one.owner.job
            try:
                job.take(one)
            except MODEL_ERRORS as error:
                self._give_up(job, error)

    def drop(self, job: Job) -> None:
        """A job's pieces leave, wherever they are."""
        self._queue.remove(job)
        self._lanes.drop(job)

    def _prepare(self, job: Job) -> tuple[ResolvedOptions, list[InputPlan]]:
        call = job.call
        options, plans = self._pipeline.prepare(call.texts, call.text_options, self._defaults, **call.arguments)
        if call.telling != "nothing":
            check_streamable(options, "streaming")
        return options, plans

    def _new_decoder(self, options: ResolvedOptions) -> Decoder:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that beams leave the drafter unused, once per batch
            return self._pipeline.new_decoder(options, self._max_batch_tokens)

    def _next_entry(self, closed: set[LaneKey]) -> tuple[Lane, Entry] | None:
        """The first waiting entry that may join its lane. Lanes that nobody may join any more are added to `closed`."""
        for job, entry in self._queue.heads():
            key = LaneKey.of(entry)
            lane = None if key in closed else self._find_lane(entry, closed)
            if lane is None or lane.is_share_used(job):
                continue
            if self._lanes.has_room(lane, entry):
                return lane, entry
            closed.add(key)  # who comes behind does not overtake: large pieces would wait for ever
        return None

    def _find_lane(self, entry: Entry, closed: set[LaneKey]) -> Lane | None:
        try:
            lane = self._lanes.find(entry)
        except OptionError as error:
            self._fail(entry.job, error)
            return None
        if lane is None:
            closed.add(self._lanes.smallest().key)  # it runs empty and makes way for a new one
        return lane

    def _isolate(self, lane: Lane, error: Exception) -> None:
        """The model failed on a batch: try each of its pieces by itself. One that was by itself is to blame."""
        _log(error, "a batch")
        self._observer.failed_batch()
        for entry in self._lanes.close(lane):
            if entry.job.is_over:
                continue
            if entry.is_alone or not entry.job.restart(entry.piece):
                self._fail(entry.job, _model_failure())
            else:
                self._queue.add(entry.job, [(entry._replace(is_alone=True), _size(entry))])

    def _give_up(self, job: Job, error: Exception) -> None:
        _log(error, "a request")
        self._fail(job, _model_failure())

    def _fail(self, job: Job, error: Spec2SeqError) -> None:
        job.fail(error)
        self.drop(job)


def _size(entry: Entry) -> int:
    """Source tokens of all rows."""
    return rows_of(entry) * entry.source_length


def _model_failure() -> ModelFailureError:
    return ModelFailureError("the model failed on this input; the log of the service says where")


def _log(error: Exception, subject: str) -> None:
    """Where it happened, and what kind of error it was: its message may hold a user's text."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" in {place.tb_frame.f_code.co_qualname}, line {place.tb_lineno}"
    LOG.error("the model failed on %s: %s%s", subject, type(error).__name__, where)
