"""Greedy and beam search of every family against transformers' generate, token for token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spec2seq.drafters.blockwise import BlockwiseDrafter
from spec2seq.drafters.feature import FeatureDrafter
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.testing import OracleDrafter, RandomDrafter
from tests.exactness.reference import Pair
from tests.families import FAMILIES, TARGET_LANGUAGE_ID
from tests.tiny_drafters import tiny_blockwise_heads, tiny_feature_drafter

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.interfaces import Drafter

LIMIT = 24


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """The pair of a family, made once. T5's norm computes in fp32 whatever the type, so float64 would gain nothing."""
    pairs: dict[str, Pair] = {}

    def make(family: str) -> Pair:
        if family not in pairs:
            dtype = "float32" if "t5" in family else "float64"
            pairs[family] = Pair(tmp_path_factory.mktemp(family), family, seed=5, dtype=dtype)
        return pairs[family]

    return make


def start_of(pair: Pair) -> tuple[dict[str, Any], list[int]]:
    """How transformers is told to start, and the same as a prompt: mBART-cc25 starts with a language code."""
    if pair.config.decoder_start_token_id < 0:
        return {"decoder_start_token_id": TARGET_LANGUAGE_ID}, [TARGET_LANGUAGE_ID]
    return {}, [pair.config.decoder_start_token_id]


def drafters(pair: Pair, sources: list[list[int]], outputs: list[list[int]]) -> dict[str, Drafter | None]:
    right = {tuple(source): ids for source, ids in zip(sources, outputs, strict=True)}
    return {
        "none": None,
        "oracle": OracleDrafter(right),
        "random": RandomDrafter(seed=2, outputs=right),
        "prompt_lookup": PromptLookupDrafter(pair.config),
        "small_model": SmallModelDrafter(pair.verifier),
        "feature": FeatureDrafter(tiny_feature_drafter(pair.verifier.network)),
        "blockwise": BlockwiseDrafter(tiny_blockwise_heads(pair.verifier.network, 6)),
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_with_the_checkpoints_own_settings(pair_of: Callable[[str], Pair], family: str) -> None:
    pair = pair_of(family)
    sources = pair.sources(6, seed=1)
    told, prompt = start_of(pair)
    expected = pair.transformers_ids(sources, num_beams=1, max_new_tokens=LIMIT, **told)
    for name, drafter in drafters(pair, sources, expected).items():
        for num_draft_tokens in (1, 4):
            ids = pair.ids(
                sources,
                drafter,
                max_rows=4,
                prompts=[prompt] * len(sources),
                checkpoint=pair.checkpoint,
                num_beams=1,
                max_new_tokens=LIMIT,
                num_draft_tokens=num_draft_tokens,
            )
            assert ids == expected, f"{name} with {num_draft_tokens}"


@pytest.mark.parametrize("family", FAMILIES)
def test_beams_with_the_checkpoints_own_settings(pair_of: Callable[[str], Pair], family: str) -> None:
    pair = pair_of(family)
    sources = pair.sources(5, seed=1)
    told, prompt = start_of(pair)
    for options in ({"num_beams": 2}, {"num_beams": 4, "length_penalty": 0.7}):
        expected = pair.transformers_ids(sources, max_new_tokens=LIMIT, **options, **told)
        prompts = [prompt] * len(sources)
        settings = {"checkpoint": pair.checkpoint, "max_new_tokens": LIMIT, "prompts": prompts, **options}
        assert pair.ids(sources, None, **settings) == expected
        assert pair.ids(sources, None, max_rows=4, **settings) == expected


OPTIONS: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"max_new_tokens": 7},
    "max_length": {"max_length": 9},
    "min_new_tokens": {"min_new_tokens": 12, "max_new_tokens": LIMIT, "eos_token_id": [7, 16]},
    "min_length": {"min_length": 14, "max_length": 25, "eos_token_id": [7, 16]},
    "several_eos": {"eos_token_id": [16, 8, 31], "max_new_tokens": LIMIT},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2, "max_new_tokens": LIMIT},
    "repetition_penalty": {"repetition_penalty": 1.6, "max_new_tokens": LIMIT},
    "bad_words_ids": {"bad_words_ids": [[16], [8, 21], [31, 5, 6]], "max_new_tokens": LIMIT},
    "suppress_tokens": {"suppress_tokens": [8, 16], "max_new_tokens": LIMIT},
    "forced_bos_token_id": {"forced_bos_token_id": 9, "max_new_tokens": LIMIT},
    "forced_eos_token_id": {"forced_eos_token_id": 2, "max_new_tokens": 11},
    "renormalize_logits": {"renormalize_logits": True, "suppress_tokens": [8], "max_new_tokens": LIMIT},
    "all_at_once": {
        "forced_bos_token_id": 9,
        "forced_eos_token_id": 2,
        "min_new_tokens": 5,
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.2,
        "bad_words_ids": [[16], [8, 21]],
        "suppress_tokens": [31],
        "eos_token_id": [2, 7],
        "max_new_tokens": 15,
    },
}
BEAM_OPTIONS: dict[str, dict[str, Any]] = {
    "early": {"early_stopping": True},
    "never": {"early_stopping": "never", "length_penalty": 1.5},
    "short": {"length_penalty": -1.0},
    "best_two": {"num_return_sequences": 2},
}


@pytest.fixture(scope="module")
def plain_bart(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pair = Pair(tmp_path_factory.mktemp("bart"), "bart", seed=27, position_scale=1.5)
    pair.forget_generation_settings()
    return pair


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_in_greedy_search(plain_bart: Pair, name: str) -> None:
    options = {"eos_token_id": 2, **OPTIONS[name]}
    sources = plain_bart.sources(6, seed=4)
    expected = plain_bart.transformers_ids(sources, **options)
    for kind, drafter in drafters(plain_bart, sources, expected).items():
        for num_draft_tokens in (2, 6):
            ids = plain_bart.ids(sources, drafter, num_draft_tokens=num_draft_tokens, **options)
            assert ids == expected, f"{kind} with {num_draft_tokens}"


@pytest.mark.parametrize("name", [*OPTIONS, *BEAM_OPTIONS])
def test_every_option_in_beam_search(plain_bart: Pair, name: str) -> None:
    options = {"eos_token_id": 2, "max_new_tokens": LIMIT, "num_beams": 3, **OPTIONS.get(name, {})}
    if "max_length" in options:
        del options["max_new_tokens"]
    options |= BEAM_OPTIONS.get(name, {})
    sources = plain_bart.sources(6, seed=4)
    num_returned = options.get("num_return_sequences", 1)
    for source, result in zip(sources, plain_bart.run(sources, **options), strict=True):
        rows = plain_bart.transformers_hypotheses(source, **options)
        assert [hypothesis.token_ids for hypothesis in result.hypotheses] == rows
        assert len(rows) == num_returned


def test_a_budget_at_every_place_with_a_forced_end(plain_bart: Pair) -> None:
    sources = plain_bart.sources(3, seed=4)
    for budget in range(1, 9):
        options = {"eos_token_id": 2, "forced_eos_token_id": 2, "max_new_tokens": budget}
        expected = plain_bart.transformers_ids(sources, **options)
        assert all(row[-1] == 2 for row in expected)
        assert any(len(row) == budget for row in expected)
        for drafter in drafters(plain_bart, sources, expected).values():
            assert plain_bart.ids(sources, drafter, num_draft_tokens=5, **options) == expected


def test_a_forced_first_token_of_each_rows_own(plain_bart: Pair) -> None:
    sources = plain_bart.sources(3, seed=4)
    forced = (9, 30, 12)
    expected = [
        plain_bart.transformers_ids([row], forced_bos_token_id=token, eos_token_id=2, max_new_tokens=LIMIT)[0]
        for row, token in zip(sources, forced, strict=True)
    ]
    for drafter in drafters(plain_bart, sources, expected).values():
        options = {"forced_bos_token_id": forced, "eos_token_id": 2, "max_new_tokens": LIMIT}
        results = plain_bart.run(sources, drafter, num_draft_tokens=3, **options)
        assert [result.hypotheses[0].token_ids for result in results] == expected
        assert [result.stats.num_forced for result in results] == [1, 1, 1]
