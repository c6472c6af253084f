"""The figures of a run, for --stats."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from spec2seq.pipelines.results import sum_stats
from spec2seq.types import RequestStats

if TYPE_CHECKING:
    from spec2seq.pipelines import GenerationResult


class Summary:
    """Adds up results. Outputs that run in circles are counted apart: they would flatter the tokens per round."""

    def __init__(self) -> None:
        self._total = RequestStats()
        self._num_lines = 0
        self._num_degenerate = 0
        self._start = perf_counter()

    def add(self, result: GenerationResult) -> None:
        """Count one result."""
        self._num_lines += 1
        if result.stats.is_degenerate:
            self._num_degenerate += 1
        else:
            self._total = sum_stats([self._total, result.stats])

    def text(self) -> str:
        """Two to four lines of figures."""
        total, elapsed = self._total, perf_counter() - self._start
        lines = [
            f"{self._num_lines} lines in {elapsed:.1f} s: encode {total.seconds_encode:.1f}, draft "
            f"{total.seconds_draft:.1f}, verify {total.seconds_verify:.1f}, rest {total.seconds_rest:.1f}",
            f"{total.num_tokens} tokens in {total.num_rounds} rounds: {total.tokens_per_round:.2f} tokens per round, "
            f"{total.num_accepted} of {total.num_judged} draft tokens accepted ({total.acceptance_rate:.0%})",
        ]
        asked = [f"{k} in {count}" for k, count in enumerate(total.rounds_by_num_draft_tokens) if count]
        if len(asked) > 1:
            lines.append(f"draft tokens asked for, in rounds: {', '.join(asked)}")
        if self._num_degenerate:
            lines.append(
                f"left out of these figures: {self._num_degenerate} outputs that repeat themselves to the limit"
            )
        return "\n".join(lines)
