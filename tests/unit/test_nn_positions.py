"""Position tables and T5's buckets equal those of transformers, and masks hide exactly what they should."""

from __future__ import annotations

import pytest
import torch

from spec2seq.nn.masks import Placement, decoder_mask, length_mask
from spec2seq.nn.positions import fairseq_sinusoidal_table, relative_buckets, sinusoidal_table

HIDDEN = -torch.inf


@pytest.mark.parametrize("width", [16, 15])
def test_sinusoidal_table_is_marians(width: int) -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(200, width).create_weight()
    assert torch.equal(sinusoidal_table(200, width), theirs)


@pytest.mark.parametrize("width", [16, 15])
def test_fairseq_table_is_m2m100s(width: int) -> None:
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(200, width, 1)
    assert torch.equal(fairseq_sinusoidal_table(200, width, 1), theirs)


@pytest.mark.parametrize("is_bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 16), (64, 500)])
def test_buckets_are_t5s(num_buckets: int, max_distance: int, is_bidirectional: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-600, 601)
    theirs = T5Attention._relative_position_bucket(-distances, is_bidirectional, num_buckets, max_distance)
    assert torch.equal(relative_buckets(distances, num_buckets, max_distance, is_bidirectional), theirs)


def test_padding_is_hidden_and_nothing_else() -> None:
    mask = length_mask(torch.tensor([3, 1]), 3, torch.float32)
    assert mask is not None
    assert mask.tolist() == [[[[0, 0, 0]]], [[[0, HIDDEN, HIDDEN]]]]
    assert length_mask(torch.tensor([3, 3]), 3, torch.float32) is None


def _mask(
    positions: list[list[int]],
    lengths: list[int],
    slots: list[list[int]] | None = None,
    visible: torch.Tensor | None = None,
) -> list[object] | None:
    given = None if slots is None else torch.tensor(slots)
    placement = Placement.read(torch.tensor(positions), given, visible)
    mask = decoder_mask(placement, torch.tensor(lengths), visible, torch.float32)
    return None if mask is None else mask.tolist()


def test_single_queries_at_the_same_place_need_no_mask() -> None:
    assert _mask([[4], [4]], [1, 1]) is None


def test_queries_in_step_share_a_causal_mask() -> None:
    assert _mask([[1, 2], [1, 2]], [2, 2]) == [[[[0, 0, HIDDEN], [0, 0, 0]]]]


def test_ragged_rows_have_their_own() -> None:
    assert _mask([[0], [2]], [1, 1]) == [[[[0, HIDDEN, HIDDEN]]], [[[0, 0, 0]]]]


def test_given_visibility_is_padded_to_the_slots_and_padded_queries_see_the_first_slot() -> None:
    visible = torch.tensor([[[False, True], [False, False]]])
    mask = _mask([[1, 1]], [1], slots=[[1, 2]], visible=visible)
    assert mask == [[[[HIDDEN, 0, HIDDEN], [0, HIDDEN, HIDDEN]]]]
    assert visible.tolist() == [[[False, True], [False, False]]]


def test_positions_tell_when_rows_are_in_step() -> None:
    assert Placement.read(torch.tensor([[4, 5], [4, 5]]), None, None).first == 4
    assert Placement.read(torch.tensor([[4, 5], [4, 6]]), None, None).first is None
    assert Placement.read(torch.tensor([[4], [5]]), None, None).first is None
    own = Placement.read(torch.tensor([[4, 5]]), torch.tensor([[8, 3]]), torch.ones(1, 2, 4, dtype=torch.bool))
    assert (own.first, own.num_slots, own.has_own_slots) == (None, 9, True)
