"""Self-attention keys and values outside the graph, laid out so that it reads them without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from spec2seq.backends.openvino.sizes import padded_length, padded_rows
from spec2seq.nn.rows import RowMove, has_much_free, move_rows

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.backends.openvino.feed import Call

    Array = np.ndarray[Any, Any]


class EngineCache:
    """A zero-filled buffer [L, 2, rows, slots, H, d]. Graphs read its first rows with all their slots.

    Attributes:
        num_rows: rows in use; those behind them hold finite numbers that mean nothing.
        slot_positions: [rows, slots] int32, absolute position of each slot's token, kept only once a token was written
            to a slot other than its position.
    """

    def __init__(self, num_layers: int, shape: tuple[int, int], dtype: torch.dtype, num_rows: int) -> None:
        """For keys and values of this shape (H, d). The dtype is float32, or int16 for the bits of bfloat16."""
        self.num_rows = num_rows
        self.slot_positions: Array | None = None
        self._buffer = torch.zeros((num_layers, 2, padded_rows(num_rows), 0, *shape), dtype=dtype)
        self._array: Array = self._buffer.numpy()
        self._views: dict[int, dict[str, Array]] = {}

    @property
    def num_slots(self) -> int:
        return self._buffer.shape[3]

    @property
    def run_rows(self) -> int:
        """How many rows graphs are run with."""
        return padded_rows(self.num_rows)

    def reserve(self, num_slots: int) -> None:
        """Make room for so many slots."""
        if num_slots > self.num_slots:
            self._reallocate(self._buffer.shape[2], padded_length(num_slots, self.num_rows))

    def views(self) -> dict[str, Array]:
        """The inputs of a graph, [run_rows, slots, H, d] each; the same object until rows or memory change."""
        run_rows = self.run_rows
        if run_rows not in self._views:
            self._views[run_rows] = {
                f"past_{part}{layer}": self._array[layer, index, :run_rows]
                for layer in range(len(self._array))
                for index, part in enumerate(("keys", "values"))
            }
        return self._views[run_rows]

    def write(self, qkv: Array, call: Call) -> None:
        """Store what a graph computed for a call.

        Padded queries are stored too, in places that are overwritten before they are seen, unless the call says slots:
        then they may share one.

        Args:
            qkv: [L * B', n', 3, H, d] queries, keys and values; those beyond the call's rows and queries only pad.
            call: says the slots.
        """
        num_rows, num_queries = call.slots.shape
        new = qkv.reshape(len(self._array), -1, *qkv.shape[1:])
        new = new[:, :num_rows, :num_queries, 1:].transpose(0, 3, 1, 2, 4, 5)
        if call.has_own_slots:
            rows, queries = call.is_real.nonzero()
            self._array[:, :, rows, call.slots[rows, queries]] = new[:, :, rows, queries]
        elif num_rows == 1 and call.is_run:
            self._array[:, :, :1, call.num_slots - num_queries : call.num_slots] = new
        else:
            self._array[:, :, np.arange(num_rows)[:, None], call.slots] = new

    def note_positions(self, call: Call) -> None:
        """Remember which positions the call's tokens have."""
        if self.slot_positions is None:
            rows, num_slots = self._array.shape[2:4]
            self.slot_positions = np.tile(np.arange(num_slots, dtype=np.int32), (rows, 1))
        rows, queries = call.is_real.nonzero()
        self.slot_positions[rows, call.slots[rows, queries]] = call.positions[rows, queries]

    def select_rows(self, rows: Tensor) -> Self:
        """The rows `rows` [B'] in that order; may repeat rows. Works on this object and returns it."""
        move = RowMove.plan(rows)
        if move.is_in_place:
            move_rows(self._buffer, move, dim=2)
            if self.slot_positions is not None:
                move_rows(torch.from_numpy(self.slot_positions), move, dim=0)
        else:
            self._gather(rows)
        self.num_rows = move.num_rows
        if has_much_free(self.run_rows, self._buffer.shape[2]):
            self._reallocate(self.run_rows, self.num_slots)
        return self

    def append_rows(self, count: int) -> Self:
        """`count` more rows at the end, empty. Works on this object and returns it."""
        first, self.num_rows = self.num_rows, self.num_rows + count
        if self.run_rows > self._buffer.shape[2]:
            self._reallocate(self.run_rows, self.num_slots)
        self._array[:, :, first:] = 0
        if self.slot_positions is not None:
            self.slot_positions[first:] = np.arange(self.num_slots)
        return self

    def _gather(self, rows: Tensor) -> None:
        self._buffer = self._buffer.index_select(2, _filled(rows, padded_rows(len(rows))))
        if self.slot_positions is not None:
            self.slot_positions = self.slot_positions[_filled(rows, padded_rows(len(rows))).numpy()]
        self._renew()

    def _reallocate(self, num_rows: int, num_slots: int) -> None:
        """Another buffer with what fits of the old one."""
        old, old_positions = self._buffer, self.slot_positions
        rows, slots = min(num_rows, old.shape[2]), min(num_slots, old.shape[3])
        self._buffer = old.new_zeros((*old.shape[:2], num_rows, num_slots, *old.shape[4:]))
        self._buffer[:, :, :rows, :slots] = old[:, :, :rows, :slots]
        if old_positions is not None:
            self.slot_positions = np.tile(np.arange(num_slots, dtype=np.int32), (num_rows, 1))
            self.slot_positions[:rows, :slots] = old_positions[:rows, :slots]
        self._renew()

    def _renew(self) -> None:
        self._array = self._buffer.numpy()
        self._views = {}


def _filled(rows: Tensor, count: int) -> Tensor:
    """`rows` [B'] and then row 0 again, up to `count` of them."""
    return torch.cat([rows, rows.new_zeros(count - len(rows))])
