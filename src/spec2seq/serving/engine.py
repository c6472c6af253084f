"""The model's thread: takes calls from the event loop, runs rounds, tells what came of them."""

from __future__ import annotations

import json
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Literal, Protocol

from spec2seq.errors import InputError, OptionError
from spec2seq.serving.jobs import Job, Mailbox
from spec2seq.serving.refusals import DeadlineError, ModelFailureError, QueueFullError, RefusalError, ShuttingDownError
from spec2seq.serving.scheduler import LOG, Observer, Scheduler

if TYPE_CHECKING:
    from spec2seq.generation_options import GenerationOptions
    from spec2seq.pipelines.pipeline import Pipeline
    from spec2seq.serving.calls import TextCall
    from spec2seq.serving.limits import Limits

# Characters that may be tokenised between two rounds; one request is always planned.
PLANNED_CHARS = 4000

Status = Literal["ok", "starting", "shutting down", "broken"]
Outcome = Literal["finished", "refused", "failed", "cancelled", "late"]


class EngineObserver(Observer, Protocol):
    """Takes the figures of all jobs too."""

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A job is over."""


class Engine:
    """Decodes the calls of many callers in continuous batches; each gets what it would get alone.

    Args:
        pipeline: the model.
        defaults: options where a call says nothing.
        limits: of the queue, the batch and the time; what a call may ask for is the caller's business.
        observer: told about everything that happens.
        has_texts_in_log: whether the log gets the texts of every call.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        defaults: GenerationOptions,
        limits: Limits,
        observer: EngineObserver,
        *,
        has_texts_in_log: bool = False,
    ) -> None:
        self.limits = limits
        self._has_texts_in_log = has_texts_in_log
        self._pipeline = pipeline
        self._observer = observer
        self._scheduler = Scheduler(pipeline, defaults, limits.max_batch_tokens, observer)
        self._changed = threading.Condition()
        self._inbox: deque[Job] = deque()
        self._jobs: dict[Job, None] = {}  # that the model's thread knows and that are not over, in their order
        self._is_refusing = False
        self._is_aborting = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    @property
    def status(self) -> Status:
        """What the engine is doing: "broken" is for good."""
        if self._thread.ident is None:
            return "starting"
        if self._is_refusing:
            return "shutting down"
        return "broken" if self._has_ended else "ok"

    @property
    def num_waiting(self) -> int:
        """How many calls the model has not begun with."""
        return len(self._inbox) + sum(job.began is None for job in list(self._jobs))

    @property
    def num_running(self) -> int:
        """How many lines and sentences are being decoded."""
        return self._scheduler.num_running

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, call: TextCall) -> Job:
        """Queue a call; to be called in the event loop that waits for its events.

        Raises:
            QueueFullError, ShuttingDownError: it is not taken.
        """
        limit = self.limits.max_queue
        job = Job(call, self.limits.timeout, Mailbox())
        with self._changed:  # or the thread could end between the look at it and the call's arrival
            if self.status != "ok":
                raise ShuttingDownError(f"the service is {self.status}; try again elsewhere or later")
            if self.num_waiting >= limit:
                raise QueueFullError(f"{limit} requests (max_queue) are waiting already; try again in a moment")
            self._inbox.append(job)
            self._changed.notify()
        if self._has_texts_in_log:
            LOG.info("texts: %s", json.dumps(list(call.texts)))
        return job

    def refuse_new(self) -> None:
        """From now on only what was taken is worked on. May be called in a signal handler."""
        self._is_refusing = True

    def stop(self, grace: float) -> None:
        """Finish what was taken, for at most so many seconds; whoever is not done by then is told so."""
        self.refuse_new()
        with self._changed:
            self._changed.notify()
        if self._thread.ident is None:
            return
        self._thread.join(grace)
        self._is_aborting = True
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                with self._pipeline.turn(self.limits.max_batch_tokens):
                    self._drop_lost()
                    self._plan_new()
                    self._scheduler.let_in()
                    self._scheduler.step()
                    self._forget_over()
        finally:
            with self._changed:
                self._has_ended = True
                for job in [*self._inbox, *self._jobs]:
                    job.fail(self._last_word())

    def _last_word(self) -> RefusalError:
        if self._is_aborting:
            return ShuttingDownError("the service was stopped before the output was ready; try again later")
        return ModelFailureError("the service is broken and must be started again")

    def _wait_for_work(self) -> bool:
        """Wait until there is some; False when there never will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._jobs or self._is_refusing)
            return bool(self._inbox or self._jobs) and not self._is_aborting

    def _drop_lost(self) -> None:
        """Let go of jobs that nobody waits for any more, and of those whose time is up."""
        now = monotonic()
        for job in list(self._jobs):
            if job.is_cancelled:
                self._end(job, "cancelled")
            elif now > job.deadline:
                seconds = f"{self.limits.timeout:g} s"
                job.fail(DeadlineError(f"the output was not ready within {seconds} (timeout); send less at once"))
                self._end(job, "late")

    def _plan_new(self) -> None:
        num_chars = 0
        while self._inbox and num_chars < PLANNED_CHARS:
            job = self._inbox[0]
            self._jobs[job] = None  # before it leaves the inbox: whoever counts sees it twice rather than not at all
            self._inbox.popleft()
            if not job.is_cancelled:
                num_chars += sum(map(len, job.call.texts))
                self._scheduler.plan(job)

    def _forget_over(self) -> None:
        for job in [job for job in self._jobs if job.is_over]:
            is_invalid = isinstance(job.error, (InputError, OptionError))
            self._end(job, "finished" if job.error is None else "refused" if is_invalid else "failed")

    def _end(self, job: Job, outcome: Outcome) -> None:
        self._scheduler.drop(job)
        self._observer.ended(job, outcome)
        del self._jobs[job]
