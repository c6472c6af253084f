"""Drafters that read the verifier's states keep the contract of `Drafter`: search with them is plain search."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.decoding.loop import Decoder
from spec2seq.drafters.blockwise import BlockwiseDrafter
from spec2seq.drafters.feature import FeatureDrafter
from spec2seq.errors import OptionError
from spec2seq.evaluation.walk import walk_drafter
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.option_resolution import resolve_options
from spec2seq.pipelines.results import sum_stats
from spec2seq.testing import tiny_config
from spec2seq.types import DecodedRequest, Prefix, SourceBatch, pad_rows
from tests.tiny_drafters import tiny_blockwise_heads, tiny_feature_drafter

SOURCES = [[3 + i % 3, *([0, 3, 4, 5] * 15)[i : 2 * i], 2] for i in range(12)]
KINDS = ["mix", "last", "none", "shortlist", "blockwise"]


class Pair(NamedTuple):
    source_ids: list[int]
    target_ids: list[int]
    num_forced: int = 0
    decoder_start: int | None = None


@cache
def verifier(max_positions: int | None = 64) -> TorchVerifier:
    """Random; seven ids only, so that random drafts are right now and then."""
    sizes = {"source_vocab_size": 7, "target_vocab_size": 7}
    config = replace(tiny_config(max_positions=max_positions), **sizes)  # type: ignore[arg-type]
    network = Seq2Seq(config, torch.float64)
    generator = torch.Generator().manual_seed(4)
    for name, parameter in network.named_parameters():
        scale = 1.0 if name.endswith("positions") else 0.7 if parameter.dim() > 1 else 0.05
        parameter.data.normal_(0.0, scale, generator=generator)
        if name.endswith("norm.weight"):
            parameter.data += 1.0
    return TorchVerifier(network)


def make_drafter(kind: str, max_positions: int = 64) -> FeatureDrafter | BlockwiseDrafter:
    network = verifier().network
    if kind == "blockwise":
        return BlockwiseDrafter(tiny_blockwise_heads(network))
    changes: dict[str, Any] = {"shortlist_size": 5} if kind == "shortlist" else {"states": kind}
    changes |= {"bigram_candidates": 4, "max_positions": max_positions}
    return FeatureDrafter(tiny_feature_drafter(network, **changes))


def decode(
    drafter: FeatureDrafter | BlockwiseDrafter | None,
    *,
    prompts: list[list[int]] | None = None,
    forced: int | None = None,
    max_rows: int = 5,
    **said: Any,
) -> list[DecodedRequest]:
    said = {"max_new_tokens": 30, "no_repeat_ngram_size": 3, **said}  # random models repeat themselves
    options = resolve_options({}, verifier().config, None, said)
    decoder = Decoder(verifier(), drafter, max_rows=max_rows)
    source = SourceBatch.from_lists(SOURCES, 1)
    requests = decoder.add(source, options, prompts=prompts, forced_first_tokens=[forced] * len(SOURCES))
    while decoder.alive:
        decoder.step()
    return [decoder.result(request) for request in requests]


def ids(outcomes: list[DecodedRequest]) -> list[list[int]]:
    return [outcome.hypotheses[0].token_ids for outcome in outcomes]


PROMPTS = [[2], [2, 5, 3], [2, 4], [2], [2, 0, 6, 6, 3], [2], [2, 3], [2], [2, 5], [2], [2], [2, 4, 4]]


OPTIONS: dict[str, dict[str, Any]] = {
    "blocks": {"num_draft_tokens": 5},
    "one_row": {"num_draft_tokens": 2, "max_rows": 1},
    "forced": {"num_draft_tokens": 3, "forced": 4},
    "prompts": {"num_draft_tokens": 4, "prompts": PROMPTS},
    "sampling": {"do_sample": True, "seed": 3, "num_draft_tokens": 3, "num_return_sequences": 2},
    "processors": {"min_new_tokens": 12, "suppress_tokens": [3], "num_draft_tokens": 4},
}


@cache
def plain_outputs(options: str) -> list[DecodedRequest]:
    return decode(None, **OPTIONS[options])


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, "blocks") for kind in KINDS), *((kind, name) for kind in ("mix", "blockwise") for name in OPTIONS)],
)
def test_search_is_plain_search(kind: str, options: str) -> None:
    plain, fast = plain_outputs(options), decode(make_drafter(kind), **OPTIONS[options])
    assert [one.hypotheses for one in fast] == [one.hypotheses for one in plain]
    assert {one.finish_reason for one in fast} == {"eos", "length"}
    assert sum_stats([one.stats for one in fast]).num_accepted > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "forced"), [(1, None), (4, None), (5, 4)])
def test_the_decoder_measures_what_the_walk_predicts(kind: str, k: int, forced: int | None) -> None:
    outcomes = decode(make_drafter(kind), num_draft_tokens=k, forced=forced)
    stats = sum_stats([one.stats for one in outcomes])
    pairs = [
        Pair(source, output, outcome.stats.num_forced)
        for source, output, outcome in zip(SOURCES, ids(outcomes), outcomes, strict=True)
    ]
    drafter = make_drafter(kind)
    for batch_tokens in (8192, 150):
        figures = walk_drafter(drafter, pairs, k, verifier(), batch_tokens)
        assert (figures.num_tokens, figures.num_rounds) == (stats.num_tokens - stats.num_forced, stats.num_rounds)
    assert figures.tokens_per_round == stats.tokens_per_round > 1.05


def test_a_pair_may_bring_its_own_start() -> None:
    outcomes = decode(make_drafter("mix"), num_draft_tokens=4, prompts=[[6]] * len(SOURCES))
    pairs = [Pair(source, output, 0, 6) for source, output in zip(SOURCES, ids(outcomes), strict=True)]
    figures = walk_drafter(make_drafter("mix"), pairs, 4, verifier())
    assert figures.num_rounds == sum(outcome.stats.num_rounds for outcome in outcomes)
    others = walk_drafter(make_drafter("mix"), [pair._replace(decoder_start=None) for pair in pairs], 4, verifier())
    assert others.num_rounds != figures.num_rounds


def started(drafter: FeatureDrafter | BlockwiseDrafter, sources: list[list[int]]) -> None:
    batch = SourceBatch.from_lists(sources, 1)
    drafter.start(batch, verifier().encode(batch))


def test_a_row_past_the_positions_gets_an_empty_block() -> None:
    drafter = make_drafter("mix", max_positions=9)
    started(drafter, SOURCES[:3])
    prefixes = Prefix(*pad_rows([[2, *[3] * 4], [2, *[4] * 5], [2, *[5] * 30]], 1))
    assert drafter.propose(prefixes, 5).lengths.tolist() == [5, 0, 0]
    assert drafter.propose(prefixes, 4).lengths.tolist() == [4, 4, 0]
    assert drafter.propose(prefixes, 6).lengths.tolist() == [0, 0, 0]


def test_more_tokens_than_a_block_warn_once() -> None:
    drafter = make_drafter("mix")
    assert (drafter.default_num_draft_tokens, drafter.max_draft_tokens) == (5, 64)
    started(drafter, SOURCES[:1])
    prefix = Prefix(*pad_rows([[2]], 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafter.propose(prefix, 5)
    with pytest.warns(UserWarning, match="num_draft_tokens=6 is more than the block_size=5"):
        drafter.propose(prefix, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafter.propose(prefix, 7)


def test_heads_are_as_many_as_they_are() -> None:
    drafter = make_drafter("blockwise")
    assert (drafter.default_num_draft_tokens, drafter.max_draft_tokens, drafter.hidden_layers) == (5, 5, (2,))
    with pytest.raises(OptionError, match="num_draft_tokens=6 exceeds the 5"):
        decode(drafter, num_draft_tokens=6)


def test_heads_have_nothing_to_say_in_the_first_round() -> None:
    drafter = make_drafter("blockwise")
    started(drafter, SOURCES[:2])
    assert drafter.propose(Prefix(*pad_rows([[2], [2, 5]], 1)), 3).lengths.tolist() == [0, 0]


def test_heads_draft_from_the_state_before_the_last_token() -> None:
    """Worked out from the whole prefix at once."""
    engine, drafter = verifier(), BlockwiseDrafter(tiny_blockwise_heads(verifier().network))
    seen: list[Tensor] = []
    draft = drafter.network.draft

    def recorded(states: Tensor, count: int) -> Any:
        seen.append(states)
        return draft(states, count)

    drafter.network.draft = recorded  # type: ignore[method-assign]
    options = resolve_options({}, engine.config, None, {"max_new_tokens": 20, "num_draft_tokens": 3})
    decoder = Decoder(engine, drafter)
    decoder.add(SourceBatch.from_lists(SOURCES[7:8], 1), options)
    prefix, prefixes = [2], []
    while decoder.alive:
        prefixes.append(list(prefix))
        prefix += [token for emission in decoder.step() for token in emission.token_ids]
    for states, before in zip(seen, prefixes[1:], strict=False):
        source = engine.encode(SourceBatch.from_lists(SOURCES[7:8], 1))
        tokens, places = torch.tensor([before[:-1]]), torch.arange(len(before) - 1)[None]
        lengths = torch.tensor([len(before) - 1])
        layers = engine.network.decode(tokens, places, lengths, engine.new_cache(1), source.layers, None)
        torch.testing.assert_close(states, layers[-1][:, -1])
    assert len(seen) > 3


def test_beams_are_refused() -> None:
    with pytest.raises(OptionError, match="reads the verifier's hidden states and cannot draft for beams"):
        decode(make_drafter("mix"), num_beams=2, speculative_beams=True, no_repeat_ngram_size=0)
