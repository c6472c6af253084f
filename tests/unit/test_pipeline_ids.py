"""Ids that callers bring: padding on either side, masks, and mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from spec2seq.errors import InputError
from spec2seq.pipelines.id_inputs import unpadded_rows
from tests.unit.test_tokenization import model_config

CONFIG = replace(model_config("bart"), source_vocab_size=50, max_source_positions=6)  # pad 1, eos 2


@pytest.mark.parametrize(
    ("source_ids", "attention_mask"),
    [
        ([[5, 6, 2], [7, 2]], None),
        ([[5, 6, 2], [7, 2, 1]], None),
        ([[5, 6, 2], [1, 7, 2]], None),
        (torch.tensor([[5, 6, 2, 1], [1, 7, 2, 1]]), None),
        (torch.tensor([[5, 6, 2], [9, 7, 2]]), torch.tensor([[1, 1, 1], [0, 1, 1]])),
        ([[5, 6, 2], [7, 2, 9]], [[1, 1, 1], [1, 1, 0]]),
    ],
)
def test_padding_is_found(source_ids: Any, attention_mask: Any) -> None:
    assert unpadded_rows(source_ids, attention_mask, CONFIG) == [[5, 6, 2], [7, 2]]


def test_a_mask_beats_the_pad_id_and_inner_pads_stay() -> None:
    assert unpadded_rows([[1, 5, 1]], [[1, 1, 1]], CONFIG) == [[1, 5, 1]]
    assert unpadded_rows([[5, 1, 2]], None, CONFIG) == [[5, 1, 2]]
    assert unpadded_rows([[1, 1], []], None, CONFIG) == [[], []]


def test_a_pad_that_is_also_the_end_is_not_padding() -> None:
    assert unpadded_rows([[5, 2]], None, replace(CONFIG, pad_token_id=2)) == [[5, 2]]


@pytest.mark.parametrize(
    ("source_ids", "attention_mask", "message"),
    [
        (torch.tensor([1, 2]), None, r"shape \(2,\) and type torch.int64; give integers of shape \[rows, length\]"),
        (torch.tensor([[1.0]]), None, "type torch.float32"),
        ([5, 6], None, r"source_ids\[0\] is not a list of integers"),
        ([["a"]], None, r"source_ids\[0\] is not a list of integers"),
        ([[5, 50]], None, r"source_ids\[0\] holds 50, but the source vocabulary has 50 tokens"),
        ([[5], [-1, 3]], None, r"source_ids\[1\] holds -1"),
        ([[3] * 7], None, r"source_ids\[0\] has 7 ids, but the model takes at most 6"),
        ([[5, 6]], [[1]], "attention_mask and source_ids differ in shape"),
        ([[5, 6, 7]], [[1, 0, 1]], r"attention_mask\[0\] has a hole"),
    ],
)
def test_mistakes_are_named(source_ids: Any, attention_mask: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        unpadded_rows(source_ids, attention_mask, CONFIG)
