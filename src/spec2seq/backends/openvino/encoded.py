"""Encoded sources as the step's graph reads them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F

from spec2seq.backends.openvino.sizes import padded_length, padded_rows
from spec2seq.nn.rows import RowMove, has_much_free, move_rows

if TYPE_CHECKING:
    from torch import Tensor

    Array = np.ndarray[Any, Any]


@dataclass
class EngineSource:
    """Encoded sources. Their width S is padded, and so are the rows of the memory behind `cross`.

    Attributes:
        states: [B, S, D] encoder states; those of padding are finite and mean nothing.
        hidden: [B, longest source, D] of them.
        lengths: [B].
        cross: [L, 2, rows, H, S, d] keys and values of every decoder layer, float32, or int16 for the bits of bfloat16.
    """

    states: Tensor
    lengths: Tensor
    cross: Tensor
    hidden: Tensor = field(init=False, repr=False)
    _views: dict[str, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.hidden = self.states[:, : int(self.lengths.max()) if len(self.lengths) else 0]

    def views(self) -> dict[str, Array]:
        """The inputs of a graph for all padded rows; the same object as long as the rows stay."""
        if not self._views:
            num_rows, array = padded_rows(len(self.lengths)), self.cross.numpy()
            self._views = {
                f"source_{part}{layer}": array[layer, index, :num_rows]
                for layer in range(len(array))
                for index, part in enumerate(("keys", "values"))
            }
            self._views["source_mask"] = padding_mask(self.lengths.numpy(), num_rows, self.cross.shape[4])
        return self._views

    def select_rows(self, rows: Tensor) -> EngineSource:
        """The rows `rows` [B'] in that order; may repeat rows. The memory of `cross` is reused: drop the old object."""
        move = RowMove.plan(rows)
        states, lengths = self.states.index_select(0, rows), self.lengths.index_select(0, rows)
        if not move.is_in_place:
            return replace(self, states=states, lengths=lengths, cross=with_rows(self.cross.index_select(2, rows)))
        move_rows(self.cross, move, dim=2)
        if not has_much_free(padded_rows(move.num_rows), self.cross.shape[2]):
            return replace(self, states=states, lengths=lengths)
        # the longest source may have left as well
        width = padded_length(int(lengths.max())) if len(lengths) else 0
        cross = with_rows(self.cross[:, :, : move.num_rows, :, :width])
        return replace(self, states=states[:, :width], lengths=lengths, cross=cross)

    def concat(self, other: EngineSource) -> EngineSource:
        """Both batches, self first; the shorter sources are padded."""
        width = max(self.states.shape[1], other.states.shape[1])
        states = torch.cat([F.pad(part.states, (0, 0, 0, width - part.states.shape[1])) for part in (self, other)])
        cross = torch.cat([part._padded(width) for part in (self, other)], dim=2)
        return replace(self, states=states, lengths=torch.cat([self.lengths, other.lengths]), cross=with_rows(cross))

    def _padded(self, width: int) -> Tensor:
        """`cross` of the real rows for sources of that width."""
        return F.pad(self.cross[:, :, : len(self.lengths)], (0, 0, 0, width - self.cross.shape[4]))


def with_rows(cross: Tensor) -> Tensor:
    """Contiguous keys and values [L, 2, B, H, S, d] with zeros in the rows that graphs are run with besides."""
    num_rows = cross.shape[2]
    extra = padded_rows(num_rows) - num_rows
    return F.pad(cross, (0, 0, 0, 0, 0, 0, 0, extra)) if extra else cross.contiguous()


def padding_mask(lengths: Array, num_rows: int, width: int) -> Array:
    """What hides padding, [num_rows, 1, 1, width] to be added to scores. Rows beyond `lengths` [B] hide nothing."""
    mask = np.zeros((num_rows, 1, 1, width), dtype=np.float32)
    mask[: len(lengths), 0, 0][np.arange(width) >= lengths[:, None]] = -np.inf
    return mask
