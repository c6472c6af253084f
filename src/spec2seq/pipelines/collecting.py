"""Putting the pieces' outputs back together, input by input, as they finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec2seq.errors import NumericsError
from spec2seq.pipelines.results import blank_result, join_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spec2seq.pipelines.plans import InputPlan
    from spec2seq.pipelines.results import GenerationResult
    from spec2seq.types import DecodedRequest

    OnProgress = Callable[[int, int], None]
    OnResult = Callable[[int, GenerationResult], None]


@dataclass(frozen=True)
class Reporter:
    """Whom to tell when an input is finished: `on_progress(finished, all)` and `on_result(index, result)`."""

    on_progress: OnProgress | None = None
    on_result: OnResult | None = None


class Collector:
    """Takes the outcome of every piece and makes one result per input.

    Args:
        plans: of all inputs; their pieces are numbered through in order.
        decode: token ids to text; None leaves the results without text.
        reporter: told about every finished input, blank ones first.
    """

    def __init__(
        self, plans: Sequence[InputPlan], decode: Callable[[Sequence[int]], str] | None, reporter: Reporter
    ) -> None:
        self.pieces = [piece for plan in plans for piece in plan.pieces]
        self._plans = plans
        self._decode = decode
        self._reporter = reporter
        self._places = [(i, place) for i, plan in enumerate(plans) for place in range(len(plan.pieces))]
        self._outcomes: list[dict[int, DecodedRequest]] = [{} for _ in plans]
        self._results: list[GenerationResult | None] = [None] * len(plans)
        self._errors: dict[int, str] = {}
        self._num_finished = 0
        for i, plan in enumerate(plans):
            if not plan.pieces:
                self._finish(i, blank_result(plan.split.join([]) if decode else ""))

    def add(self, piece: int, outcome: DecodedRequest) -> None:
        """Take in the outcome of one piece."""
        index, place = self._places[piece]
        outcomes = self._outcomes[index]
        outcomes[place] = outcome
        if len(outcomes) < len(self._plans[index].pieces):
            return
        requests = [outcomes[i] for i in sorted(outcomes)]
        broken = next((request for request in requests if request.finish_reason == "error"), None)
        if broken:
            self._errors[index] = broken.error or "the model failed"
            self._finish(index, None)
        else:
            self._finish(index, join_results(requests, self._texts(index, requests)))
        outcomes.clear()

    def results(self, label: Callable[[int], str]) -> list[GenerationResult]:
        """All results, once every piece was added. `label(index)` is what messages call an input.

        Raises:
            NumericsError: the model failed on some inputs; holds the results of the others.
        """
        if self._errors:
            first = min(self._errors)
            others = f" ({len(self._errors)} inputs failed)" if len(self._errors) > 1 else ""
            raise NumericsError(f"{label(first)}: {self._errors[first]}{others}", self._results)
        return [result for result in self._results if result is not None]

    def _texts(self, index: int, requests: Sequence[DecodedRequest]) -> list[str]:
        """The joined text of every rank of hypotheses."""
        num_ranks = len(requests[0].hypotheses)
        if self._decode is None:
            return [""] * num_ranks
        return [
            self._plans[index].split.join([self._decode(request.hypotheses[rank].token_ids) for request in requests])
            for rank in range(num_ranks)
        ]

    def _finish(self, index: int, result: GenerationResult | None) -> None:
        self._results[index] = result
        self._num_finished += 1
        if result is not None and self._reporter.on_result:
            self._reporter.on_result(index, result)
        if self._reporter.on_progress:
            self._reporter.on_progress(self._num_finished, len(self._plans))
