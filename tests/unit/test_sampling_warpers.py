"""Warpers against those of transformers, token by token and bit by bit."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper
from transformers.generation.logits_process import TopPLogitsWarper

from spec2seq.decoding.warpers import Warpers
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import tiny_config

NUM_ROWS, NUM_QUERIES, VOCAB_SIZE = 30, 4, 60


def warp_with_transformers(scores: Tensor, warpers: Warpers) -> Tensor:
    """In the order in which its `generate` puts them together."""
    processors = LogitsProcessorList()
    if warpers.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(warpers.temperature))
    if warpers.top_k:
        processors.append(TopKLogitsWarper(warpers.top_k))
    if warpers.top_p < 1.0:
        processors.append(TopPLogitsWarper(warpers.top_p))
    if warpers.min_p:
        processors.append(MinPLogitsWarper(warpers.min_p))
    return processors(None, scores.flatten(0, 1)).reshape(scores.shape)


def make_scores(kind: str) -> Tensor:
    scores = torch.randn(NUM_ROWS, NUM_QUERIES, VOCAB_SIZE) * 3
    if kind == "ties":
        return (scores / 2).round()
    if kind == "bans":
        return scores.masked_fill(torch.rand(scores.shape) < 0.8, -torch.inf)
    return scores


SETTINGS = [
    Warpers(*values)
    for values in itertools.product((1.0, 0.3, 1.8), (0, 1, 7, 50, 500), (1.0, 0.9, 0.4, 0.0), (0.0, 0.1, 1.0))
]


@pytest.mark.parametrize("kind", ["plain", "bans"])
def test_every_combination_equals_transformers(kind: str) -> None:
    scores = make_scores(kind)
    before = scores.clone()
    for warpers in SETTINGS:
        assert torch.equal(warpers(scores), warp_with_transformers(scores, warpers)), warpers
    assert torch.equal(scores, before)


def test_ties_leave_as_many_tokens_of_the_same_scores() -> None:
    """Which of equal tokens top-p takes is open in transformers, whose sorting is not stable; the rest is not."""
    scores = make_scores("ties")
    for warpers in SETTINGS:
        warped, expected = warpers(scores), warp_with_transformers(scores, warpers)
        assert torch.equal(warped.sort(-1).values, expected.sort(-1).values), warpers
        if warpers.top_p == 1.0:
            assert torch.equal(warped, expected), warpers


@pytest.mark.parametrize("top_k", [50, 0])
def test_a_large_vocabulary_equals_transformers(top_k: int) -> None:
    scores = torch.randn(3, 5, 8000) * 4
    for top_p in (0.95, 0.5):
        warpers = Warpers(0.8, top_k, top_p, 0.01)
        assert torch.equal(warpers(scores), warp_with_transformers(scores, warpers))


def test_ties_at_the_cut_of_top_k_stay_together() -> None:
    kept = Warpers(top_k=2)(torch.tensor([[3.0, 1.0, 2.0, 2.0]])).isfinite()
    assert kept.tolist() == [[True, False, True, True]]


def test_top_p_takes_equal_tokens_of_higher_id() -> None:
    # a quarter each: three quarters are needed, and the lowest id is the one to go
    kept = Warpers(top_p=0.75)(torch.zeros(1, 1, 4)).isfinite()
    assert kept.tolist() == [[[False, True, True, True]]]


def test_one_token_is_kept_whatever_the_thresholds() -> None:
    scores = make_scores("plain")
    for warpers in (Warpers(top_p=0.0), Warpers(top_k=1), Warpers(min_p=1.0), Warpers(top_p=1e-9, min_p=1.0)):
        kept = warpers(scores).isfinite()
        assert torch.equal(kept.sum(-1), torch.ones(NUM_ROWS, NUM_QUERIES).long())
        assert torch.equal(kept.long().argmax(-1), scores.argmax(-1))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_broken_rows_stay_broken_and_alone(broken: float) -> None:
    scores = make_scores("plain")
    warpers = Warpers(0.7, 10, 0.9, 0.05)
    expected = warpers(scores)
    scores[3, 1, 17] = broken
    warped = warpers(scores)
    assert not bool(warped[3, 1].max().isfinite())
    warped[3, 1] = expected[3, 1]
    assert torch.equal(warped, expected)


def test_options_become_warpers() -> None:
    arguments = {"do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.25, "min_p": 0.125}
    assert Warpers.from_options(resolve_options({}, tiny_config(), None, arguments)) == Warpers(0.5, 3, 0.25, 0.125)
    assert Warpers.from_options(resolve_options({}, tiny_config())) == Warpers()
