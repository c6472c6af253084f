"""Speculative beam search of every family against transformers, and with every option against plain beam search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.decoding.loop import Decoder
from spec2seq.decoding.speculative_beam import SpeculativeBeamSearch
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import OracleDrafter, RandomDrafter, WrongDrafter
from spec2seq.types import SourceBatch, pad_rows
from tests.exactness.reference import Pair, cut_after
from tests.exactness.test_families import BEAM_OPTIONS, LIMIT, OPTIONS, start_of
from tests.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spec2seq.interfaces import Drafter
    from spec2seq.types import DecodedRequest

Scored = list[tuple[list[int], float | None]]


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """The pair of a family, made once; T5's norm computes in fp32 whatever the type."""
    pairs: dict[str, Pair] = {}

    def make(family: str) -> Pair:
        if family not in pairs:
            dtype = "float32" if "t5" in family else "float64"
            pairs[family] = Pair(tmp_path_factory.mktemp(family), family, seed=5, dtype=dtype)
        return pairs[family]

    return make


@pytest.fixture(scope="module")
def plain_bart(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pair = Pair(tmp_path_factory.mktemp("bart"), "bart", seed=27, position_scale=1.5)
    pair.forget_generation_settings()
    return pair


@pytest.fixture(scope="module")
def small_bart(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Another model of the same vocabulary."""
    return Pair(tmp_path_factory.mktemp("small"), "bart", seed=28, position_scale=1.5)


def make_drafter(kind: str, pair: Pair, sources: Sequence[Sequence[int]], outputs: Sequence[list[int]]) -> Drafter:
    right = {tuple(source): ids for source, ids in zip(sources, outputs, strict=True)}
    makers: dict[str, Callable[[], Drafter]] = {
        "oracle": lambda: OracleDrafter(right),
        "wrong": lambda: WrongDrafter(right, pair.config.target_vocab_size),
        "random": lambda: RandomDrafter(seed=2, outputs=right),
        "prompt_lookup": lambda: PromptLookupDrafter(pair.config),
        "itself": lambda: SmallModelDrafter(pair.verifier),
    }
    return makers[kind]()


def hypotheses(results: Sequence[DecodedRequest]) -> list[Scored]:
    return [[(hypothesis.token_ids, hypothesis.score) for hypothesis in result.hypotheses] for result in results]


def transformers_hypotheses(pair: Pair, sources: Sequence[Sequence[int]], **options: Any) -> list[Scored]:
    """The returned sequences of a batch of sources with their scores, decoder start left out, cut after the end."""
    ids, lengths = pad_rows(sources, pair.pad)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    output = pair.model.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, return_dict_in_generate=True, output_scores=True, **options
    )
    eos = pair.model.generation_config.eos_token_id
    rows = [cut_after(row, [eos]) for row in output.sequences[:, 1:].tolist()]
    scored = list(zip(rows, output.sequences_scores.tolist(), strict=True))
    count = options["num_return_sequences"]
    return [scored[start : start + count] for start in range(0, len(scored), count)]


def assert_equal(actual: list[Scored], expected: list[Scored], what: str) -> None:
    assert [[ids for ids, _ in group] for group in actual] == [[ids for ids, _ in group] for group in expected], what
    for mine, theirs in zip(actual, expected, strict=True):
        assert [score for _, score in mine] == pytest.approx([score for _, score in theirs], abs=1e-4), what


@pytest.mark.parametrize(
    ("num_beams", "kinds"), [(2, ("oracle", "itself")), (4, ("random", "prompt_lookup")), (5, ("wrong", "itself"))]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers(
    pair_of: Callable[[str], Pair], family: str, num_beams: int, kinds: tuple[str, ...]
) -> None:
    pair = pair_of(family)
    sources = pair.sources(4, seed=1)
    told, prompt = start_of(pair)
    options: dict[str, Any] = {"num_beams": num_beams, "num_return_sequences": 2, "max_new_tokens": 14}
    expected = transformers_hypotheses(pair, sources, **options, **told)
    outputs = [group[0][0] for group in expected]
    for kind, num_draft_tokens in zip(kinds, (2, 4), strict=True):
        results = pair.run(
            sources,
            make_drafter(kind, pair, sources, outputs),
            max_rows=3 * num_beams,
            prompts=[prompt] * len(sources),
            checkpoint=pair.checkpoint,
            speculative_beams=True,
            num_draft_tokens=num_draft_tokens,
            output_scores=True,
            **options,
        )
        assert_equal(hypotheses(results), expected, kind)


@pytest.mark.parametrize("name", [*OPTIONS, *BEAM_OPTIONS])
def test_every_option(plain_bart: Pair, small_bart: Pair, name: str) -> None:
    options = {"eos_token_id": 2, "max_new_tokens": LIMIT, "num_beams": 3, **OPTIONS.get(name, {})}
    if "max_length" in options:
        del options["max_new_tokens"]
    options |= {"output_scores": True, "num_return_sequences": 3, **BEAM_OPTIONS.get(name, {})}
    sources = plain_bart.sources(5, seed=4)
    expected = hypotheses(plain_bart.run(sources, **options))
    for model, is_free in ((plain_bart, True), (small_bart, False)):
        drafter = SmallModelDrafter(model.verifier)
        results = plain_bart.run(sources, drafter, max_rows=9, speculative_beams=True, num_draft_tokens=3, **options)
        assert_equal(hypotheses(results), expected, name)
        assert sum(result.stats.num_free_steps for result in results) > 0 or not is_free


def test_a_forced_first_token_and_a_prompt_of_each_rows_own(plain_bart: Pair) -> None:
    sources = plain_bart.sources(4, seed=4)
    options: dict[str, Any] = {"num_beams": 4, "eos_token_id": 2, "max_new_tokens": 12, "output_scores": True}
    settings: list[dict[str, Any]] = [
        {"forced_bos_token_id": (9, 30, 12, 7)},
        {"prompts": [[2], [2, 8, 9], [2, *range(4, 14)], [2, 20]], "budgets": [12, 3, 1, 7]},
    ]
    for setting in settings:
        expected = hypotheses(plain_bart.run(sources, **options, **setting))
        for max_rows in (4, 64):
            drafter = SmallModelDrafter(plain_bart.verifier)
            results = plain_bart.run(sources, drafter, max_rows=max_rows, speculative_beams=True, **options, **setting)
            assert_equal(hypotheses(results), expected, f"{setting} in {max_rows} rows")


@pytest.mark.parametrize("value", [1e4, 1e30])
def test_slots_of_dead_branches_are_never_read(plain_bart: Pair, small_bart: Pair, value: float) -> None:
    """Between the rounds, the keys and values of all that is not in the trie are overwritten with large numbers."""
    sources = plain_bart.sources(4, seed=4)
    options: dict[str, Any] = {"num_beams": 4, "eos_token_id": 2, "max_new_tokens": LIMIT, "output_scores": True}
    expected = hypotheses(plain_bart.run(sources, **options))
    decoder = Decoder(plain_bart.verifier, SmallModelDrafter(small_bart.verifier))
    resolved = resolve_options({}, plain_bart.config, None, {**options, "speculative_beams": True})
    requests = decoder.add(SourceBatch.from_lists(sources, plain_bart.pad), resolved)
    num_poisoned = 0
    while decoder.alive:
        decoder.step()
        search = decoder._search
        assert isinstance(search, SpeculativeBeamSearch)
        if search.requests:
            buffer = search.cache._buffer  # type: ignore[attr-defined]  # [L, rows, slots, 2, H, d]
            is_stale = torch.ones(buffer.shape[1:3], dtype=torch.bool)
            is_stale[: len(search.requests), : search.trie.num_slots] = ~search.trie.is_used[:, : buffer.shape[2]]
            with torch.inference_mode():
                buffer[:, is_stale] = value
            num_poisoned += int(is_stale.sum())
    assert_equal(hypotheses([decoder.result(request) for request in requests]), expected, "poisoned")
    assert num_poisoned > 1000
