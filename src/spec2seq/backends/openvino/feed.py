"""The arrays that one verifier call is fed with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spec2seq.arrays import numbers
from spec2seq.backends.openvino.sizes import padded_queries

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.backends.openvino.cache import EngineCache

    Array = np.ndarray[Any, Any]


class Shape(NamedTuple):
    """Sizes that a graph is run with: rows, queries per row, cached slots."""

    rows: int
    queries: int
    slots: int

    @classmethod
    def of(cls, call: Call, cache: EngineCache) -> Shape:
        """Of a call, with room for padding."""
        return cls(cache.run_rows, padded_queries(call.tokens.shape[1], cache.num_rows), cache.num_slots)


class Call(NamedTuple):
    """One call's arguments as arrays.

    Attributes:
        tokens, positions, slots: [B, n].
        lengths: [B] real queries, looked at where it matters.
        visible: [B, n, T'] or None.
        is_run: whether all positions of a row are consecutive and the slots are theirs.
        num_slots: how many slots the cache must have.
    """

    tokens: Array
    positions: Array
    lengths: Tensor
    slots: Array
    visible: Array | None
    is_run: bool
    num_slots: int

    @classmethod
    def read(
        cls, tokens: Tensor, positions: Tensor, lengths: Tensor, slots: Tensor | None, visible: Tensor | None
    ) -> Call:
        """The arguments of `Verifier.decode`, whose positions increase along every row."""
        places = numbers(positions)
        if slots is None and visible is None:
            is_run, num_slots = _read_run(places)
            return cls(numbers(tokens), places, lengths, places, None, is_run, num_slots)
        own_slots = places if slots is None else slots.numpy()
        seen = None if visible is None else visible.numpy()
        num_slots = max(int(own_slots.max()) + 1, 0 if seen is None else seen.shape[2])
        return cls(tokens.numpy(), places, lengths, own_slots, seen, False, num_slots)

    @property
    def has_own_slots(self) -> bool:
        """Whether slots were given apart from positions; padded queries may then share them."""
        return self.slots is not self.positions

    @property
    def is_real(self) -> Array:
        """[B, n] bool, which queries are not padding."""
        return np.arange(self.tokens.shape[1]) < self.lengths.numpy()[:, None]


def _read_run(positions: Array) -> tuple[bool, int]:
    """Whether the increasing positions [B, n] of every row are consecutive; one more than the highest of all."""
    width = positions.shape[1] - 1
    if len(positions) == 1:  # plain numbers take a third of the time of arrays
        last = int(positions[0, -1])
        return last - int(positions[0, 0]) == width, last + 1
    lasts = positions[:, -1]
    return bool((lasts - positions[:, 0] == width).all()), int(lasts.max()) + 1


class StepInputs:
    """The arrays of one shape, which calls of that shape fill anew.

    Rows and queries that only pad the shape see nothing but themselves.
    """

    def __init__(self, shape: Shape, *, has_key_positions: bool) -> None:
        """Without key positions, where nothing reads them, less is to be filled."""
        self.shape = shape
        self._has_key_positions = has_key_positions
        rows, width, slots = shape
        self.tokens = np.zeros((rows, width), dtype=np.int32)
        self.positions = np.zeros((rows, width), dtype=np.int32)
        self.key_positions = np.zeros((rows, slots + width), dtype=np.int32)
        self.mask = np.full((rows, 1, width, slots + width), -np.inf, dtype=np.float32)
        self._slots = np.arange(slots, dtype=np.int32)
        self._old, self._new = self.mask[:, 0, :, :slots], self.mask[:, 0, :, slots:]
        self._is_causal = False
        self._see_queries_before()

        names = ("tokens", "positions", "key_positions", "mask")
        self.arrays = {name: getattr(self, name) for name in names}
        self._all_scored = {"scored": np.arange(rows * width, dtype=np.int32)}

    def scored(self, queries: Tensor | None) -> dict[str, Array]:
        """Which of all queries are scored, row by row, padding included; queries [B, m] as for `Verifier.decode`."""
        if queries is None:
            return self._all_scored
        scored = np.zeros((self.shape.rows, queries.shape[1]), dtype=np.int32)
        scored[: len(queries)] = queries.numpy()
        scored += np.arange(self.shape.rows, dtype=np.int32)[:, None] * self.shape.queries
        return {"scored": scored.ravel()}

    def fill(self, call: Call, slot_positions: Array | None) -> None:
        """Take in a call; slot_positions [rows, T] where slots hold tokens of other positions."""
        num_rows, num_queries = call.tokens.shape
        self.tokens[:num_rows, :num_queries] = call.tokens
        self.positions[:num_rows, :num_queries] = call.positions
        if call.is_run:
            self._see_slots_before(call.positions[:, 0])
            self._see_queries_before()
        else:
            self._see_what_is_visible(call)
        if not self._has_key_positions:
            return
        num_slots = self.shape.slots
        self.key_positions[:, :num_slots] = self._slots if slot_positions is None else slot_positions[: self.shape.rows]
        self.key_positions[:, num_slots:] = self.positions

    def _see_queries_before(self) -> None:
        """Every query sees the ones before it, and itself."""
        if not self._is_causal:
            self._new[:] = np.where(np.tri(self.shape.queries, dtype=bool), 0.0, -np.inf)
        self._is_causal = True

    def _see_slots_before(self, firsts: Array) -> None:
        """Every query sees the slots before its row's first query [B]."""
        if len(firsts) == 1:
            first = int(firsts[0])
            self._old[0, :, :first] = 0.0
            self._old[0, :, first:] = -np.inf
        else:
            hidden = np.where(self._slots < firsts[:, None], np.float32(0.0), np.float32(-np.inf))
            self._old[: len(firsts)] = hidden[:, None]

    def _see_what_is_visible(self, call: Call) -> None:
        """Follow `visible`, or positions: a slot that is written in this call is looked for among the queries."""
        self._is_causal = False
        (num_rows, num_queries), num_slots = call.tokens.shape, self.shape.slots
        visible = np.zeros((num_rows, num_queries, num_slots), dtype=bool)
        if call.visible is None:
            visible |= self._slots <= call.positions[..., None]
        else:
            visible[..., : call.visible.shape[2]] = call.visible
        is_real = call.is_real
        among_queries = np.take_along_axis(visible, np.repeat(call.slots[:, None], num_queries, axis=1), axis=2)
        among_queries &= is_real[:, None]
        among_queries |= np.eye(num_queries, dtype=bool) & ~is_real[..., None]
        rows, queries = is_real.nonzero()
        visible[rows, :, call.slots[rows, queries]] = False
        visible &= is_real[..., None]
        self._old[:num_rows, :num_queries] = np.where(visible, 0.0, -np.inf)
        self._new[:num_rows, :num_queries, :num_queries] = np.where(among_queries, 0.0, -np.inf)
        self._new[:num_rows, num_queries:] = np.where(
            np.eye(self.shape.queries, dtype=bool)[num_queries:], 0.0, -np.inf
        )
        self._new[:num_rows, :num_queries, num_queries:] = -np.inf
