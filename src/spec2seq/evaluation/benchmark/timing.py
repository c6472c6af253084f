"""The timed region, one for every system: padded or not is the system's business, ids go in and ids come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec2seq.types import RequestStats

Clock = Callable[[], float]
IdLists = Sequence[Sequence[int]]
Item = TypeVar("Item")


class Runner(Protocol):
    """A loaded system."""

    def run(self, sources: IdLists) -> list[list[int]]:
        """Outputs for a batch: what follows the decoder start token, end of sequence included."""

    def take_stats(self) -> list[RequestStats]:
        """What the runs since the last call cost, per text; empty where a system does not tell."""


@dataclass(frozen=True)
class TimedPass:
    """One system, once over all batches.

    Attributes:
        seconds: inside `Runner.run` alone.
        outputs: in the order of the batches.
        stats: of every output, where the system tells.
    """

    seconds: float
    outputs: list[list[int]]
    stats: list[RequestStats] = field(default_factory=list)


def timed_pass(runner: Runner, batches: Sequence[IdLists], clock: Clock) -> TimedPass:
    """Run a system over all batches. Nothing but its answer to ids in is on the clock."""
    seconds, outputs = 0.0, []
    for batch in batches:
        start = clock()
        answer = runner.run(batch)
        seconds += clock() - start
        outputs.extend(answer)
    return TimedPass(seconds, outputs, runner.take_stats())


def by_turns(items: Sequence[Item], num_rounds: int) -> Iterator[tuple[int, Item]]:
    """Every item once per round, from 1 on; each round begins with another one, so that none always comes first."""
    for turn in range(1, num_rounds + 1):
        first = (turn - 1) % len(items) if items else 0
        for item in [*items[first:], *items[:first]]:
            yield turn, item


def batches_of(sources: IdLists, batch_size: int) -> tuple[list[list[Sequence[int]]], list[int]]:
    """The same batches for every system, texts of like length together.

    Returns:
        The batches, and for each of their texts in order which of `sources` it is.
    """
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    if batch_size == 1:
        order = list(range(len(sources)))
    ordered = [sources[i] for i in order]
    return [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)], order


def in_order(items: Sequence[Item], order: Sequence[int]) -> list[Item]:
    """Undo the order of `batches_of`."""
    placed = dict(zip(order, items, strict=True))
    return [placed[i] for i in range(len(items))]
