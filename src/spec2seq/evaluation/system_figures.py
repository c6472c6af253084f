"""What runs on the same lines come to, system by system."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from spec2seq.errors import InputError
from spec2seq.evaluation.paired_bootstrap import ScoreDifference, score_differences
from spec2seq.evaluation.quality import Score, score_systems

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spec2seq.evaluation.line_runs import LineRun


@dataclass(frozen=True)
class SystemFigures:
    """One system on the lines that count.

    Attributes:
        system: its name.
        num_lines: that count.
        num_loops: of all lines, those whose output by this system runs in circles.
        num_different: lines whose output is not that of the system it is compared with.
        tokens_per_round: mean; None where it has no meaning (beams).
        acceptance_rate: accepted per judged draft token; None where none was judged.
        seconds_per_line: mean, one line at a time; None where no line is left.
        scores: BLEU and chrF; empty without references.
        differences: of the scores to the baseline's; empty for the baseline itself.
        survival: for each draft token, the share of all rounds in which it was kept; empty where none ever was.
    """

    system: str
    num_lines: int
    num_loops: int
    num_different: int
    tokens_per_round: float | None
    acceptance_rate: float | None
    seconds_per_line: float | None
    scores: list[Score]
    differences: list[ScoreDifference]
    survival: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def lines_that_count(runs: Mapping[str, Sequence[LineRun]], unchecked: Sequence[str] = ()) -> list[int]:
    """Lines on which no output runs in circles: such outputs flatter every figure, and all systems are to be compared
    on the same lines. Those of systems that nobody checks (`unchecked`) are not looked at: loops are their own fault.

    Raises:
        InputError: none is left.
    """
    checked = [own for system, own in runs.items() if system not in unchecked]
    num_lines = len(checked[0]) if checked else 0
    kept = [i for i in range(num_lines) if not any(own[i].is_degenerate for own in checked)]
    if not kept:
        raise InputError(f"the outputs for all {num_lines} lines run in circles; train the model longer")
    return kept


def system_figures(
    runs: Mapping[str, Sequence[LineRun]],
    references: Sequence[str] | None,
    decode: Callable[[Sequence[int]], str],
    *,
    exact: str,
    baseline: str,
    unchecked: Sequence[str] = (),
    beams: Sequence[str] = (),
) -> list[SystemFigures]:
    """Figures of every system, on the lines that count.

    Args:
        runs: by system, one per line.
        references: one per line, or None.
        decode: token ids to text.
        exact: the system that outputs are compared with, token by token.
        baseline: the system that scores are compared with.
        unchecked: systems in which a drafter writes alone. Of their own figures, their loops are left out too.
        beams: systems whose rounds are no steps of one text.
    """
    kept = lines_that_count(runs, unchecked)
    scores: Mapping[str, list[Score]] = {}
    differences: Mapping[str, list[ScoreDifference]] = {}
    if references is not None:
        texts = {system: [decode(own[i].token_ids) for i in kept] for system, own in runs.items()}
        chosen = [references[i] for i in kept]
        first = {baseline: texts[baseline], **texts}
        scores, differences = score_systems(first, chosen), score_differences(texts, chosen, baseline)
    return [
        _figures(
            system,
            own,
            [own[i] for i in kept if system not in unchecked or not own[i].is_degenerate],
            sum(own[i].token_ids != runs[exact][i].token_ids for i in kept),
            scores.get(system, []),
            differences.get(system, []),
            is_beam=system in beams,
        )
        for system, own in runs.items()
    ]


def _figures(
    system: str,
    all_runs: Sequence[LineRun],
    runs: Sequence[LineRun],
    num_different: int,
    scores: list[Score],
    differences: list[ScoreDifference],
    *,
    is_beam: bool,
) -> SystemFigures:
    num_rounds, num_judged = sum(run.num_rounds for run in runs), sum(run.num_judged for run in runs)
    kept = [sum(counts) for counts in zip_longest(*(run.accepted_per_position for run in runs), fillvalue=0)]
    per_round = None if is_beam or not num_rounds else sum(run.num_tokens for run in runs) / num_rounds
    return SystemFigures(
        system,
        len(runs),
        sum(run.is_degenerate for run in all_runs),
        num_different,
        per_round,
        sum(run.num_accepted for run in runs) / num_judged if num_judged else None,
        sum(run.seconds for run in runs) / len(runs) if runs else None,
        scores,
        differences,
        [count / num_rounds for count in kept],
    )
