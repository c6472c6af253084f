"""Whose turn it is among those who wait: fair queuing by virtual time (Demers, Keshav and Shenker, 1989)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Owner = TypeVar("Owner")
Item = TypeVar("Item")


@dataclass
class _Flow(Generic[Item]):
    """What one owner waits with. `tag` is the virtual time at which its next item is due, `num_taken` how many of its
    items were let through."""

    items: deque[tuple[Item, int]]
    tag: float
    number: int
    num_taken: int = 0

    @property
    def rank(self) -> tuple[float, bool, int]:
        return self.tag, self.num_taken > 0, self.number


class FairQueue(Generic[Owner, Item]):
    """Items of several owners. Every owner gets the same share of the work that is let through, measured in the sizes
    of its items: one with a single small item need not wait until another's hundred large ones are through, and one
    with large items is not starved by small ones that keep coming. Virtual time runs at the pace at which the owners'
    shares grow: what is let through, divided by how many wait.
    """

    def __init__(self) -> None:
        self._flows: dict[Owner, _Flow[Item]] = {}
        self._virtual_time = 0.0
        self._num_owners = 0

    def __len__(self) -> int:
        """How many owners wait."""
        return len(self._flows)

    def add(self, owner: Owner, items: Iterable[tuple[Item, int]]) -> None:
        """Queue items with their sizes, behind those that the owner has there already."""
        flow = self._flows.get(owner)
        if flow is None:
            flow = self._flows[owner] = _Flow(deque(), self._virtual_time, self._num_owners)
            self._num_owners += 1
        flow.items.extend(items)
        if not flow.items:
            del self._flows[owner]

    def heads(self) -> list[tuple[Owner, Item]]:
        """The next item of every owner, in the order in which they are due."""
        order = sorted(self._flows.items(), key=lambda entry: entry[1].rank)
        return [(owner, flow.items[0][0]) for owner, flow in order]

    def take(self, owner: Owner) -> Item:
        """Let the owner's next item through."""
        flow = self._flows[owner]
        item, size = flow.items.popleft()
        self._virtual_time += size / len(self._flows)
        flow.tag += size
        flow.num_taken += 1
        if not flow.items:
            del self._flows[owner]
        return item

    def remove(self, owner: Owner) -> None:
        """Forget all that the owner waits with."""
        self._flows.pop(owner, None)
