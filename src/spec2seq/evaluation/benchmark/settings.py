"""What a benchmark measures, and how often. Imports no torch: the command line reads the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec2seq.evaluation.quality import Task

MIN_AGREEMENT = 0.99


@dataclass(frozen=True)
class BenchmarkSettings:
    """What is measured, and how often.

    Attributes:
        batch_sizes: texts per call.
        num_rounds: timed passes of every system, after one that warms it up.
        contests, engines: which systems, see `systems.select`; all when empty.
        threads: numbers of threads that compete.
        is_full: every system is shown, not only the best engine of each method.
        block_sizes: numbers of draft tokens to look at; none when empty.
        num_probe_texts: on so few texts the best engine of each method is found.
        num_agreement_texts: on so many the engines' choices are compared with those in fp32.
        num_cost_texts: on so many the costs of single calls are measured.
        measures_memory: whether every system is run once more in a process of its own.
        task: which scores are computed.
        min_agreement: share of equal choices below which an engine of ours does not compete.
    """

    batch_sizes: tuple[int, ...] = (1,)
    num_rounds: int = 5
    contests: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    threads: tuple[int, ...] = (1, 2)
    is_full: bool = False
    block_sizes: tuple[int, ...] = (2, 4, 8, 12, 16, 24)
    num_probe_texts: int = 16
    num_agreement_texts: int = 40
    num_cost_texts: int = 8
    measures_memory: bool = True
    task: Task = "translation"
    min_agreement: float = MIN_AGREEMENT
