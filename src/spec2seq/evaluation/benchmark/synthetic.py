"""Costs at a size of which no trained weights are at hand, and what they promise with an acceptance known elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spec2seq.evaluation.benchmark.blocks import host_seconds, possible_sizes, time_blocks
from spec2seq.evaluation.benchmark.call_costs import measure_calls
from spec2seq.evaluation.benchmark.choice import choose_systems
from spec2seq.evaluation.benchmark.cost_model import project
from spec2seq.evaluation.benchmark.loading import EngineLoader
from spec2seq.evaluation.benchmark.measuring import measure
from spec2seq.evaluation.benchmark.memory import note_memory
from spec2seq.evaluation.benchmark.records import RecordFile, system_as_dict
from spec2seq.evaluation.benchmark.reporting import write_report
from spec2seq.evaluation.benchmark.run import run_record, text_seconds
from spec2seq.evaluation.benchmark.setup import BenchmarkSetup
from spec2seq.evaluation.benchmark.sizes import SIZES, SOURCE_LENGTH, TARGET_LENGTH
from spec2seq.evaluation.benchmark.task import DecodingTask
from spec2seq.evaluation.peers import silence_transformers
from spec2seq.evaluation.synthetic_drafters import write_random_drafter
from spec2seq.evaluation.synthetic_models import random_sources, write_random_model
from spec2seq.tokenization import TargetStart

if TYPE_CHECKING:
    from spec2seq.evaluation.benchmark.profiles import AcceptanceProfile
    from spec2seq.evaluation.benchmark.records import Record
    from spec2seq.evaluation.benchmark.run import BenchmarkOrder
    from spec2seq.evaluation.benchmark.sizes import SyntheticName, SyntheticSize
    from spec2seq.evaluation.benchmark.systems import System
    from spec2seq.evaluation.benchmark.timing import Clock

# relaxed and automatic drafting depend on what is accepted, and random weights accept nothing
CONTESTS = (
    "spec2seq-greedy",
    "spec2seq-beam5",
    "spec2seq-exact",
    "transformers-greedy",
    "transformers-beam5",
    "ctranslate2-greedy",
    "ctranslate2-beam5",
)
_EXACT = "spec2seq-exact"


def run_synthetic(
    name: SyntheticName,
    order: BenchmarkOrder,
    profile: AcceptanceProfile | None,
    num_texts: int,
    folder: Path,
    tell: Callable[[str], None],
    clock: Clock,
) -> list[Record]:
    """Measure costs with random weights and project speed-ups.

    Args:
        name: of the size.
        order: its model is not used; a drafter's folder says which drafter is measured, in the size that fits.
        profile: acceptance, measured elsewhere; None: nothing is projected.
        num_texts: texts of `SOURCE_LENGTH` tokens; every output has `TARGET_LENGTH`.
        folder: for the results; must not hold any.
        tell: is told what happens.
        clock: seconds.

    Returns:
        The records.
    """
    records = RecordFile(folder)
    with tempfile.TemporaryDirectory(prefix="spec2seq-bench-") as scratch:
        setup = _prepare(name, order, num_texts, records, Path(scratch), tell, clock)
        try:
            _run_stages(setup, name, profile)
        finally:
            write_report(records.records, folder, tell)
    return records.records


def _prepare(
    name: SyntheticName,
    order: BenchmarkOrder,
    num_texts: int,
    records: RecordFile,
    scratch: Path,
    tell: Callable[[str], None],
    clock: Clock,
) -> BenchmarkSetup:
    size = SIZES[name]
    tell(f"random weights of size {name}")
    silence_transformers()
    write_random_model(size, scratch / "model")
    drafter = order.drafter
    if drafter is not None and Path(drafter).is_dir():
        write_random_drafter(Path(drafter), scratch / "model", scratch / "drafter")
        drafter = str(scratch / "drafter")
    settings = replace(order.settings, contests=order.settings.contests or CONTESTS, batch_sizes=(1,))
    sources = random_sources(size, num_texts, SOURCE_LENGTH)
    record = run_record(replace(order, settings=settings), "random", "random ids", len(sources), TARGET_LENGTH)
    records.add("run", {**record, "model": f"{name}, random weights"})
    loader = EngineLoader(scratch / "model", drafter, _task(order, size), scratch, order.device)
    return BenchmarkSetup(loader, sources, None, None, settings, records, tell, clock)


def _task(order: BenchmarkOrder, size: SyntheticSize) -> DecodingTask:
    start = TargetStart(forced_first=size.forced_first)
    return DecodingTask(TARGET_LENGTH, is_length_fixed=True, start=start, num_draft_tokens=order.num_draft_tokens)


def _run_stages(setup: BenchmarkSetup, name: SyntheticName, profile: AcceptanceProfile | None) -> None:
    (systems,) = choose_systems(setup, None).values()
    # outputs of drafting methods would be timed with an acceptance of nothing
    timed = [system for system in systems if system.contest != _EXACT]
    measure(setup, {1: timed})
    for system in systems:
        if system.contest == _EXACT:
            _study_costs(setup, system, name, profile)
    note_memory(setup, timed)


def _study_costs(setup: BenchmarkSetup, system: System, name: SyntheticName, profile: AcceptanceProfile | None) -> None:
    engine = setup.loader.load_ours(system.engine)
    sizes = possible_sizes(engine, setup.settings.block_sizes)
    plain = time_blocks(setup, system, engine, [])[0]
    texts = setup.typical(setup.settings.num_cost_texts)
    costs = measure_calls(engine, texts, sizes, setup.clock, setup.tell, are_blocks_full=True)
    costs = replace(costs, host=host_seconds(costs, plain))
    setup.records.add("costs", {"system": system_as_dict(system), **costs.as_dict()})
    if profile is None:
        return
    peers = text_seconds(setup.records.records, 1)
    found = project(costs, profile.tokens_per_round, TARGET_LENGTH, peers)
    if found is None:
        setup.tell(f"no projection: {profile.name} knows other numbers of draft tokens than {sizes}")
        return
    setup.records.add("projection", {"size": name, "profile": profile.name, **asdict(found)})
