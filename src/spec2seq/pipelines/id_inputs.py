"""Token ids that a caller brings: what is padding and what is real."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from spec2seq.decoding.admission import check_ids
from spec2seq.errors import InputError

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig

IdRows = Sequence[Sequence[int]] | Tensor


def unpadded_rows(source_ids: IdRows, attention_mask: IdRows | None, config: ModelConfig) -> list[list[int]]:
    """The real ids of every row.

    Args:
        source_ids: lists of ids, or a tensor [B, S].
        attention_mask: of the same shape, 1 where an id is real. Without one, pad ids at either end of a row are
            padding, unless the model's end of sequence is the same id.

    Raises:
        InputError: a wrong shape or type, a mask with holes, an id outside the vocabulary, a row longer than the
            model's positions.
    """
    rows = _as_lists(source_ids, "source_ids")
    if attention_mask is not None:
        masks = _as_lists(attention_mask, "attention_mask")
        if [len(row) for row in rows] != [len(mask) for mask in masks]:
            raise InputError("attention_mask and source_ids differ in shape; give a mask value for every id")
        rows = [_masked(i, row, mask) for i, (row, mask) in enumerate(zip(rows, masks, strict=True))]
    elif config.pad_token_id not in config.eos_token_ids:
        rows = [_stripped(row, config.pad_token_id) for row in rows]
    for i, row in enumerate(rows):
        _check_row(i, row, config)
    return rows


def _as_lists(values: IdRows, name: str) -> list[list[int]]:
    if isinstance(values, Tensor):
        if values.dim() != 2 or values.is_floating_point():
            raise InputError(
                f"{name} is a tensor of shape {tuple(values.shape)} and type {values.dtype}; "
                "give integers of shape [rows, length]"
            )
        return [[int(value) for value in row] for row in values.tolist()]
    if not isinstance(values, Iterable):
        raise InputError(f"{name} is a {type(values).__name__}; give one list of ids per input")
    values = list(values)
    for i, row in enumerate(values):
        if not isinstance(row, Sequence) or not all(isinstance(value, int) for value in row):
            raise InputError(f"{name}[{i}] is not a list of integers; give one list of ids per input")
    return [list(row) for row in values]


def _masked(index: int, row: list[int], mask: list[int]) -> list[int]:
    real = [i for i, value in enumerate(mask) if value]
    if real and real[-1] - real[0] + 1 != len(real):
        raise InputError(f"attention_mask[{index}] has a hole; mask ids at the ends of a row only")
    return [row[i] for i in real]


def _stripped(row: list[int], pad_id: int) -> list[int]:
    real = [i for i, value in enumerate(row) if value != pad_id]
    return row[real[0] : real[-1] + 1] if real else []


def _check_row(index: int, row: list[int], config: ModelConfig) -> None:
    limit = config.max_source_positions
    if limit is not None and len(row) > limit:
        raise InputError(f"source_ids[{index}] has {len(row)} ids, but the model takes at most {limit}; shorten it")
    check_ids(f"source_ids[{index}] holds", row, "source", config)
