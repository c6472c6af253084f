"""Scores behind every token: equal to transformers', whatever was drafted, and the margin that follows from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.decoding.loop import Decoder
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.errors import InputError, OptionError
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import RandomDrafter
from spec2seq.types import SourceBatch
from tests.exactness.reference import Pair

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.types import DecodedRequest, Hypothesis

LIMIT = 12
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"eos_token_id": 2},
    "forced": {"eos_token_id": 2, "forced_bos_token_id": 9, "forced_eos_token_id": 2},
    "changed": {
        "eos_token_id": [2, 7],
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[16], [8, 21]],
        "suppress_tokens": [31],
        "min_new_tokens": 4,
        "renormalize_logits": True,
    },
}
ASKED = {"output_scores": True, "output_logits": True, "output_margin": True}


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pair = Pair(tmp_path_factory.mktemp("bart"), "bart", seed=27, position_scale=1.5)
    pair.forget_generation_settings()
    return pair


def reference(pair: Pair, source: list[int], options: dict[str, Any]) -> tuple[list[int], Tensor, Tensor]:
    """Ids, processed scores [n, V] and logits [n, V] of one source by transformers."""
    output = pair.model.generate(
        torch.tensor([source]),
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        max_new_tokens=LIMIT,
        **options,
    )
    return output.sequences[0, 1:].tolist(), torch.cat(output.scores), torch.cat(output.logits)


def assert_same(one: Tensor | None, other: Tensor) -> None:
    assert one is not None
    assert one.shape == other.shape
    assert one.dtype == torch.float32
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", ["plain", "random", "small_model"])
def test_scores_equal_transformers(bart: Pair, name: str, kind: str) -> None:
    options, sources = OPTIONS[name], bart.sources(4, seed=4)
    expected = [reference(bart, source, options) for source in sources]
    outputs = {tuple(source): ids for source, (ids, _, _) in zip(sources, expected, strict=True)}
    drafters = {
        "plain": None,
        "random": RandomDrafter(seed=2, outputs=outputs),
        "small_model": SmallModelDrafter(bart.verifier),
    }
    settings = {**options, **ASKED, "max_new_tokens": LIMIT, "num_draft_tokens": 3}
    results = bart.run(sources, drafters[kind], max_rows=3, **settings)
    for result, (ids, scores, logits) in zip(results, expected, strict=True):
        (hypothesis,) = result.hypotheses
        assert hypothesis.token_ids == ids
        assert_same(hypothesis.scores, scores)
        assert_same(hypothesis.logits, logits)
        assert hypothesis.score == pytest.approx(expected_score(ids, scores), abs=1e-4)
        assert hypothesis.min_margin == pytest.approx(expected_margin(scores), abs=1e-4)
    assert min(len(ids) for ids, _, _ in expected) > 1
    if kind == "small_model":
        assert any(result.stats.num_accepted for result in results)


def expected_score(ids: list[int], scores: Tensor) -> float:
    return float(scores.log_softmax(-1).double().gather(1, torch.tensor(ids)[:, None]).sum())


def expected_margin(scores: Tensor) -> float:
    best = scores.topk(2).values
    return float((best[:, 0] - best[:, 1]).min())


def test_nothing_is_kept_that_was_not_asked_for(bart: Pair) -> None:
    sources = bart.sources(2, seed=4)
    (plain, *_) = bart.run(sources, max_new_tokens=LIMIT, eos_token_id=2)
    assert plain.hypotheses[0].scores is plain.hypotheses[0].logits is plain.hypotheses[0].min_margin is None
    for name in ASKED:
        hypothesis = bart.run(sources, max_new_tokens=LIMIT, eos_token_id=2, **{name: True})[0].hypotheses[0]
        got = {
            "output_scores": hypothesis.scores is not None,
            "output_logits": hypothesis.logits is not None,
            "output_margin": hypothesis.min_margin is not None,
        }
        assert [key for key, is_there in got.items() if is_there] == [name]
        assert (hypothesis.score is not None) == (name == "output_scores")
        assert hypothesis.token_ids == plain.hypotheses[0].token_ids


def test_a_forced_token_alone(bart: Pair) -> None:
    """A budget of one token that is forced: no search runs, and the logits are there all the same."""
    options = {"eos_token_id": 2, "forced_bos_token_id": 9}
    source = bart.sources(1, seed=4)[0]
    output = bart.model.generate(
        torch.tensor([source]), max_new_tokens=1, return_dict_in_generate=True, output_scores=True,
        output_logits=True, do_sample=False, **options,
    )  # fmt: skip
    hypothesis = bart.run([source], max_new_tokens=1, **options, **ASKED)[0].hypotheses[0]
    assert hypothesis.token_ids == output.sequences[0, 1:].tolist() == [9]
    assert_same(hypothesis.scores, torch.cat(output.scores))
    assert_same(hypothesis.logits, torch.cat(output.logits))
    assert hypothesis.min_margin == math.inf
    assert hypothesis.score == 0.0


def samples(pair: Pair, **options: Any) -> list[Hypothesis]:
    said = {"do_sample": True, "seed": 3, "num_return_sequences": 2, "temperature": 0.7, "top_k": 7, "eos_token_id": 2}
    (result,) = pair.run(pair.sources(1, seed=4), max_new_tokens=LIMIT, **said, **options)
    return result.hypotheses


def test_samples_have_the_scores_they_were_drawn_from(bart: Pair) -> None:
    one, two = samples(bart, output_scores=True, output_logits=True, forced_bos_token_id=9)
    assert one.token_ids != two.token_ids
    for sample in (one, two):
        assert sample.scores is not None
        assert sample.logits is not None
        assert len(sample.scores) == len(sample.logits) == len(sample.token_ids)
        assert sample.scores.gather(1, torch.tensor(sample.token_ids)[:, None]).isfinite().all()
        assert (sample.scores[1:] > -torch.inf).sum(-1).tolist() == [7] * (len(sample.token_ids) - 1)
        assert_same(sample.scores[1:], keep_best(sample.logits[1:] / 0.7, 7))
    (one_again, _) = samples(bart, output_scores=True, output_logits=True, forced_bos_token_id=9, num_draft_tokens=0)
    assert_same(one_again.logits, one.logits if one.logits is not None else torch.empty(0))


def keep_best(scores: Tensor, count: int) -> Tensor:
    return scores.masked_fill(scores < scores.topk(count).values[:, -1:], -torch.inf)


def test_beams_have_a_score_and_refuse_the_rest(bart: Pair) -> None:
    beams = bart.run(bart.sources(1, seed=4), num_beams=2, max_new_tokens=LIMIT, output_scores=True)[0].hypotheses
    assert beams[0].score is not None
    assert beams[0].scores is None
    for said, message in (
        ({"num_beams": 2, "output_logits": True}, "output_logits=True is not supported with num_beams=2"),
        ({"num_beams": 2, "output_margin": True}, "output_margin=True with num_beams=2"),
        ({"do_sample": True, "output_margin": True}, "output_margin=True with num_beams=1, do_sample=True"),
    ):
        with pytest.raises(OptionError, match=message):
            resolve_options({}, bart.config, None, said)


# ---------------------------------------------------------------- sources that were encoded elsewhere


def run_encoded(pair: Pair, sources: list[list[int]], states: list[Tensor], **options: Any) -> list[DecodedRequest]:
    decoder = Decoder(pair.verifier, SmallModelDrafter(pair.verifier), max_rows=3)
    resolved = resolve_options({}, pair.config, None, {"max_new_tokens": LIMIT, "eos_token_id": 2, **options})
    requests = decoder.add(SourceBatch.from_lists(sources, pair.pad), resolved, encoder_states=states)
    while decoder.alive:
        decoder.step()
    return [decoder.result(request) for request in requests]


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True, "seed": 5, "num_return_sequences": 2}])
def test_sources_that_were_encoded_elsewhere(
    bart: Pair, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = bart.sources(5, seed=4)
    expected = bart.run(sources, SmallModelDrafter(bart.verifier), max_new_tokens=LIMIT, eos_token_id=2, **options)
    encoder = bart.model.get_encoder()
    states = [encoder(torch.tensor([source])).last_hidden_state[0].detach() for source in sources]
    drafter_encodes = bart.verifier.encode
    calls: list[int] = []

    def count(source: SourceBatch) -> Any:
        calls.append(len(source.lengths))
        return drafter_encodes(source)

    monkeypatch.setattr(bart.verifier, "encode", count)
    # "auto" would start the drafter only once it pays
    results = run_encoded(bart, sources, states, **{"num_draft_tokens": 3, **options})
    ids = [[hypothesis.token_ids for hypothesis in result.hypotheses] for result in results]
    assert ids == [[hypothesis.token_ids for hypothesis in result.hypotheses] for result in expected]
    # the drafter is a model of its own here and encodes every source; the verifier encodes none
    assert sum(calls) == (0 if "num_beams" in options else sum(len(row) for row in ids))


def test_encoded_and_other_sources_in_one_decoder(bart: Pair) -> None:
    sources = bart.sources(4, seed=4)
    expected = [result.hypotheses[0].token_ids for result in bart.run(sources, max_new_tokens=LIMIT, eos_token_id=2)]
    encoder = bart.model.get_encoder()
    states = [encoder(torch.tensor([source])).last_hidden_state[0].detach() for source in sources[1:3]]
    decoder = Decoder(bart.verifier)
    resolved = resolve_options({}, bart.config, None, {"max_new_tokens": LIMIT, "eos_token_id": 2})
    requests = decoder.add(SourceBatch.from_lists(sources[:1], bart.pad), resolved)
    requests += decoder.add(SourceBatch.from_lists(sources[1:3], bart.pad), resolved, encoder_states=states)
    requests += decoder.add(SourceBatch.from_lists(sources[3:], bart.pad), resolved)
    while decoder.alive:
        decoder.step()
    assert [decoder.result(request).hypotheses[0].token_ids for request in requests] == expected


def test_encoder_states_of_the_wrong_shape(bart: Pair) -> None:
    with pytest.raises(
        InputError, match=r"encoder_states have shapes \[\[3, 16\]\] for sources that need \[\[4, 16\]\]"
    ):
        run_encoded(bart, [[5, 6, 7, 2]], [torch.zeros(3, 16)])
