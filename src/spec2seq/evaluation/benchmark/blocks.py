"""Speculation by the number of drafted tokens: what it gives, and whether the cost model explains it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from spec2seq.evaluation.benchmark.call_costs import measure_calls
from spec2seq.evaluation.benchmark.cost_model import needed_tokens_per_round, predicted_speedup
from spec2seq.evaluation.benchmark.profiles import AcceptanceProfile
from spec2seq.evaluation.benchmark.records import system_as_dict
from spec2seq.evaluation.benchmark.timing import TimedPass, batches_of, by_turns, timed_pass
from spec2seq.pipelines.results import sum_stats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spec2seq.evaluation.benchmark.cost_model import CallCosts
    from spec2seq.evaluation.benchmark.engines import OurEngine
    from spec2seq.evaluation.benchmark.setup import BenchmarkSetup
    from spec2seq.evaluation.benchmark.systems import System
    from spec2seq.evaluation.benchmark.timing import IdLists
    from spec2seq.types import RequestStats

MAX_ROUNDS = 3
WISHES = (1.3, 1.5)  # times the speed of the best plain search of a peer


@dataclass(frozen=True)
class _Blocks:
    """A `Runner` that drafts a fixed number of tokens; 0 is plain search."""

    engine: OurEngine
    num_draft_tokens: int

    def run(self, sources: IdLists) -> list[list[int]]:
        return self.engine.run_exact(sources, self.num_draft_tokens)

    def take_stats(self) -> list[RequestStats]:
        return self.engine.take_stats()


@dataclass(frozen=True)
class BlockFigures:
    """What one number of draft tokens gave over all texts, one at a time.

    Attributes:
        seconds: median over the rounds.
        stats: of one pass.
    """

    num_draft_tokens: int
    seconds: float
    num_texts: int
    stats: RequestStats

    @property
    def survival(self) -> list[float]:
        """s_i: of all rounds, the share in which draft token i was reached and accepted."""
        return [count / self.stats.num_rounds for count in self.stats.accepted_per_position[: self.num_draft_tokens]]


def study_blocks(setup: BenchmarkSetup, system: System, peer_seconds: Mapping[str, float]) -> AcceptanceProfile | None:
    """Decode with every block size, by turns with plain search on the same engine, and check the cost model.

    Args:
        setup: of the benchmark.
        system: the exact method on its best engine.
        peer_seconds: seconds per text of the peers' plain searches, by contest.

    Returns:
        The acceptance by block size; None where nothing was drafted.
    """
    engine = setup.loader.load_ours(system.engine)
    sizes = possible_sizes(engine, setup.settings.block_sizes)
    if not sizes:
        return None
    found = time_blocks(setup, system, engine, sizes)
    costs = measure_calls(engine, setup.typical(setup.settings.num_cost_texts), sizes, setup.clock, setup.tell)
    costs = replace(costs, host=host_seconds(costs, found[0]))
    setup.records.add("costs", {"system": system_as_dict(system), **costs.as_dict()})
    for size in sizes:
        _check_cost_model(setup, system, costs, found, size, peer_seconds)
    survival = {size: tuple(found[size].survival) for size in sizes}
    rates = {size: found[size].stats.tokens_per_round for size in sizes}
    return AcceptanceProfile(f"{setup.loader.model.name}, {setup.loader.drafter}", rates, survival)


def possible_sizes(engine: OurEngine, block_sizes: Sequence[int]) -> list[int]:
    """Those numbers of draft tokens that the engine's drafter can do."""
    if engine.pipeline.make_drafter is None:
        return []
    limit = engine.pipeline.make_drafter().max_draft_tokens
    return [size for size in block_sizes if size > 0 and (limit is None or size <= limit)]


def time_blocks(
    setup: BenchmarkSetup, system: System, engine: OurEngine, sizes: Sequence[int]
) -> dict[int, BlockFigures]:
    """Figures by number of draft tokens; 0 is plain search."""
    batches, _ = batches_of(setup.sources, 1)
    runners = [_Blocks(engine, size) for size in (0, *sizes)]
    passes: dict[int, list[TimedPass]] = {runner.num_draft_tokens: [] for runner in runners}
    num_rounds = min(MAX_ROUNDS, setup.settings.num_rounds)
    for runner in runners:
        timed_pass(runner, batches[: setup.settings.num_probe_texts], setup.clock)
    for turn, runner in by_turns(runners, num_rounds):
        setup.tell(f"block sizes: round {turn} of {num_rounds}, {runner.num_draft_tokens} draft tokens")
        passes[runner.num_draft_tokens].append(timed_pass(runner, batches, setup.clock))
    figures = {size: _figures(size, its_passes) for size, its_passes in passes.items()}
    for size, its_passes in passes.items():
        setup.records.add(
            "blocks",
            {
                "system": system_as_dict(system),
                "drafter": setup.loader.drafter,
                "num_draft_tokens": size,
                "texts": figures[size].num_texts,
                "tokens": figures[size].stats.num_tokens,
                "rounds": figures[size].stats.num_rounds,
                "tokens_per_round": figures[size].stats.tokens_per_round,
                "survival": figures[size].survival,
                "seconds": [one.seconds for one in its_passes],
            },
        )
    return figures


def _figures(num_draft_tokens: int, passes: Sequence[TimedPass]) -> BlockFigures:
    seconds = median(one.seconds for one in passes)
    return BlockFigures(num_draft_tokens, seconds, len(passes[0].outputs), sum_stats(passes[0].stats))


def host_seconds(costs: CallCosts, plain: BlockFigures) -> float:
    """What a round of plain search takes beside the calls of the model."""
    calls = plain.num_texts * costs.encode + plain.stats.num_rounds * costs.verify[0]
    return max(0.0, (plain.seconds - calls) / plain.stats.num_rounds)


def _check_cost_model(
    setup: BenchmarkSetup,
    system: System,
    costs: CallCosts,
    found: Mapping[int, BlockFigures],
    size: int,
    peer_seconds: Mapping[str, float],
) -> None:
    plain, blocks = found[0], found[size]
    num_tokens = plain.stats.num_tokens / plain.num_texts
    # a step takes its verifier call at least, however the machine's moods were spread over the two measurements
    step = max(costs.verify[0], (plain.seconds - plain.num_texts * costs.encode) / plain.stats.num_rounds)
    predicted = predicted_speedup(costs, step, num_tokens, blocks.stats.tokens_per_round, size)
    measured = plain.seconds / blocks.seconds
    needed = partial(needed_tokens_per_round, costs, num_tokens=num_tokens, num_draft_tokens=size)
    wishes = {
        contest: {str(wish): needed(text_seconds=seconds / wish) for wish in WISHES}
        for contest, seconds in peer_seconds.items()
    }
    setup.records.add(
        "cost_model",
        {
            "system": system_as_dict(system),
            "num_draft_tokens": size,
            "tokens_per_round": blocks.stats.tokens_per_round,
            "verify_cost": costs.verify[size] / step,
            "draft_cost": costs.draft[size] / step,
            "predicted_speedup": predicted,
            "measured_speedup": measured,
            "share": measured / predicted,
            "needed_tokens_per_round": wishes,
        },
    )
