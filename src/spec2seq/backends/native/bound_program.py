"""What programs of our own have in common with compiled graphs: arrays are bound to them, and outputs are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

Array = np.ndarray[Any, Any]

_MOST_BYTES = 64 * 2**20  # of room that is kept for calls of sizes that may come again
_KEYS_VALUES = "past_keys", "past_values", "source_keys", "source_values"


class CallRoom(Protocol):
    """Memory for calls of the same sizes: what they write, by name, and how many bytes it all takes."""

    outputs: dict[str, Array]
    num_bytes: int


SizesT = TypeVar("SizesT", bound="Hashable")
RoomT = TypeVar("RoomT", bound=CallRoom)


class BoundProgram(ABC, Generic[SizesT, RoomT]):
    """Base of programs of decoder layers. Not safe for use from several threads at once; others may run meanwhile."""

    def __init__(self, num_layers: int) -> None:
        self._bound: dict[str, Mapping[str, Array]] = {}
        self._keys_values = np.zeros((num_layers, len(_KEYS_VALUES)), np.int64)
        self._rooms: dict[SizesT, RoomT] = {}
        self._last: RoomT | None = None

    def bind_group(self, group: str, arrays: Mapping[str, Array]) -> None:
        """Let inputs be read from these arrays; nothing to do where they are the last ones of that group."""
        if self._bound.get(group) is arrays:
            return
        self._bound[group] = arrays
        for column, name in enumerate(_KEYS_VALUES):
            if f"{name}0" in arrays:
                places = [arrays[f"{name}{layer}"].ctypes.data for layer in range(len(self._keys_values))]
                self._keys_values[:, column] = places

    def output(self, name: str) -> Array:
        """A view of an output, valid until the next run."""
        assert self._last is not None, "nothing was run"
        return self._last.outputs[name]

    @abstractmethod
    def _new_room(self, sizes: SizesT) -> RoomT:
        """Room for calls of these sizes."""

    def _room(self, sizes: SizesT) -> RoomT:
        """Room for a call whose outputs will be read; it takes the place of other calls' where they have much."""
        room = self._rooms.get(sizes)
        if room is None:
            room = self._new_room(sizes)
            if sum(kept.num_bytes for kept in self._rooms.values()) + room.num_bytes > _MOST_BYTES:
                self._rooms.clear()
            self._rooms[sizes] = room
        self._last = room
        return room
