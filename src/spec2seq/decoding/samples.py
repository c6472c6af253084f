"""Several samples of one source: a row each for the search, one request for the caller."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spec2seq.types import Emission

if TYPE_CHECKING:
    from spec2seq.decoding.search import Request
    from spec2seq.types import FinishReason


@dataclass
class SampleGroup:
    """The samples of one source, in the order of their index; they share their statistics.

    The caller knows them by the id of the first one and is told its tokens as they come. The finish reason comes when
    all are done: "error" when one of them broke, otherwise the first one's.
    """

    samples: list[Request]
    _reasons: dict[int, FinishReason] = field(default_factory=dict)

    def follow(self, emission: Emission) -> list[Emission]:
        """What the caller is told when one of the samples got this."""
        first = self.samples[0]
        told = [replace(emission, finish_reason=None)] if emission.request == first.id and emission.token_ids else []
        if emission.finish_reason is None:
            return told
        self._reasons[emission.request] = emission.finish_reason
        if len(self._reasons) < len(self.samples):
            return told
        reason = "error" if "error" in self._reasons.values() else self._reasons[first.id]
        return [*told, Emission(first.id, [], [], emission.round, reason)]

    def gather(self) -> None:
        """Put the texts of all samples, as far as they got, and what went wrong in any into the first one."""
        first = self.samples[0]
        first.hypotheses = [sample.hypothesis() for sample in self.samples]
        first.error = next((sample.error for sample in self.samples if sample.error), None)
