"""The cache's bookkeeping: growth, rows that come, go, move and repeat, and nothing stale that could be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from spec2seq.nn.kv_cache import KeyValueCache
from spec2seq.nn.rows import RowMove, has_much_free
from spec2seq.testing import tiny_config

if TYPE_CHECKING:
    from torch import Tensor

LAYERS, HEADS, HEAD_DIM = 2, 2, 8


def _cache(rows: int) -> KeyValueCache:
    return KeyValueCache(tiny_config(), rows, torch.float32, torch.device("cpu"))


def _write(cache: KeyValueCache, slots: Tensor, first: int | None = None, is_final: bool = True) -> Tensor:
    """Write random keys and values at slots [B, n]; returns them [L, B, n, 2, H, d]."""
    content = torch.randn(LAYERS, *slots.shape, 2, HEADS, HEAD_DIM)
    windows = cache.open(slots, int(slots.max()) + 1, first, is_final)
    for window, layer in zip(windows, content, strict=True):
        window.write(layer)
    return content


def _read(cache: KeyValueCache, num_slots: int) -> Tensor:
    """[L, B, num_slots, 2, H, d]."""
    slots = torch.full((cache.num_rows, 1), num_slots - 1)
    windows = cache.open(slots, num_slots, None, is_final=False)
    return torch.stack([torch.stack([w.keys, w.values], dim=1).permute(0, 3, 1, 2, 4) for w in windows])


def test_what_is_written_is_read_and_the_rest_is_zero() -> None:
    cache = _cache(2)
    first = _write(cache, torch.arange(3).repeat(2, 1), first=0)
    ragged = _write(cache, torch.tensor([[3, 4], [5, 7]]))
    content = _read(cache, 8)
    assert torch.equal(content[:, :, :3], first)
    assert torch.equal(content[:, 0, 3:5], ragged[:, 0])
    assert torch.equal(content[:, 1, [5, 7]], ragged[:, 1])
    assert not content[:, 0, 5:].any()
    assert not content[:, 1, [3, 4, 6]].any()


def test_it_grows_in_steps_and_keeps_its_content() -> None:
    cache = _cache(2)
    assert cache.capacity == (2, 0)
    first = _write(cache, torch.arange(60).repeat(2, 1), first=0)
    assert cache.capacity == (2, 64)
    more = _write(cache, torch.arange(60, 70).repeat(2, 1), first=60)
    assert cache.capacity == (2, 128)
    assert torch.equal(_read(cache, 70), torch.cat([first, more], dim=2))
    assert not _read(cache, 128)[:, :, 70:].any()


@pytest.mark.parametrize(
    ("rows", "is_in_place"),
    [
        ([0, 1, 2, 3], True),
        ([0, 1], True),
        ([0, 3, 2], True),
        ([3], True),
        ([], True),
        ([1, 0, 2, 3], False),
        ([1, 2, 3], False),
        ([0, 0, 1, 1, 2, 2], False),
        ([2, 2], True),
    ],
)
def test_rows_are_selected_in_any_order(rows: list[int], is_in_place: bool) -> None:
    cache = _cache(4)
    content = _write(cache, torch.arange(5).repeat(4, 1), first=0)
    index = torch.tensor(rows, dtype=torch.long)
    assert RowMove.plan(index).is_in_place is is_in_place
    assert cache.select_rows(index) is cache
    assert cache.num_rows == len(rows)
    assert torch.equal(_read(cache, 5), content[:, index])


def test_positions_of_slots_follow_their_rows() -> None:
    cache = _cache(3)
    slots, positions = torch.tensor([[0, 1], [1, 0], [4, 2]]), torch.tensor([[5, 6], [7, 8], [9, 10]])
    _write(cache, slots)
    known = cache.remember_positions(slots, positions, 5)
    assert known.tolist() == [[5, 6, 2, 3, 4], [8, 7, 2, 3, 4], [0, 1, 10, 3, 9]]
    cache.select_rows(torch.tensor([2, 0, 2])).append_rows(1)
    known = cache.remember_positions(torch.zeros(4, 1, dtype=torch.long), torch.tensor([[1], [2], [3], [4]]), 5)
    assert known.tolist() == [[1, 1, 10, 3, 9], [2, 6, 2, 3, 4], [3, 1, 10, 3, 9], [4, 1, 2, 3, 4]]
    _write(cache, torch.full((4, 1), 70))
    assert cache.slot_positions is not None
    assert cache.slot_positions[1, [0, 1, 69, 70]].tolist() == [2, 6, 69, 70]


def test_appended_rows_are_empty_even_where_a_row_left_something() -> None:
    cache = _cache(8)
    content = _write(cache, torch.arange(5).repeat(8, 1), first=0)
    cache.select_rows(torch.arange(7))
    assert cache.capacity[0] == 8
    assert cache.append_rows(3) is cache
    assert cache.num_rows == 10
    assert torch.equal(_read(cache, 5)[:, :7], content[:, :7])
    assert not _read(cache, 5)[:, 7:].any()


def test_a_not_a_number_leaves_with_its_row() -> None:
    """It may sit beyond the slots of the last call, and be uncovered when the row that took the place grows."""
    cache = _cache(8)
    _write(cache, torch.arange(20).repeat(8, 1), first=0)
    cache._buffer[:, 1, 10:20] = torch.nan
    _write(cache, torch.full((8, 1), 4), first=4)
    cache.select_rows(torch.tensor([0, 7, 2, 3, 4, 5, 6]))
    assert cache.capacity[0] == 8
    assert _read(cache, 20).isfinite().all()
    cache.append_rows(1)
    assert _read(cache, 20).isfinite().all()


@pytest.mark.parametrize(
    ("num_rows", "capacity", "gives_back"),
    [(32, 32, False), (25, 32, False), (24, 32, True), (4, 5, True), (5, 6, False)],
)
def test_memory_is_given_back_when_a_quarter_is_free(num_rows: int, capacity: int, gives_back: bool) -> None:
    assert has_much_free(num_rows, capacity) is gives_back
    cache = _cache(capacity)
    _write(cache, torch.arange(3).repeat(capacity, 1), first=0)
    cache.select_rows(torch.arange(num_rows))
    assert cache.capacity == (num_rows if gives_back else capacity, 64)


def test_a_long_row_that_left_gives_its_slots_back_too() -> None:
    cache = _cache(4)
    _write(cache, torch.arange(200).repeat(4, 1), first=0)
    kept = _write(cache, torch.full((4, 1), 9), first=9)
    cache.select_rows(torch.arange(2))
    assert cache.capacity == (2, 64)
    assert torch.equal(_read(cache, 10)[:, :, 9:], kept[:, :2])


def test_slots_beyond_the_last_call_survive_where_slots_are_not_positions() -> None:
    """A tree's nodes live on although the next call looks at fewer slots."""
    cache = _cache(6)
    tree = _write(cache, torch.tensor([[70]] * 6), is_final=False)
    _write(cache, torch.tensor([[3]] * 6), is_final=False)
    cache.select_rows(torch.tensor([5, 4]))
    assert cache.capacity == (2, 128)
    assert torch.equal(_read(cache, 71)[:, :, 70:], tree[:, [5, 4]])


def test_fp16_overflow_is_not_stored() -> None:
    cache = KeyValueCache(tiny_config(), 1, torch.float16, torch.device("cpu"))
    bad = torch.full((1, 1, 2, HEADS, HEAD_DIM), torch.inf, dtype=torch.float16)
    bad[..., 0] = torch.nan
    for window in cache.open(torch.zeros(1, 1, dtype=torch.long), 1, 0, is_final=True):
        window.write(bad)
    assert _read(cache, 1).isfinite().all()
