"""Self-attention keys and values of the tokens seen so far. Rolling back is free: later writes overwrite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from spec2seq.nn.rows import RowMove, has_much_free, move_rows

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig

GROWTH = 64  # slots are added in steps of so many


@dataclass
class LayerWindow:
    """One layer's part of the cache during one call.

    Attributes:
        keys, values: [B, H, T, d] views of the used slots, what is written in this call included.
        target: view to write to: [B, n, 2, H, d] when `index` is None, else [B, slots, 2, H, d] written at `index`.
        index: rows [B, 1] and slots [B, n].
    """

    keys: Tensor
    values: Tensor
    target: Tensor
    index: tuple[Tensor, Tensor] | None

    def exchange(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store the keys and values of this call's tokens, qkv [B, n, 3, H, d].

        Returns:
            Their queries [B, H, n, d], and keys and values of all slots [B, H, T, d].
        """
        self.write(qkv[:, :, 1:])
        return qkv[:, :, 0].transpose(1, 2), self.keys, self.values

    def write(self, keys_values: Tensor) -> None:
        """Store keys and values [B, n, 2, H, d] of this call's tokens."""
        if keys_values.dtype == torch.float16:
            # an overflow at a token that is later rejected must not reach others through a masked slot: 0 * NaN is NaN
            keys_values = keys_values.nan_to_num(nan=0.0)
        if self.index is None:
            self.target.copy_(keys_values)
        else:
            self.target.index_put_(self.index, keys_values)


class KeyValueCache:
    """A zero-filled buffer [L, rows, slots, 2, H, d]: keys and values of a token side by side, written at once.

    Attributes:
        num_rows: rows in use; the buffer may hold more.
        slot_positions: [rows, slots] absolute position of each slot's token, kept only once a token was written to a
            slot other than its position (and only if someone needs it: T5's relative bias).
    """

    def __init__(self, config: ModelConfig, num_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_rows = num_rows
        self.slot_positions: Tensor | None = None
        self._num_layers = config.decoder_layers
        self._shape = (2, config.decoder_heads, config.head_dim)
        # Live slots end at _num_live; all that was ever written, stale leftovers included, ends at _num_dirty.
        self._num_live = self._num_dirty = 0
        self._buffer = torch.zeros((self._num_layers, num_rows, 0, *self._shape), dtype=dtype, device=device)

    @property
    def capacity(self) -> tuple[int, int]:
        """Rows and slots that fit without allocating."""
        return self._buffer.shape[1], self._buffer.shape[2]

    def open(self, slots: Tensor, num_slots: int, first_slot: int | None, is_final: bool) -> list[LayerWindow]:
        """Make room and hand out each layer's window.

        Args:
            slots: [B, n] where this call writes.
            num_slots: T, how many slots the queries may look at; more than any of `slots`.
            first_slot: start of the slots when they are the same run of consecutive ones in every row, else None.
            is_final: whether no row has live slots beyond T.
        """
        if num_slots > self._buffer.shape[2]:
            self._reallocate(self._buffer.shape[1], _rounded(num_slots))
        self._num_live = num_slots if is_final else max(self._num_live, num_slots)
        self._num_dirty = max(self._num_dirty, num_slots)
        buffer = self._buffer[:, : self.num_rows]
        used = buffer[:, :, :num_slots].permute(3, 0, 1, 4, 2, 5)
        index = None
        if first_slot is None:
            index = (torch.arange(self.num_rows, device=slots.device)[:, None], slots)
        else:
            buffer = buffer[:, :, first_slot : first_slot + slots.shape[1]]
        layers = zip(used[0].unbind(0), used[1].unbind(0), buffer.unbind(0), strict=True)
        return [LayerWindow(keys, values, target, index) for keys, values, target in layers]

    def remember_positions(self, slots: Tensor, positions: Tensor, num_slots: int) -> Tensor:
        """Note the positions of this call's tokens; the positions of slots 0..T-1 of every row [B, T]. After `open`."""
        if self.slot_positions is None:
            rows, capacity = self.capacity
            self.slot_positions = torch.arange(capacity, device=slots.device).repeat(rows, 1)
        self.slot_positions[: self.num_rows].scatter_(1, slots, positions)
        return self.slot_positions[: self.num_rows, :num_slots]

    def select_rows(self, rows: Tensor) -> Self:
        """The rows `rows` [B'] in that order; may repeat rows. Works on this object and returns it."""
        move = RowMove.plan(rows)
        if move.is_in_place:
            move_rows(self._buffer[:, :, : self._num_dirty], move, dim=1)
            if self.slot_positions is not None:
                move_rows(self.slot_positions, move, dim=0)
        else:
            self._gather(rows)
        self.num_rows = move.num_rows
        if has_much_free(self.num_rows, self._buffer.shape[1]):
            self._reallocate(self.num_rows, _rounded(self._num_live))
        return self

    def append_rows(self, count: int) -> Self:
        """`count` more rows at the end, empty. Works on this object and returns it."""
        num_rows = self.num_rows + count
        if num_rows > self._buffer.shape[1]:
            self._reallocate(num_rows, self._buffer.shape[2])
        self._buffer[:, self.num_rows : num_rows, : self._num_dirty] = 0
        if self.slot_positions is not None:
            self.slot_positions[self.num_rows : num_rows] = torch.arange(
                self._buffer.shape[2], device=self._buffer.device
            )
        self.num_rows = num_rows
        return self

    def _gather(self, rows: Tensor) -> None:
        num_rows = rows.shape[0]
        gathered = self._buffer[:, :, : self._num_dirty].index_select(1, rows)
        positions = None if self.slot_positions is None else self.slot_positions.index_select(0, rows)
        if num_rows > self._buffer.shape[1]:
            self._reallocate(num_rows, self._buffer.shape[2])
        # a new buffer has no stale slots
        self._buffer[:, :num_rows, : self._num_dirty] = gathered[:, :, : self._num_dirty]
        if self.slot_positions is not None and positions is not None:
            self.slot_positions[:num_rows] = positions

    def _reallocate(self, num_rows: int, num_slots: int) -> None:
        """Another buffer, zero-filled beyond the live slots that both can hold."""
        old, old_positions = self._buffer, self.slot_positions
        rows, slots = min(num_rows, self.num_rows), min(num_slots, self._num_live)
        self._buffer = old.new_zeros((self._num_layers, num_rows, num_slots, *self._shape))
        self._buffer[:, :rows, :slots] = old[:, :rows, :slots]
        self._num_dirty = slots
        if old_positions is not None:
            self.slot_positions = torch.arange(num_slots, device=old.device).repeat(num_rows, 1)
            self.slot_positions[:rows, :slots] = old_positions[:rows, :slots]


def _rounded(num_slots: int) -> int:
    return -(-num_slots // GROWTH) * GROWTH
