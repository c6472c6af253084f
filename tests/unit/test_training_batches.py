"""Batches hold every pair once, at most so many tokens, and the same pairs whenever the seed is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spec2seq.errors import InputError, OptionError
from spec2seq.training.batches import BatchDataset, PairTable, group_rows
from spec2seq.training.records import DistilledPair


def pair(line: int, source_length: int, target_length: int) -> DistilledPair:
    return DistilledPair(line, "", "", [line] * source_length, [line + 1] * target_length, 0, "eos", False)


PAIRS = [pair(i, 1 + i % 7, 1 + i * 5 % 11) for i in range(40)]


def test_every_pair_is_in_one_batch_and_no_batch_is_too_large() -> None:
    data = BatchDataset(PairTable(PAIRS, 12, 2), 80, 4, 1)
    seen = []
    for i in range(len(data)):
        batch = data[i]
        num_rows, source_width = batch.source_ids.shape
        assert num_rows * (source_width + batch.target_ids.shape[1] + 4) <= 80
        for row in range(num_rows):
            source = batch.source_ids[row, : batch.source_lengths[row]].tolist()
            target = batch.target_ids[row, : batch.target_lengths[row]].tolist()
            seen.append((source, target))
        is_padding = batch.target_ids.new_tensor(range(batch.target_ids.shape[1])) >= batch.target_lengths[:, None]
        assert (batch.target_ids[is_padding] == 1).all()
    assert sorted(seen) == sorted((one.source_ids, one.target_ids) for one in PAIRS)
    assert len(data) < 20


def test_rows_of_a_batch_are_about_as_long() -> None:
    groups = group_rows([(length, length) for length in [1, 9, 1, 9, 1, 9]], 54, 0)
    assert [sorted(group) for group in groups] == [[0, 2, 4], [1, 3, 5]]
    assert group_rows([(50, 50), (1, 1)], 10, 0) == [[1], [0]]  # a row that is too long is a batch of its own


def test_a_seed_is_a_composition() -> None:
    widths = [(3, 3)] * 30
    assert group_rows(widths, 60, 1) == group_rows(widths, 60, 1)
    assert group_rows(widths, 60, 1) != group_rows(widths, 60, 2)


def test_what_is_not_trained_on() -> None:
    circles = replace(pair(7, 2, 3), is_degenerate=True)
    forced_only = replace(pair(8, 2, 1), num_forced=1)
    table = PairTable([circles, pair(3, 20, 3), forced_only, replace(pair(9, 2, 2), num_forced=1)], 12, 2)
    assert (len(table), table.num_left_out, table.num_forced) == (2, 2, [0, 1])
    assert [source.tolist() for source in table.sources] == [[3] * 12, [9, 9]]
    with pytest.raises(InputError, match="no pairs to train on \\(2 run in circles or are empty\\)"):
        PairTable([circles, forced_only], 12, 2)
    with pytest.raises(OptionError, match="batch_tokens=0"):
        BatchDataset(table, 0, 4, 1)
