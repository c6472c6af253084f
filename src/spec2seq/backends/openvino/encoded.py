"""Encoded sources as graphs read them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch.nn import functional as F

from spec2seq.backends.openvino.sizes import padded_length, padded_rows
from spec2seq.nn.rows import RowMove, has_much_free, move_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    Array = np.ndarray[Any, Any]


class _Layout(NamedTuple):
    """Which dimensions of a tensor are the rows and the source positions."""

    rows: int
    width: int


_LAYOUTS = {
    "hidden": _Layout(0, 1),
    "cross": _Layout(2, 4),
    "copy_keys": _Layout(0, 1),
    "copy_values": _Layout(0, 1),
}


@dataclass
class EngineSource:
    """Encoded sources, their width S padded, and their rows too, with numbers that are finite and mean nothing.

    Attributes:
        lengths: [B].
        tensors: what an encoder's graphs gave: hidden [rows, S, D] states; cross [L, 2, rows, H, S, d] keys and values
            of every decoder layer, float32, or int16 for the bits of bfloat16; copy_keys and copy_values [rows, S, D].
    """

    lengths: Tensor
    tensors: Mapping[str, Tensor]
    _views: dict[str, Array] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, lengths: Tensor, tensors: Mapping[str, Tensor]) -> Self:
        """From tensors with as many rows as there are lengths [B]."""
        return cls(lengths, {name: _with_rows(name, tensor) for name, tensor in tensors.items()})

    @property
    def width(self) -> int:
        """S."""
        return self.tensors["cross"].shape[4]

    def views(self) -> dict[str, Array]:
        """The inputs of a graph for all padded rows; the same object as long as the rows stay."""
        if not self._views:
            num_rows = padded_rows(len(self.lengths))
            arrays = {name: _rows(name, tensor, num_rows).numpy() for name, tensor in self.tensors.items()}
            cross = arrays.pop("cross")
            for layer, (keys, values) in enumerate(cross):
                arrays |= {f"source_keys{layer}": keys, f"source_values{layer}": values}
            arrays["source_mask"] = padding_mask(self.lengths.numpy(), num_rows, self.width)
            self._views = arrays
        return self._views

    def select_rows(self, rows: Tensor) -> Self:
        """The rows `rows` [B'] in that order; may repeat rows. Memory is reused: drop the old object."""
        move, lengths = RowMove.plan(rows), self.lengths.index_select(0, rows)
        if not move.is_in_place:
            chosen = {name: t.index_select(_LAYOUTS[name].rows, rows) for name, t in self.tensors.items()}
            return type(self).of(lengths, chosen)
        for name, tensor in self.tensors.items():
            move_rows(tensor, move, dim=_LAYOUTS[name].rows)
        if not has_much_free(padded_rows(move.num_rows), self.tensors["cross"].shape[2]):
            return replace(self, lengths=lengths)
        # the longest source may have left as well
        width = min(self.width, padded_length(int(lengths.max()), len(lengths))) if len(lengths) else 0
        kept = {
            name: _rows(name, tensor, move.num_rows).narrow(_LAYOUTS[name].width, 0, width)
            for name, tensor in self.tensors.items()
        }
        return type(self).of(lengths, kept)

    def concat(self, other: Self) -> Self:
        """Both batches, self first; the shorter sources are padded."""
        width = max(self.width, other.width)
        joined = {
            name: torch.cat([part._widened(name, width) for part in (self, other)], dim=_LAYOUTS[name].rows)
            for name in self.tensors
        }
        return type(self).of(torch.cat([self.lengths, other.lengths]), joined)

    def _widened(self, name: str, width: int) -> Tensor:
        """The real rows of a tensor for sources of that width."""
        tensor, dim = _rows(name, self.tensors[name], len(self.lengths)), _LAYOUTS[name].width
        return _padded(tensor, dim, width)


@dataclass
class VerifierSource(EngineSource):
    """Sources that the verifier encoded.

    Attributes:
        hidden: [B, longest source, D] states of the encoder.
    """

    hidden: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        num_rows = len(self.lengths)
        # a copy: somebody may keep them, and the memory is reused
        self.hidden = self.tensors["hidden"][:num_rows, : int(self.lengths.max()) if num_rows else 0].clone()


def source_sizes(num_rows: int, width: int) -> tuple[tuple[str, int], ...] | None:
    """The sizes of an encoder's call for `Engine.program`: of few kinds only where there is a single row."""
    return (("rows", 1), ("source", width)) if num_rows == 1 else None


def padding_mask(lengths: Array, num_rows: int, width: int) -> Array:
    """What hides padding, [num_rows, 1, 1, width] to be added to scores. Rows beyond `lengths` [B] hide nothing."""
    mask = np.zeros((num_rows, 1, 1, width), dtype=np.float32)
    mask[: len(lengths), 0, 0][np.arange(width) >= lengths[:, None]] = -np.inf
    return mask


def _rows(name: str, tensor: Tensor, num_rows: int) -> Tensor:
    """The first rows of a tensor."""
    return tensor.narrow(_LAYOUTS[name].rows, 0, num_rows)


def _with_rows(name: str, tensor: Tensor) -> Tensor:
    """A contiguous tensor with zeros in the rows that graphs are run with besides."""
    dim = _LAYOUTS[name].rows
    return _padded(tensor, dim, padded_rows(tensor.shape[dim])).contiguous()


def _padded(tensor: Tensor, dim: int, size: int) -> Tensor:
    """`tensor` with zeros up to `size` along `dim`."""
    extra = size - tensor.shape[dim]
    return F.pad(tensor, [0, 0] * (tensor.dim() - dim - 1) + [0, extra]) if extra else tensor
