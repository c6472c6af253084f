"""Which systems take part: those that can be loaded, and of each method the engine that is fastest on a few texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spec2seq.errors import Spec2SeqError
from spec2seq.evaluation.benchmark.agreement import measure_agreement
from spec2seq.evaluation.benchmark.engines import LoadedSystem
from spec2seq.evaluation.benchmark.records import system_as_dict
from spec2seq.evaluation.benchmark.setup import engine_record
from spec2seq.evaluation.benchmark.systems import DRAFTING, System, catalogue, select
from spec2seq.evaluation.benchmark.timing import batches_of, timed_pass
from spec2seq.evaluation.peer_errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spec2seq.evaluation.benchmark.engines import LoadedEngine
    from spec2seq.evaluation.benchmark.setup import BenchmarkSetup
    from spec2seq.evaluation.benchmark.systems import Engine
    from spec2seq.evaluation.benchmark.timing import IdLists

# An engine prepares itself for the sizes it meets often while it runs: passes go on until its best one shows
_FEWEST_PROBES, _PROBE_SECONDS = 2, 3.0

Contestants = Mapping[int, Sequence[System]]
"""The systems to measure, by batch size."""


def choose_systems(setup: BenchmarkSetup, outputs: IdLists | None) -> Contestants:
    """The systems to measure with each batch size.

    Args:
        setup: of the benchmark.
        outputs: what the engines' choices are compared with; None where random weights leave nothing to compare.

    Raises:
        Spec2SeqError: none of them can run here.
    """
    by_engine: dict[Engine, list[System]] = defaultdict(list)
    for system in candidates(setup):
        by_engine[system.engine].append(system)
    shares: dict[tuple[str, str], float] = {}
    seconds: dict[int, dict[System, float]] = {size: {} for size in setup.settings.batch_sizes}
    for engine, systems in by_engine.items():
        loaded = load_or_skip(setup, systems[0])
        if loaded is None:
            continue
        if outputs is not None:
            try:
                _note_agreement(setup, systems[0], loaded, outputs, shares)
            except PeerError as error:
                setup.skip(systems[0], str(error))
                continue
        if _competes(setup, engine, shares):
            setup.tell(f"probe: {engine.maker} {engine.label}")
            _probe_all(setup, [LoadedSystem(system, loaded) for system in systems], seconds)
    if not any(seconds.values()):
        reasons = "; ".join(f"{engine}: {reason}" for engine, reason in setup.skipped.items())
        raise Spec2SeqError(f"none of the systems that were asked for can be compared here ({reasons}); name others")
    return {size: _winners(setup, size, its_seconds) for size, its_seconds in seconds.items()}


def load_or_skip(setup: BenchmarkSetup, system: System) -> LoadedEngine | None:
    """The system's engine; None where it cannot be had here, which is noted."""
    try:
        return setup.loader.load(system.engine)
    except Spec2SeqError as error:
        setup.skip(system, str(error))
        return None


def candidates(setup: BenchmarkSetup) -> list[System]:
    """The systems that were asked for.

    Raises:
        OptionError: an unknown name, or nothing is left.
    """
    settings = setup.settings
    systems = catalogue(settings.threads, setup.loader.device)
    if setup.loader.drafter is None:
        systems = [system for system in systems if system.method not in DRAFTING]
    return select(systems, settings.contests, settings.engines)


def _note_agreement(
    setup: BenchmarkSetup,
    system: System,
    loaded: LoadedEngine,
    outputs: IdLists,
    shares: dict[tuple[str, str], float],
) -> None:
    """Measure what does not depend on the number of threads, once."""
    engine = system.engine
    if (engine.maker, engine.name) in shares:
        return
    found = measure_agreement(setup, loaded, outputs)
    shares[engine.maker, engine.name] = found.share
    num_texts = min(setup.settings.num_agreement_texts, len(outputs))
    counts = {"texts": num_texts, "positions": found.num_positions, "same": found.num_same, "share": found.share}
    competes = _competes(setup, engine, shares)
    setup.records.add("agreement", {**engine_record(system), **counts, "competes": competes})
    if not competes:
        setup.tell(f"{engine.name} agrees with fp32 at {found.share:.1%} of the places only: it does not compete")


def _competes(setup: BenchmarkSetup, engine: Engine, shares: dict[tuple[str, str], float]) -> bool:
    """Peers always do; an engine of ours only while it says what fp32 says."""
    share = shares.get((engine.maker, engine.name), 1.0)
    return engine.maker != "spec2seq" or setup.settings.is_full or share >= setup.settings.min_agreement


def _probe_all(setup: BenchmarkSetup, systems: Sequence[LoadedSystem], seconds: dict[int, dict[System, float]]) -> None:
    for batch_size, known in seconds.items():
        for one in systems:
            if one.system.takes(batch_size):
                try:
                    known[one.system] = _probe(setup, one, batch_size)
                except PeerError as error:
                    setup.skip_method(one.system, batch_size, str(error))


def _probe(setup: BenchmarkSetup, system: LoadedSystem, batch_size: int) -> float:
    """The shortest of some passes over a few texts, in seconds, after one that warms up."""
    if setup.settings.is_full:
        return 0.0
    texts = setup.typical(max(setup.settings.num_probe_texts, batch_size))
    batches, _ = batches_of(texts, batch_size)
    timed_pass(system, batches, setup.clock)
    seconds: list[float] = []
    while len(seconds) < _FEWEST_PROBES or sum(seconds) < _PROBE_SECONDS:
        seconds.append(timed_pass(system, batches, setup.clock).seconds)
    return min(seconds)


def _winners(setup: BenchmarkSetup, batch_size: int, seconds: dict[System, float]) -> list[System]:
    if setup.settings.is_full:
        return list(seconds)
    contests: dict[str, list[System]] = defaultdict(list)
    for system in seconds:
        contests[system.contest].append(system)
    winners = []
    for contest, systems in contests.items():
        winner = min(systems, key=seconds.__getitem__)
        winners.append(winner)
        tried = [{**system_as_dict(system), "seconds": seconds[system]} for system in systems]
        chosen = {"contest": contest, "batch_size": batch_size, "chosen": system_as_dict(winner), "candidates": tried}
        setup.records.add("choice", chosen)
    return winners


def engines_of(systems: Iterable[System]) -> Sequence[Engine]:
    """Every engine once, in order."""
    return list(dict.fromkeys(system.engine for system in systems))
