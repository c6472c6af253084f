"""Sizes that graphs are run with: few, because the first run with each costs milliseconds."""

from __future__ import annotations

STEP = 16  # cached slots and source positions of several rows are padded to multiples of so many
_WIDE_STEP = 32  # those of a single row, which can afford idle places better than other sizes
_PREFIX_STEP = 8
_EXACT_ROWS = 8
_EXACT_QUERIES = 16
_SINGLE_ROW_STEP = 4


def padded_length(length: int, num_rows: int) -> int:
    """For cached slots and source positions of so many rows."""
    step = max(STEP, _WIDE_STEP // max(num_rows, 1))
    return -(-length // step) * step


def padded_prefix(length: int) -> int:
    """For tokens and slots of networks that read the whole prefix in every call."""
    return -(-length // _PREFIX_STEP) * _PREFIX_STEP


def padded_rows(num_rows: int) -> int:
    """For rows: exact up to 8, then at most an eighth too many."""
    return _stepped(num_rows, _EXACT_ROWS)


def padded_queries(num_queries: int, num_rows: int) -> int:
    """For queries per row: exact up to 16, then at most an eighth too many. For a single row, which can afford three
    idle ones better than the work that other sizes make: 1, 5, 9, ..., 33, and from there on as for several."""
    if num_rows == 1 and num_queries <= 2 * _EXACT_QUERIES + 1:
        return -(-(num_queries - 1) // _SINGLE_ROW_STEP) * _SINGLE_ROW_STEP + 1
    return _stepped(num_queries, _EXACT_QUERIES)


def _stepped(count: int, num_exact: int) -> int:
    if count <= num_exact:
        return count
    step = max(2, 1 << ((count - 1).bit_length() - 4))
    return -(-count // step) * step
