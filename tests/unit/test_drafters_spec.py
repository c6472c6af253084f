"""The Spec-Drafter keeps the contract of `Drafter`: whatever it drafts, search with it is plain search."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from torch import Tensor

from spec2seq.decoding.loop import Decoder
from spec2seq.drafters.spec import SpecDrafter
from spec2seq.nn.spec_drafter import SpecDrafterNetwork
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import TableVerifier
from spec2seq.types import DraftBlock, Prefix, SourceBatch, Wanted, pad_rows
from tests.tiny_drafters import tiny_drafter

SOURCES = [[5, 6, 7, 2], [8, 2], [9, 9, 10, 11, 12, 2], [30, 31, 2]]
PREFIXES = [[2, 7, 9], [2], [2, 14, 9, 9, 20, 3, 16], [2, 40]]


@cache
def make_network(max_positions: int = 64) -> SpecDrafterNetwork:
    return tiny_drafter(max_positions=max_positions)


def make_drafter(sources: list[list[int]], max_positions: int = 64) -> SpecDrafter:
    drafter = SpecDrafter(make_network(max_positions))
    start(drafter, sources)
    return drafter


def start(drafter: SpecDrafter, sources: list[list[int]]) -> None:
    batch = SourceBatch.from_lists(sources, 1)
    drafter.start(batch, TableVerifier().encode(batch))


def proposed(block: DraftBlock) -> list[list[int]]:
    return [row[:length] for row, length in zip(block.tokens.tolist(), block.lengths.tolist(), strict=True)]


def propose(drafter: SpecDrafter, prefixes: list[list[int]], k: int) -> list[list[int]]:
    return proposed(drafter.propose(Prefix(*pad_rows(prefixes, 17)), k))


def alone(source: list[int], prefix: list[int], k: int, max_positions: int = 64) -> list[int]:
    network = make_network(max_positions)
    scores = network.draft(
        Prefix(*pad_rows([prefix], 0)), k, network.encode(SourceBatch.from_lists([source], 1)), Wanted()
    )
    return scores.logits()[0].argmax(-1).tolist()


def test_every_row_gets_the_best_token_of_each_slot() -> None:
    blocks = propose(make_drafter(SOURCES), PREFIXES, 4)
    assert blocks == [alone(source, prefix, 4) for source, prefix in zip(SOURCES, PREFIXES, strict=True)]
    assert len({tuple(block) for block in blocks}) == 4


def test_rows_join_and_leave() -> None:
    drafter = make_drafter(SOURCES[:2])
    drafter.select_rows(torch.tensor([1]))
    start(drafter, SOURCES[2:])
    order = [1, 2, 3]
    assert propose(drafter, [PREFIXES[i] for i in order], 3) == [alone(SOURCES[i], PREFIXES[i], 3) for i in order]
    drafter.select_rows(torch.tensor([2, 0, 2]))
    order = [3, 1, 3]
    assert propose(drafter, [PREFIXES[i] for i in order], 3) == [alone(SOURCES[i], PREFIXES[i], 3) for i in order]
    drafter.select_rows(torch.tensor([], dtype=torch.long))
    start(drafter, SOURCES[:1])
    assert propose(drafter, PREFIXES[:1], 3) == [alone(SOURCES[0], PREFIXES[0], 3)]


def test_a_row_past_the_positions_gets_an_empty_block_and_the_others_all_their_slots() -> None:
    drafter = make_drafter(SOURCES[:3], max_positions=10)
    prefixes = [[2, *range(5, 10)], [2, *range(5, 11)], [2, *[9] * 30]]
    blocks = propose(drafter, prefixes, 5)
    assert blocks == [alone(SOURCES[0], prefixes[0], 5, 10), [], []]  # 5 + 5 positions fit, 6 + 5 do not
    assert propose(drafter, [prefixes[2]] * 3, 5) == [[], [], []]


def test_choose_draws_from_the_law_of_each_slot() -> None:
    drafter, laws = make_drafter(SOURCES), []

    def second_best(log_probs: Tensor, slot: int) -> Tensor:
        laws.append(log_probs)
        assert slot == len(laws) - 1
        return log_probs.topk(2).indices[:, 1]

    block = drafter.propose(Prefix(*pad_rows(PREFIXES, 17)), 3, second_best)
    assert len(laws) == 3
    for slot, law in enumerate(laws):
        torch.testing.assert_close(law.exp().sum(-1), torch.ones(4))
        assert torch.equal(block.tokens[:, slot], law.topk(2).indices[:, 1])
        assert law.argmax(-1).tolist() == [alone(s, p, 3)[slot] for s, p in zip(SOURCES, PREFIXES, strict=True)]
    assert block.lengths.tolist() == [3, 3, 3, 3]


def test_more_tokens_than_a_block_warn_once() -> None:
    drafter = make_drafter(SOURCES)
    assert (drafter.default_num_draft_tokens, drafter.max_draft_tokens, drafter.hidden_layers) == (5, 64, ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        propose(drafter, PREFIXES, 5)
    with pytest.warns(UserWarning, match="num_draft_tokens=6 is more than the block_size=5"):
        blocks = propose(drafter, PREFIXES, 6)
    assert [len(block) for block in blocks] == [6] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        propose(drafter, PREFIXES, 7)


@pytest.mark.parametrize("num_rows", [1, 3, 8])
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 5}, {"top_beta": 1, "num_draft_tokens": 3}])
def test_search_is_plain_search(num_rows: int, options: dict[str, object]) -> None:
    # the verifier's eos is drawn early or late; the drafter's table ends before the longest outputs do
    outputs = [
        decode(drafter, num_rows, {"max_new_tokens": 40, **options})
        for drafter in (None, SpecDrafter(make_network(24)))
    ]
    assert outputs[0] == outputs[1]
    assert max(map(len, outputs[0])) > 24


def decode(drafter: SpecDrafter | None, num_rows: int, said: dict[str, object]) -> list[list[int]]:
    verifier = TableVerifier(seed=3)
    options = resolve_options({}, verifier.config, None, said)
    decoder = Decoder(verifier, drafter, max_rows=num_rows)
    requests = decoder.add(SourceBatch.from_lists(SOURCES * 2, 1), options)
    results = {}
    while decoder.alive:
        for emission in decoder.step():
            if emission.finish_reason:
                results[emission.request] = decoder.result(emission.request).hypotheses[0].token_ids
    return [results[request] for request in requests]
