"""How far apart two systems are on the same lines, with what chance has to do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spec2seq.errors import MissingExtraError
from spec2seq.evaluation.quality import NUM_RESAMPLES, check_lengths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SEED = 12345  # as sacreBLEU's own tests have it


@dataclass(frozen=True)
class ScoreDifference:
    """A system's score minus the baseline's.

    Attributes:
        name: "BLEU" or "chrF2".
        value: on all lines.
        low, high: 95 % interval over resampled lines, the same lines for both systems (Koehn 2004).
    """

    name: str
    value: float
    low: float
    high: float


def score_differences(
    outputs: Mapping[str, Sequence[str]],
    references: Sequence[str],
    baseline: str,
    num_resamples: int = NUM_RESAMPLES,
) -> dict[str, list[ScoreDifference]]:
    """BLEU and chrF of every other system minus the baseline's.

    Args:
        outputs: by system, one detokenised text per line.
        references: one per line.
        baseline: one of the systems.
        num_resamples: of the bootstrap.

    Raises:
        InputError: outputs and references differ in number, or there are none.
        MissingExtraError: sacrebleu is not installed.
    """
    check_lengths(outputs, references)
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise MissingExtraError(f"BLEU and chrF need more packages ({error}): pip install 'spec2seq[eval]'") from error
    draws = _draws(len(references), num_resamples)
    differences: dict[str, list[ScoreDifference]] = {system: [] for system in outputs if system != baseline}
    for metric in (BLEU(references=[list(references)]), CHRF(references=[list(references)])):
        own = {system: _Resampled(metric, texts, draws) for system, texts in outputs.items()}
        for system, found in differences.items():
            found.append(own[system].minus(own[baseline]))
    return differences


def _draws(num_lines: int, num_resamples: int) -> Any:
    """[R, N] how often each line is in each resample."""
    chance = np.random.default_rng(SEED)
    rows = chance.choice(num_lines, size=(num_resamples, num_lines), replace=True)
    return np.stack([np.bincount(row, minlength=num_lines) for row in rows]).astype(np.float64)


class _Resampled:
    """One system's scores by one metric. Both metrics are sums over lines until the very end."""

    def __init__(self, metric: Any, texts: Sequence[str], draws: Any) -> None:
        sums = metric._extract_corpus_statistics(list(texts), None)
        table = np.array(sums, dtype=np.float64)
        self.name, self.value = self._score(metric, table.sum(0))
        self.resampled = np.array([self._score(metric, row)[1] for row in draws @ table])

    @staticmethod
    def _score(metric: Any, sums: Any) -> tuple[str, float]:
        score = metric._compute_score_from_stats(sums.tolist())
        return str(score.name), float(score.score)

    def minus(self, other: _Resampled) -> ScoreDifference:
        low, high = np.quantile(self.resampled - other.resampled, (0.025, 0.975))
        return ScoreDifference(self.name, self.value - other.value, float(low), float(high))
