"""Figures for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from spec2seq.serving.engine import Engine, Outcome
    from spec2seq.serving.jobs import Job
    from spec2seq.types import RequestStats

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS_PER_ROUND = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 12, 16, 26)
# Acceptance is told for so many positions of a block, and for all the others together.
NUM_POSITIONS = 16


class Metrics:
    """All figures of one service; an `EngineObserver`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter("http_requests", "Requests by route, method and status.", "route method status")
        self._latency = self._histogram("http_request_seconds", "From first byte to last.", _SECONDS, "route")
        self._jobs = self._counter("jobs", "What became of the jobs of the model.", "outcome")
        self._waited = self._histogram("wait_seconds", "From arrival until the model began.", _SECONDS)
        self._round_seconds = self._histogram("round_seconds", "One round of one batch.", _SECONDS)
        self._round_rows = self._histogram("round_rows", "Rows of a round's batch.", _ROWS)
        self._failures = self._counter("failed_batches", "Batches on which the model raised an error.")
        self._tokens = self._counter("tokens", "Emitted tokens.")
        self._rounds = self._counter("rounds", "Rounds, counted for every line or sentence.")
        self._drafted = self._counter("drafted_tokens", "Drafted tokens.")
        self._judged = self._counter("judged_tokens", "Drafted tokens that counted, by place in the block.", "position")
        self._accepted = self._counter("accepted_tokens", "Drafted tokens that were kept, by place.", "position")
        self._tokens_per_round = self._histogram("tokens_per_round", "Of every text.", _TOKENS_PER_ROUND)
        self._seconds = self._counter("decoding_seconds", "Where the model's time went.", "stage")
        for stage in ("encode", "draft", "verify", "rest"):
            self._seconds.labels(stage)

    def watch(self, engine: Engine) -> None:
        """Read the lengths of an engine's queue and batches whenever the figures are asked for."""
        self._gauge("waiting", "Requests that the model has not begun with.").set_function(lambda: engine.num_waiting)
        self._gauge("running", "Lines and sentences being decoded.").set_function(lambda: engine.num_running)

    def text(self) -> bytes:
        """All figures in Prometheus' own format."""
        return generate_latest(self.registry)

    def responded(self, route: str, method: str, status: int, seconds: float) -> None:
        """A response was sent to its end."""
        self._requests.labels(route, method, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def began(self, seconds: float) -> None:
        self._waited.observe(seconds)

    def stepped(self, num_rows: int, seconds: float) -> None:
        self._round_rows.observe(num_rows)
        self._round_seconds.observe(seconds)

    def failed_batch(self) -> None:
        self._failures.inc()

    def ended(self, job: Job, outcome: Outcome) -> None:
        self._jobs.labels(outcome).inc()
        for result in job.results or ():
            if result.stats.num_rounds:
                self._add(result.stats)

    def _add(self, stats: RequestStats) -> None:
        self._tokens.inc(stats.num_tokens)
        self._rounds.inc(stats.num_rounds)
        self._drafted.inc(stats.num_drafted)
        self._tokens_per_round.observe(stats.tokens_per_round)
        for counter, counts in (
            (self._judged, stats.judged_per_position),
            (self._accepted, stats.accepted_per_position),
        ):
            for position, count in enumerate(counts, start=1):
                label = str(position) if position <= NUM_POSITIONS else f"{NUM_POSITIONS + 1}+"
                counter.labels(label).inc(count)
        for stage in ("encode", "draft", "verify", "rest"):
            self._seconds.labels(stage).inc(getattr(stats, f"seconds_{stage}"))

    def _counter(self, name: str, text: str, labels: str = "") -> Counter:
        return Counter(name, text, labels.split(), namespace="spec2seq", registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, namespace="spec2seq", registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: str = "") -> Histogram:
        return Histogram(name, text, labels.split(), namespace="spec2seq", registry=self.registry, buckets=buckets)
