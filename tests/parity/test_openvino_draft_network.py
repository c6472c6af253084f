"""The Spec-Drafter on the OpenVINO engine drafts what it drafts on torch, whatever its encoder is like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.types import Prefix, SourceBatch, Wanted, pad_rows
from tests.tiny_drafters import tiny_drafter
from tests.unit.test_nn_spec_drafter import ENCODERS, PREFIXES, SOURCES

pytest.importorskip("openvino", reason="needs pip install 'spec2seq[openvino]'")

from spec2seq.backends.openvino.loading import Loader

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.interfaces import DraftNetwork

TOLERANCE = 5e-5  # of the largest score; the engine sums in another order and has its own exp and erf


def _both(calls: Any, network: Any) -> None:
    ours, theirs = calls(Loader("float32", 1).draft_network(network)), calls(network)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= TOLERANCE * other.abs().max()


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("encoder", ENCODERS)
def test_ragged_batches_whose_rows_leave_and_join_equal(encoder: str) -> None:
    def calls(network: DraftNetwork) -> list[Tensor]:
        source = network.encode(SourceBatch.from_lists(SOURCES, 1))
        wanted = Wanted(logits=True)
        first = network.draft(Prefix(*pad_rows(PREFIXES, 17)), 5, source, wanted).logits()
        source = source.concat(network.encode(SourceBatch.from_lists([[5] * 20 + [2]], 1)))
        prefix = Prefix(*pad_rows([*PREFIXES, [2, 7, 8]], 17))
        joined = network.draft(prefix, 1, source, wanted).logits()
        rows = torch.tensor([3, 0, 3])
        left = network.draft(Prefix(prefix.ids[rows], prefix.lengths[rows]), 7, source.select_rows(rows), wanted)
        return [first, joined, left.logits()]

    _both(calls, tiny_drafter(ENCODERS[encoder], slot_token_id=3 if encoder == "learned" else None))


def test_long_sources_are_cut_and_blocks_beyond_the_positions_hurt_nobody() -> None:
    def calls(network: DraftNetwork) -> list[Tensor]:
        source = network.encode(SourceBatch.from_lists([list(range(3, 48)), [9, 2]], 1))
        prefix = Prefix(*pad_rows([[2, *range(3, 40)], [2, 8, 9]], 17))  # 37 known tokens and 5 slots are 42 of 40
        return [network.draft(prefix, 5, source, Wanted(logits=True)).logits()[1:]]

    _both(calls, tiny_drafter())


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lower_precisions_draft_alike(precision: Any) -> None:
    if precision == "int8":
        pytest.importorskip("nncf", reason="needs pip install 'spec2seq[openvino]'")
    network = tiny_drafter()
    prefix = Prefix(*pad_rows(PREFIXES, 17))
    ours, theirs = (
        which.draft(prefix, 5, which.encode(SourceBatch.from_lists(SOURCES, 1)), Wanted(logits=True)).logits()
        for which in (Loader(precision, 1).draft_network(network), network)
    )
    assert 0 < (ours - theirs).abs().max() <= 0.1 * theirs.abs().max()
