"""The walk over known outputs gives the rounds that the decoder needs."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from spec2seq.decoding.loop import Decoder
from spec2seq.drafters.spec import SpecDrafter
from spec2seq.errors import InputError, OptionError
from spec2seq.evaluation.walk import DEFAULT_WALK_TOKENS, WalkFigures, walk, walk_drafter
from spec2seq.interfaces import EncoderOutput
from spec2seq.nn.spec_drafter import SpecDrafterNetwork
from spec2seq.option_resolution import resolve_options
from spec2seq.pipelines.results import sum_stats
from spec2seq.testing import TableVerifier, tiny_config
from spec2seq.types import DecodedRequest, DraftBlock, SourceBatch, pad_rows
from tests.tiny_drafters import tiny_drafter

SOURCES = [[3 + i % 3, *([0, 3, 4, 5] * 15)[i : 2 * i], 2] for i in range(30)]


VERIFIER = TableVerifier(tiny_config(vocab_size=6))


class Pair(NamedTuple):
    source_ids: list[int]
    target_ids: list[int]
    num_forced: int = 0
    decoder_start: int | None = None


def table_walk(targets: list[list[int]], first: list[int], drafts: dict[tuple[int, int], list[int]]) -> WalkFigures:
    """With drafts by (row, start); fails where a start is asked for that is not there."""
    alive = list(range(len(targets)))

    def draft(rows: Tensor, starts: Tensor) -> DraftBlock:
        alive[:] = [alive[i] for i in rows.tolist()]
        blocks = [drafts.pop((row, start)) for row, start in zip(alive, starts.tolist(), strict=True)]
        return DraftBlock(*pad_rows(blocks, 0))

    figures = walk(*pad_rows(targets, 0), torch.tensor(first), draft)
    assert drafts == {}
    return figures


def test_a_walk_by_hand() -> None:
    # 4 of 4 and one more; 1 of 3 (no credit for what agrees behind an error) and one more; the last token alone
    targets = [[11, 12, 13, 14, 15, 16, 17, 18]]
    drafts = {(0, 0): [11, 12, 13, 14], (0, 5): [16, 0, 18, 0], (0, 7): [19, 0, 0, 0]}
    figures = table_walk(targets, [0], drafts)
    assert figures == WalkFigures(8, 3, [3, 2, 2, 1], [2, 1, 1, 1])
    assert figures.tokens_per_round == 8 / 3
    assert figures.survival == [2 / 3, 1 / 2, 1 / 2, 1.0]


def test_rows_end_apart_and_slots_behind_the_end_do_not_count() -> None:
    targets = [[3, 2], [4, 5, 6, 2], [2]]
    drafts = {(0, 0): [3, 2, 2], (1, 0): [4, 0, 0], (2, 0): [9, 0, 0], (1, 2): [6, 2, 0]}
    assert table_walk(targets, [0, 0, 0], drafts) == WalkFigures(7, 4, [4, 3, 1], [3, 2, 0])


def test_a_forced_token_and_an_empty_block() -> None:
    assert table_walk([[9, 5, 6]], [1], {(0, 1): [0, 0], (0, 2): [6, 0]}) == WalkFigures(2, 2, [2, 1], [1, 0])
    assert table_walk([[5, 6]], [0], {(0, 0): [], (0, 1): []}) == WalkFigures(2, 2, [], [])
    assert WalkFigures().tokens_per_round == 0.0


@cache
def drafter(max_positions: int = 40) -> SpecDrafterNetwork:
    return tiny_drafter({"source_vocab_size": 6, "target_vocab_size": 6}, max_positions=max_positions)


def decode(network: SpecDrafterNetwork, k: int, budget: int, forced: int | None = None) -> list[DecodedRequest]:
    """What the loop makes of the sources. Six ids only: random drafts are right now and then."""
    verifier = TableVerifier(tiny_config(vocab_size=6))
    arguments = {"num_beams": 1, "max_new_tokens": budget, "num_draft_tokens": k}
    options = resolve_options({}, verifier.config, arguments=arguments)
    decoder = Decoder(verifier, SpecDrafter(network), max_rows=5)
    source = SourceBatch.from_lists(SOURCES, 1)
    requests = decoder.add(source, options, forced_first_tokens=[forced] * len(SOURCES))
    while decoder.alive:
        decoder.step()
    return [decoder.result(request) for request in requests]


def walked(
    network: SpecDrafterNetwork, pairs: list[Pair], k: int, batch_tokens: int = DEFAULT_WALK_TOKENS
) -> WalkFigures:
    return walk_drafter(SpecDrafter(network), pairs, k, VERIFIER, batch_tokens)


def pairs_of(outcomes: list[DecodedRequest]) -> list[Pair]:
    return [
        Pair(source, outcome.hypotheses[0].token_ids, outcome.stats.num_forced)
        for source, outcome in zip(SOURCES, outcomes, strict=True)
    ]


@pytest.mark.filterwarnings("ignore:num_draft_tokens=8 is more than the block_size")
@pytest.mark.parametrize(
    ("k", "max_positions", "forced"), [(1, 40, None), (3, 40, None), (8, 40, None), (3, 40, 4), (4, 12, None)]
)
def test_the_decoder_measures_what_the_walk_predicts(k: int, max_positions: int, forced: int | None) -> None:
    network = drafter(max_positions)
    outcomes = decode(network, k, 30, forced)
    stats = sum_stats([outcome.stats for outcome in outcomes])
    reasons = {outcome.finish_reason for outcome in outcomes}
    assert reasons == {"eos", "length"}
    figures = walked(network, pairs_of(outcomes), k, 150)
    assert (figures.num_tokens, figures.num_rounds) == (stats.num_tokens - stats.num_forced, stats.num_rounds)
    assert figures.tokens_per_round == stats.tokens_per_round > 1.03


def test_every_output_by_itself() -> None:
    network = drafter()
    outcomes = decode(network, 3, 30)
    for pair, outcome in zip(pairs_of(outcomes), outcomes, strict=True):
        figures = walked(network, [pair], 3)
        assert figures.num_rounds == outcome.stats.num_rounds
        if outcome.finish_reason == "eos":
            kept = [count for count in figures.kept if count]
            assert kept == [count for count in outcome.stats.accepted_per_position if count]
    assert max(len(outcome.stats.accepted_per_position) for outcome in outcomes) > 1


def test_groups_change_nothing_and_hold_no_more_than_they_may() -> None:
    pairs = pairs_of(decode(drafter(), 3, 30))
    widths: list[int] = []

    class Counting(SpecDrafter):
        def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
            widths.append(len(source.ids))
            super().start(source, encoded)

    def counted(batch_tokens: int = DEFAULT_WALK_TOKENS) -> WalkFigures:
        return walk_drafter(Counting(drafter()), pairs, 3, VERIFIER, batch_tokens)

    whole = counted()
    assert widths == [len(pairs)]
    longest = max(len(pair.source_ids) for pair in pairs) + max(len(pair.target_ids) for pair in pairs) + 3
    assert counted(2 * longest) == whole
    assert sum(widths[1:]) == len(pairs)
    assert 2 <= max(widths[1:]) < len(pairs)
    assert counted(1) == whole
    assert widths[-len(pairs) :] == [1] * len(pairs)


def test_calls_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="num_draft_tokens=41 is not allowed: use 1 to 40"):
        walked(drafter(), [Pair([5, 2], [3, 2])], 41)
    with pytest.raises(InputError, match="no pairs to walk over"):
        walked(drafter(), [], 3)
