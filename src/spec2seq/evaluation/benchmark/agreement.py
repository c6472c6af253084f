"""The outputs that all others are compared with, and how often an engine would choose the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec2seq.evaluation.benchmark.systems import REFERENCE_BACKEND, REFERENCE_DTYPE, Engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.evaluation.benchmark.engines import LoadedEngine
    from spec2seq.evaluation.benchmark.setup import BenchmarkSetup
    from spec2seq.evaluation.benchmark.timing import IdLists


@dataclass(frozen=True)
class Agreement:
    """Places of given outputs, and at how many of them the engine's best token is the one there."""

    num_positions: int
    num_same: int

    @property
    def share(self) -> float:
        """From 0 to 1; 1 where there is no place."""
        return self.num_same / self.num_positions if self.num_positions else 1.0


def agreement(choices: IdLists, targets: IdLists, num_forced: int = 0) -> Agreement:
    """Compare choices with the outputs along which they were made.

    Args:
        choices: one token per place of each target.
        targets: outputs.
        num_forced: how many leading tokens of each are nobody's choice.
    """
    pairs = [
        pair
        for its_choices, target in zip(choices, targets, strict=True)
        for pair in list(zip(its_choices, target, strict=True))[num_forced:]
    ]
    return Agreement(len(pairs), sum(choice == token for choice, token in pairs))


def measure_agreement(setup: BenchmarkSetup, engine: LoadedEngine, outputs: IdLists) -> Agreement:
    """Of an engine with the first of the reference outputs, without a token at the limit, which may be forced."""
    count, limit = setup.settings.num_agreement_texts, setup.loader.task.max_new_tokens
    sources, targets = setup.sources[:count], [output[: limit - 1] for output in outputs[:count]]
    num_forced = int(setup.loader.task.start.forced_first is not None)
    return agreement(engine.choices(sources, targets), targets, num_forced)


def decode_reference(setup: BenchmarkSetup) -> list[list[int]]:
    """Greedy outputs of our own fp32 engine for all texts.

    Texts whose outputs run in circles to the limit are left out of the benchmark: no user wants them, and they would
    flatter whoever copies well.
    """
    threads = max(setup.settings.threads)
    setup.tell("reference outputs: greedy search in fp32")
    engine = setup.loader.load_ours(Engine("spec2seq", REFERENCE_BACKEND, REFERENCE_DTYPE, threads))
    outputs = engine.run("greedy", setup.sources)
    stats = engine.take_stats()
    kept = [i for i, one in enumerate(stats) if not one.is_degenerate]
    left_out = [i for i, one in enumerate(stats) if one.is_degenerate]
    _keep(setup, kept)
    chosen = [outputs[i] for i in kept]
    values = {"texts": len(kept), "tokens": sum(map(len, chosen)), "left_out_in_circles": left_out}
    setup.records.add("reference", values)
    if left_out:
        setup.tell(f"left out: {len(left_out)} texts whose outputs run in circles")
    return chosen


def _keep(setup: BenchmarkSetup, kept: Sequence[int]) -> None:
    setup.sources = [setup.sources[i] for i in kept]
    if setup.references is not None:
        setup.references = [setup.references[i] for i in kept]
