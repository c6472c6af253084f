"""Every drafter, batch size and block length, with an end of sequence and a budget at every place of a block.

The reference is transformers' greedy search. An end of sequence is put wherever it is wanted by declaring one of the
produced tokens to be it, so that a long output serves for all places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from spec2seq.drafters.blockwise import BlockwiseDrafter
from spec2seq.drafters.feature import FeatureDrafter
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.drafters.spec import SpecDrafter
from spec2seq.testing import ConstantDrafter, OracleDrafter, RandomDrafter, WrongDrafter
from tests.exactness.reference import Pair, cut_after
from tests.tiny_drafters import tiny_blockwise_heads, tiny_drafter, tiny_feature_drafter

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.interfaces import Drafter

pytestmark = pytest.mark.exhaustive

LENGTH = 30
DRAFTERS = [
    "oracle",
    "wrong",
    "random",
    "constant_eos",
    "constant_pad",
    "prompt_lookup",
    "small_model",
    "spec",
    "feature",
    "blockwise",
]


class Grid:
    """The model, its sources and their greedy outputs of 30 tokens."""

    def __init__(self, pair: Pair, small: Pair) -> None:
        self.pair, self.small = pair, small
        self.sources = pair.sources(24, seed=3)
        pair.forget_generation_settings()
        self.outputs = pair.transformers_ids(self.sources, max_new_tokens=LENGTH)
        assert all(len(row) == LENGTH for row in self.outputs)
        produced = {token for row in self.outputs for token in row}
        assert len(produced) > 20, "a model that repeats itself hides mistakes"
        self.no_eos = min(set(range(4, 49)) - produced)

    def rows_with_an_end_at(self, place: int) -> tuple[list[list[int]], list[list[int]], int]:
        """Sources and outputs in an order whose first row has a token at `place` that did not occur before, and it."""
        for first, row in enumerate(self.outputs):
            if row.index(row[place]) == place:
                order = [*range(first, len(self.outputs)), *range(first)]
                return [self.sources[i] for i in order], [self.outputs[i] for i in order], row[place]
        raise AssertionError(f"every output repeats itself at {place}: use another seed")

    def drafter(self, kind: str, eos: int) -> Drafter:
        outputs = {tuple(row): ids for row, ids in zip(self.sources, self.outputs, strict=True)}
        makers: dict[str, Callable[[], Drafter]] = {
            "oracle": lambda: OracleDrafter(outputs),
            "wrong": lambda: WrongDrafter(outputs, self.pair.config.target_vocab_size),
            "random": lambda: RandomDrafter(seed=1, outputs=outputs),
            "constant_eos": lambda: ConstantDrafter(eos),
            "constant_pad": lambda: ConstantDrafter(self.pair.pad),
            "prompt_lookup": lambda: PromptLookupDrafter(self.pair.config),
            "small_model": lambda: SmallModelDrafter(self.small.verifier),
            "spec": lambda: SpecDrafter(tiny_drafter(max_positions=60, dtype=torch.float64)),
            "feature": lambda: FeatureDrafter(tiny_feature_drafter(self.pair.verifier.network, block_size=25)),
            "blockwise": lambda: BlockwiseDrafter(tiny_blockwise_heads(self.pair.verifier.network, 25)),
        }
        return makers[kind]()


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    pair = Pair(tmp_path_factory.mktemp("large"), "bart", seed=27, position_scale=1.5)
    return Grid(pair, Pair(tmp_path_factory.mktemp("small"), "bart", seed=10, position_scale=1.5))


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 5, 25])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_an_end_of_sequence_at_every_place(grid: Grid, kind: str, batch_size: int, num_draft_tokens: int) -> None:
    for place in range(num_draft_tokens + 2):
        sources, outputs, eos = grid.rows_with_an_end_at(place)
        drafter = grid.drafter(kind, eos)
        options = {"eos_token_id": eos, "max_new_tokens": LENGTH, "num_draft_tokens": num_draft_tokens}
        expected = [cut_after(row, [eos]) for row in outputs[:batch_size]]
        assert grid.pair.ids(sources[:batch_size], drafter, **options) == expected


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 5, 25])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_budget_at_every_place(grid: Grid, kind: str, batch_size: int, num_draft_tokens: int) -> None:
    sources = grid.sources[:batch_size]
    for budget in range(1, num_draft_tokens + 3):
        # neighbours with other budgets must not matter
        budgets = [min(budget + i, LENGTH) for i in range(batch_size)]
        expected = [row[:n] for row, n in zip(grid.outputs, budgets, strict=False)]
        drafter = grid.drafter(kind, grid.no_eos)
        options = {"eos_token_id": grid.no_eos, "max_new_tokens": LENGTH, "num_draft_tokens": num_draft_tokens}
        assert grid.pair.ids(sources, drafter, budgets=budgets, **options) == expected


def test_a_perfect_and_a_useless_draft_side_by_side(grid: Grid) -> None:
    """Row 0 is done after ceil(n / (k + 1)) rounds whatever its neighbour accepts."""
    right = {tuple(grid.sources[0]): grid.outputs[0]}
    wrong = {tuple(grid.sources[1]): [(token + 1) % 47 for token in grid.outputs[1]]}
    drafter = OracleDrafter(right | wrong)
    options = {"eos_token_id": grid.no_eos, "max_new_tokens": LENGTH, "num_draft_tokens": 4}
    first, second = grid.pair.run(grid.sources[:2], drafter, **options)
    assert first.hypotheses[0].token_ids == grid.outputs[0]
    assert second.hypotheses[0].token_ids == grid.outputs[1]
    assert (first.stats.num_rounds, second.stats.num_rounds) == (6, LENGTH)
    assert (second.stats.num_accepted, first.stats.num_accepted) == (0, LENGTH - 6)


def test_the_order_and_the_company_of_rows_change_nothing(grid: Grid) -> None:
    options = {"eos_token_id": grid.outputs[2][7], "max_new_tokens": LENGTH, "num_draft_tokens": 3}
    expected = [cut_after(row, [grid.outputs[2][7]]) for row in grid.outputs]
    for order in ([7, 6, 5, 4, 3, 2, 1, 0], [3, 1, 6, 0], [2, 2, 5]):
        sources = [grid.sources[i] for i in order]
        for max_rows in (1, 2, 8):
            drafter = grid.drafter("random", grid.no_eos)
            assert grid.pair.ids(sources, drafter, max_rows=max_rows, **options) == [expected[i] for i in order]
