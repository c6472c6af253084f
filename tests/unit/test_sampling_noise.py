"""Random numbers that follow from what they are for: even, independent, and the same in every company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec2seq.decoding.noise import RowNoise, _absorb, fresh_seed
from tests.chi_square import p_value

NUM_CELLS = 50


def counts_of(uniforms: Tensor) -> Tensor:
    return (uniforms.flatten() * NUM_CELLS).long().bincount(minlength=NUM_CELLS)


def is_even(uniforms: Tensor) -> bool:
    return p_value(counts_of(uniforms), torch.full((NUM_CELLS,), 1 / NUM_CELLS)) > 1e-3


def test_the_mixing_function_is_splitmix64() -> None:
    # the first numbers of that generator for seed 1234567
    words = [int(word) % 2**64 for word in _absorb(torch.tensor(1234567), torch.arange(5))]
    assert words == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("along", ["seeds", "samples", "counts", "slots"])
def test_numbers_are_even_and_differ_along_every_word(along: str) -> None:
    """Neighbouring seeds, samples, counts and slots look unrelated."""
    n = 4000
    seeds = list(range(n)) if along == "seeds" else [7] * n
    samples = list(range(n)) if along == "samples" else [0] * n
    noise = RowNoise.from_seeds(seeds, samples)
    if along == "slots":
        numbers = RowNoise.from_seeds([7], [0]).verification(torch.tensor([3]), n - 1)[0]
    else:
        numbers = noise.verification(torch.arange(n) if along == "counts" else torch.full((n,), 3), 1)[:, 0]
    assert is_even(numbers[:, 0])
    assert is_even(numbers[:, 1])
    assert abs(float(torch.corrcoef(numbers.T)[0, 1])) < 0.06
    assert abs(float(torch.corrcoef(torch.stack([numbers[1:, 0], numbers[:-1, 0]]))[0, 1])) < 0.06
    assert len(numbers.unique()) == 2 * n


def test_numbers_for_different_purposes_are_different() -> None:
    noise = RowNoise.from_seeds([1, 2], [0, 0])
    counts = torch.tensor([4, 4])
    judging, drawing = noise.verification(counts, 3).unbind(-1)
    drafting = torch.stack([noise.drafting(counts, slot) for slot in range(4)], dim=1)
    assert len(torch.cat([judging, drawing, drafting]).unique()) == 24


def test_blocks_share_no_numbers() -> None:
    """What rejected a token must not decide again: the next block starts over, even where it covers the same places."""
    noise = RowNoise.from_seeds([1], [0])
    blocks = [noise.verification(torch.tensor([count]), 5) for count in range(6)]
    assert len(torch.cat(blocks).unique()) == 6 * 6 * 2


def test_a_row_has_its_numbers_in_every_company() -> None:
    seeds, samples = [5, 5, 9, 2**63 - 1], [0, 1, 0, 3]
    counts = torch.tensor([0, 11, 4, 4])
    noise = RowNoise.from_seeds(seeds, samples)
    scores = torch.randn(4, 3, 20).masked_fill(torch.rand(4, 3, 20) < 0.5, -torch.inf)
    places = counts[:, None] + torch.arange(3)
    rows = torch.tensor([3, 1, 1])
    other = noise.select_rows(torch.tensor([0])).concat(noise.select_rows(rows))
    order = torch.tensor([0, 3, 1, 1])
    for one, all_rows in (
        (other.verification(counts[order], 2), noise.verification(counts, 2)),
        (other.drafting(counts[order], 2), noise.drafting(counts, 2)),
        (other.gumbel(scores[order], places[order]), noise.gumbel(scores, places)),
    ):
        assert torch.equal(one, all_rows[order])


def test_gumbel_noise_belongs_to_the_token_and_its_place() -> None:
    """Which tokens survive, and where a block starts, does not matter."""
    noise = RowNoise.from_seeds([3, 4], [0, 0])
    counts = torch.tensor([[0, 1, 2, 3], [6, 7, 8, 9]])
    whole = noise.gumbel(torch.zeros(2, 4, 30), counts)
    scores = torch.zeros(2, 4, 30).masked_fill(torch.rand(2, 4, 30) < 0.7, -torch.inf)
    few = noise.gumbel(scores, counts)
    assert torch.equal(few, whole.masked_fill(scores == -torch.inf, 0.0))
    assert torch.equal(noise.gumbel(torch.zeros(2, 2, 30), counts[:, 2:]), whole[:, 2:])
    assert len(whole.unique()) == whole.numel()


def test_gumbel_noise_draws_from_the_law() -> None:
    n = 20_000
    scores = torch.tensor([1.0, -torch.inf, 0.3, -1.0, 2.0])
    by_seed = RowNoise.from_seeds(range(n), [0] * n).gumbel(scores.expand(n, 1, -1), torch.full((n, 1), 5))[:, 0]
    by_count = RowNoise.from_seeds([8], [0]).gumbel(scores.expand(1, n, -1), torch.arange(n)[None])[0]
    for noise in (by_seed, by_count):
        drawn = (scores + noise).argmax(-1).bincount(minlength=5)
        assert p_value(drawn, scores.softmax(-1)) > 1e-3
        finite = noise[:, scores.isfinite()]
        assert is_even((-(-finite.double()).exp()).exp())
    assert not torch.equal(by_seed, by_count)


def test_fresh_seeds_differ_and_leave_torch_alone() -> None:
    before = torch.get_rng_state()
    seeds = {fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**53 for seed in seeds)
    assert torch.equal(torch.get_rng_state(), before)
