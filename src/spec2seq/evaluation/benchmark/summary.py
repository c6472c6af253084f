"""From records to figures: medians, quartiles, ratios, of what was written, so that a table can be made again."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import TYPE_CHECKING

from spec2seq.evaluation.benchmark.records import of_kind, system_as_dict, system_from_dict
from spec2seq.evaluation.quality import Score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spec2seq.evaluation.benchmark.records import Record
    from spec2seq.evaluation.benchmark.systems import System

PLAIN = "spec2seq-greedy"
PEER_GREEDY = "ctranslate2-greedy"
PARTS = ("encode", "draft", "verify", "rest")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles; all the same where there is one value only."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value or more."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4)
        return cls(low, median(values), high)


@dataclass(frozen=True)
class SpeedRow:
    """One system with one batch size.

    Attributes:
        text_seconds: per text.
        tokens_per_second: of the tokens it gave.
        ratios: how many times faster it is than the best of another contest, text by text, in the same round.
        seconds_by_part: per text, of our engines: encode, draft, verify, rest, and what lies outside of the decoder.
        tokens_per_round: of our engines.
        acceptance_rate: accepted per judged draft token; None where nothing was drafted.
        scores: quality by the score's name.
        num_identical: outputs that are those of fp32 greedy search; None where they were not compared.
        num_in_circles: outputs that run in circles.
        agreement: share of places at which the engine would choose fp32's token; None where it was not measured.
        peak_bytes: of memory; None where it was not measured.
    """

    system: System
    batch_size: int
    num_rounds: int
    num_texts: int
    text_seconds: Spread
    tokens_per_second: Spread
    ratios: Mapping[str, Spread] = field(default_factory=dict)
    seconds_by_part: Mapping[str, float] = field(default_factory=dict)
    tokens_per_round: float | None = None
    acceptance_rate: float | None = None
    scores: Mapping[str, Score] = field(default_factory=dict)
    num_identical: int | None = None
    num_in_circles: int = 0
    agreement: float | None = None
    peak_bytes: int | None = None


def speed_rows(records: Sequence[Record]) -> list[SpeedRow]:
    """A row for every system and batch size that was timed at least once, in the order of the first passes."""
    passes = _timed_passes(records)
    bests = {size: _best_of_contests(passes, size) for size in {size for _, size in passes}}
    return [
        _row(system, size, its_passes, _ratios(its_passes, passes, bests[size]), records)
        for (system, size), its_passes in passes.items()
    ]


Passes = dict[tuple["System", int], list["Record"]]


def _timed_passes(records: Sequence[Record]) -> Passes:
    passes: Passes = defaultdict(list)
    for record in of_kind(records, "pass"):
        if record["round"] > 0:
            passes[system_from_dict(record["system"]), record["batch_size"]].append(record)
    return passes


def _best_of_contests(passes: Passes, batch_size: int) -> dict[str, System]:
    """The fastest system of each method."""
    best: dict[str, tuple[float, System]] = {}
    for (system, size), its_passes in passes.items():
        seconds = median(record["seconds"] for record in its_passes)
        if size == batch_size and (system.contest not in best or seconds < best[system.contest][0]):
            best[system.contest] = seconds, system
    return {contest: system for contest, (_, system) in best.items()}


def _ratios(mine: Sequence[Record], passes: Passes, bests: Mapping[str, System]) -> dict[str, Spread]:
    """How many times as long the best of other contests took in the same rounds."""
    ratios = {}
    for contest in (PLAIN, PEER_GREEDY):
        if contest not in bests:
            continue
        theirs = {record["round"]: record["seconds"] for record in passes[bests[contest], mine[0]["batch_size"]]}
        shared = [theirs[record["round"]] / record["seconds"] for record in mine if record["round"] in theirs]
        if shared:
            ratios[contest] = Spread.of(shared)
    return ratios


def _row(
    system: System,
    batch_size: int,
    passes: Sequence[Record],
    ratios: Mapping[str, Spread],
    records: Sequence[Record],
) -> SpeedRow:
    return SpeedRow(
        system,
        batch_size,
        len(passes),
        passes[0]["texts"],
        Spread.of([record["seconds"] / record["texts"] for record in passes]),
        Spread.of([record["tokens"] / record["seconds"] for record in passes]),
        ratios,
        _parts(passes),
        _tokens_per_round(passes),
        _acceptance_rate(passes),
        _scores(system, batch_size, records),
        _about(system, batch_size, records, "outputs", "identical"),
        passes[0].get("in_circles", 0),
        _agreement(system, records),
        _about(system, batch_size, records, "memory", "peak_bytes"),
    )


def _parts(passes: Sequence[Record]) -> dict[str, float]:
    told = [record for record in passes if "stats" in record]
    if not told:
        return {}
    parts = {part: median(record["stats"][f"seconds_{part}"] / record["texts"] for record in told) for part in PARTS}
    outside = [record["seconds"] - sum(record["stats"][f"seconds_{part}"] for part in PARTS) for record in told]
    return {**parts, "outside": max(0.0, median(outside) / told[0]["texts"])}


def _tokens_per_round(passes: Sequence[Record]) -> float | None:
    """Of a system that tells its rounds; beams advance more than one text's tokens per round and have none."""
    stats = passes[0].get("stats")
    if not stats or not stats["num_rounds"] or passes[0]["system"]["method"] == "beam5":
        return None
    rate: float = (stats["num_tokens"] - stats["num_forced"]) / stats["num_rounds"]
    return rate


def _acceptance_rate(passes: Sequence[Record]) -> float | None:
    stats = passes[0].get("stats")
    if not stats or not stats["num_judged"]:
        return None
    rate: float = stats["num_accepted"] / stats["num_judged"]
    return rate


def _scores(system: System, batch_size: int, records: Sequence[Record]) -> dict[str, Score]:
    for record in of_kind(records, "quality"):
        if record["system"] == system_as_dict(system) and record["batch_size"] == batch_size:
            return {score["name"]: Score(**score) for score in record["scores"]}
    return {}


def _about(system: System, batch_size: int, records: Sequence[Record], kind: str, key: str) -> int | None:
    for record in of_kind(records, kind):
        if record["system"] == system_as_dict(system) and record["batch_size"] == batch_size:
            value: int = record[key]
            return value
    return None


def _agreement(system: System, records: Sequence[Record]) -> float | None:
    for record in of_kind(records, "agreement"):
        if (record["maker"], record["engine"]) == (system.engine.maker, system.engine.name):
            share: float = record["share"]
            return share
    return None
