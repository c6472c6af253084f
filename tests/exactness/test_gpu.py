"""The same code on a GPU: the network, the ragged cache, rows leaving and joining, every drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.testing import OracleDrafter, RandomDrafter
from tests.exactness.reference import Pair

if TYPE_CHECKING:
    from spec2seq.interfaces import Drafter

pytestmark = pytest.mark.gpu

LENGTH = 30


@pytest.fixture(scope="module", params=["bart", "m2m100", "t5_v1_1"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    dtype = "float32" if "t5" in request.param else "float64"
    folder = tmp_path_factory.mktemp(request.param)
    return Pair(folder, request.param, seed=27, dtype=dtype, device="cuda")


@pytest.mark.parametrize("num_draft_tokens", [1, 5, 25])
@pytest.mark.parametrize("max_rows", [1, 3, 16])
def test_every_drafter_gives_transformers_greedy_output(pair: Pair, max_rows: int, num_draft_tokens: int) -> None:
    pair.forget_generation_settings()
    sources = pair.sources(12, seed=3)
    eos = pair.config.eos_token_ids[0]
    expected = pair.transformers_ids(sources, eos_token_id=eos, max_new_tokens=LENGTH)
    right = {tuple(source): ids for source, ids in zip(sources, expected, strict=True)}
    drafters: list[Drafter] = [
        OracleDrafter(right),
        RandomDrafter(seed=1, outputs=right),
        PromptLookupDrafter(pair.config),
        SmallModelDrafter(pair.verifier),
    ]
    options = {"eos_token_id": eos, "max_new_tokens": LENGTH, "num_draft_tokens": num_draft_tokens}
    for drafter in drafters:
        assert pair.ids(sources, drafter, max_rows=max_rows, **options) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_to_the_end(tmp_path_factory: pytest.TempPathFactory, dtype: str) -> None:
    """Ties are common at this width and precision: outputs are held against plain search of the first tokens only."""
    pair = Pair(tmp_path_factory.mktemp(dtype), "bart", seed=27, dtype=dtype, device="cuda")
    sources = pair.sources(6, seed=3)
    plain = pair.ids(sources, None, max_new_tokens=LENGTH, num_draft_tokens=0, eos_token_id=2)
    drafted = pair.ids(sources, SmallModelDrafter(pair.verifier), max_new_tokens=LENGTH, eos_token_id=2)
    assert [row[:2] for row in drafted] == [row[:2] for row in plain]


def test_beams(pair: Pair) -> None:
    pair.forget_generation_settings()
    sources = pair.sources(6, seed=3)
    eos = pair.config.eos_token_ids[0]
    options = {"eos_token_id": eos, "max_new_tokens": LENGTH, "num_beams": 4}
    assert pair.ids(sources, None, max_rows=8, **options) == pair.transformers_ids(sources, **options)
