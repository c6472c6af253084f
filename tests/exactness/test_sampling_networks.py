"""Sampling with real networks: the text of a seed, and the law that transformers draws from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.drafters.blockwise import BlockwiseDrafter
from spec2seq.drafters.feature import FeatureDrafter
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from tests.chi_square import p_value
from tests.exactness.reference import Pair
from tests.tiny_drafters import tiny_blockwise_heads, tiny_feature_drafter

if TYPE_CHECKING:
    from spec2seq.interfaces import Drafter

OPTIONS: dict[str, Any] = {"do_sample": True, "num_beams": 1, "max_new_tokens": 20}


@pytest.fixture(scope="module", params=["marian", "t5"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("large"), request.param, seed=11)


@pytest.fixture(scope="module")
def drafters(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Drafter]:
    small = Pair(tmp_path_factory.mktemp("small"), pair.model.config.model_type, seed=12)
    return {
        "prompt_lookup": PromptLookupDrafter(pair.config),
        "small": SmallModelDrafter(small.verifier),
        "same": SmallModelDrafter(pair.verifier),
        "feature": FeatureDrafter(tiny_feature_drafter(pair.verifier.network, block_size=10)),
        "blockwise": BlockwiseDrafter(tiny_blockwise_heads(pair.verifier.network, 10)),
    }


@pytest.mark.parametrize("kind", ["prompt_lookup", "small", "same", "feature", "blockwise"])
@pytest.mark.parametrize("num_draft_tokens", [2, 10])
def test_a_seed_gives_the_text_of_plain_sampling(
    pair: Pair, drafters: dict[str, Drafter], kind: str, num_draft_tokens: int
) -> None:
    sources = pair.sources(6, seed=3)
    plain = pair.run(sources, seed=7, num_return_sequences=3, **OPTIONS)
    assert len({tuple(h.token_ids) for result in plain for h in result.hypotheses}) > 6
    alone = [pair.run([row], seed=7, num_return_sequences=3, **OPTIONS)[0] for row in sources]
    assert [result.hypotheses for result in alone] == [result.hypotheses for result in plain]
    drafter, settings = drafters[kind], {"num_draft_tokens": num_draft_tokens, "num_return_sequences": 3}
    found = pair.run(sources, drafter, max_rows=7, seed=7, **settings, **OPTIONS)
    assert [result.hypotheses for result in found] == [result.hypotheses for result in plain]
    num_accepted = sum(result.stats.num_accepted for result in found)
    assert num_accepted > (100 if kind == "same" else 0)


def test_first_and_second_tokens_come_as_often_as_in_transformers(pair: Pair, drafters: dict[str, Drafter]) -> None:
    tuning = {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3}
    (source,) = pair.sources(1, seed=5)
    (result,) = pair.run(
        [source],
        drafters["small"],
        max_rows=2000,
        checkpoint=pair.checkpoint,
        seed=1,
        num_return_sequences=2000,
        num_draft_tokens=3,
        **{**OPTIONS, **tuning, "max_new_tokens": 3, "min_new_tokens": 2},
    )
    texts = torch.tensor([hypothesis.token_ids[:2] for hypothesis in result.hypotheses])
    first = int(texts[:, 0].mode().values)
    for place, tokens in ((0, texts[:, 0]), (1, texts[texts[:, 0] == first][:, 1])):
        start = [pair.config.decoder_start_token_id, first][: place + 1]
        law = transformers_law(pair, source, start, tuning)
        assert p_value(tokens.bincount(minlength=len(law)), law) > 1e-3


def transformers_law(pair: Pair, source: list[int], start: list[int], tuning: dict[str, float]) -> torch.Tensor:
    """What transformers draws the token after `start` from, at least two new ones to come."""
    output = pair.model.generate(
        input_ids=torch.tensor([source]),
        decoder_input_ids=torch.tensor([start]),
        do_sample=True,
        num_beams=1,
        min_new_tokens=2,
        max_new_tokens=3,
        output_scores=True,
        return_dict_in_generate=True,
        **tuning,
    )
    return output.scores[0][0].softmax(-1)
