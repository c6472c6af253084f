"""Copying drafts: hand-made cases, and a slow reference that follows the definition row by row."""

from __future__ import annotations

import pytest
import torch

from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.errors import OptionError
from spec2seq.testing import TableVerifier, tiny_config
from spec2seq.types import DraftBlock, Prefix, SourceBatch, pad_rows

START, EOS = 2, 2


def start(drafter: PromptLookupDrafter, sources: list[list[int]]) -> None:
    batch = SourceBatch.from_lists(sources, 1)
    drafter.start(batch, TableVerifier().encode(batch))


def propose(drafter: PromptLookupDrafter, prefixes: list[list[int]], count: int = 4) -> list[list[int]]:
    block = drafter.propose(Prefix(*pad_rows(prefixes, 7)), count)  # stale ids may follow a prefix
    return proposed(block)


def proposed(block: DraftBlock) -> list[list[int]]:
    return [row[:length] for row, length in zip(block.tokens.tolist(), block.lengths.tolist(), strict=True)]


def draft(source: list[int], prefix: list[int], count: int = 4, *, max_ngram: int = 3, min_ngram: int = 1) -> list[int]:
    drafter = PromptLookupDrafter(tiny_config(), max_ngram=max_ngram, min_ngram=min_ngram)
    start(drafter, [source])
    return propose(drafter, [prefix], count)[0]


def draft_slowly(source: list[int], prefix: list[int], count: int, max_ngram: int, min_ngram: int) -> list[int]:
    """The best place by (matching tokens, newest first; nearness), then what follows it."""
    last = len(prefix) - 1
    best: tuple[tuple[list[bool], int], list[int], int] | None = None
    for text in (source, prefix):
        for place in range(len(text) - 1):
            matches = [
                place - age >= 0 and last - age >= 0 and text[place - age] == prefix[last - age]
                for age in range(max_ngram)
            ]
            is_replaced = min_ngram == 1 and max_ngram >= 3 and all(matches[1:])
            if not all(matches[:min_ngram]) and not is_replaced:
                continue
            key = (matches, -abs(place - last))
            if best is None or key > best[0]:
                best = (key, text, place)
    if best is None:
        return []
    _, text, place = best
    if text is source:
        return source[place + 1 : place + 1 + count]
    return [prefix[place + 1 + i % (last - place)] for i in range(count)]


def test_copies_from_the_source_up_to_its_end() -> None:
    source = [10, 11, 12, 13, 14, EOS]
    assert draft(source, [START, 10, 11], 2) == [12, 13]
    assert draft(source, [START, 13], 4) == [14, EOS]


def test_copies_from_the_prefix_and_repeats_it() -> None:
    assert draft([30, EOS], [START, 10, 11, 12, 10, 11], 2) == [12, 10]
    assert draft([30, EOS], [START, 10, 11, 12, 10], 5) == [11, 12, 10, 11, 12]
    assert draft([30, EOS], [START, 10, 10], 3) == [10, 10, 10]


def test_longest_match_wins() -> None:
    source = [10, 20, 40, 11, 20, 41, 12, 11, 20, 42, EOS]
    assert draft(source, [START, 20], 1) == [40]
    assert draft(source, [START, 11, 20], 1) == [41]
    assert draft(source, [START, 12, 11, 20], 1) == [42]
    assert draft(source, [START, 12, 11, 20], 1, max_ngram=2) == [41]


def test_nearest_of_equal_matches_wins() -> None:
    source = [20, 40, 9, 9, 9, 20, 41, 9, 9, 20, 42, EOS]
    assert draft(source, [START, 20], 1) == [40]
    assert draft(source, [START, 5, 6, 20], 1) == [41]
    assert draft(source, [START, 5, 6, 8, 5, 6, 8, 15, 16, 20], 1) == [42]


def test_a_replaced_word_is_stepped_over() -> None:
    source = [10, 11, 12, 13, 14, EOS]
    assert draft(source, [START, 10, 11, 33], 3) == [13, 14, EOS]
    assert draft(source, [START, 11, 33], 3) == []  # one matching token is too little
    assert draft(source, [START, 10, 11, 33], 3, min_ngram=2) == []
    assert draft(source, [START, 10, 11, 33], 3, max_ngram=2) == []


def test_a_match_nothing_follows_is_no_match() -> None:
    assert draft([20, 40, 9, 9, 20], [START, 9, 9, 20], 2) == [40, 9]
    assert draft([9, 9, 20], [START, 9, 9, 20], 2) == []


def test_no_match_is_an_empty_block() -> None:
    assert draft([10, 11, EOS], [START, 30]) == []
    assert draft([10, 11, EOS], [START]) == []


def test_fewest_newest_tokens() -> None:
    source = [10, 11, 12, EOS]
    assert draft(source, [START, 11], 1) == [12]
    assert draft(source, [START, 11], 1, min_ngram=2) == []
    assert draft(source, [START, 10, 11], 1, min_ngram=2) == [12]


def test_foreign_source_ids_are_not_copied() -> None:
    drafter = PromptLookupDrafter(tiny_config(shares_vocabulary=False))
    start(drafter, [[10, 11, 12, EOS]])
    assert propose(drafter, [[START, 10, 11]]) == [[]]
    assert propose(drafter, [[START, 11, 40, 11]], 2) == [[40, 11]]


def test_padding_and_stale_ids_are_never_matched_or_copied() -> None:
    drafter = PromptLookupDrafter(tiny_config())
    start(drafter, [[10, 11], [20, 21, 22, 23, 24, 25]])
    # row 0: its padding is id 1, its stale ids are 7; both occur as last tokens
    assert propose(drafter, [[START, 10], [START, 30, 20, 21, 1, 7, 22]], 4) == [[11], [23, 24, 25]]
    assert propose(drafter, [[START, 1], [START, 30, 31, 32, 33, 7]], 4) == [[], []]


def test_tokens_beyond_the_lengths_are_still_ids() -> None:
    drafter = PromptLookupDrafter(tiny_config())
    start(drafter, [[10, 11], [20, 21, 22, 23, 24, 25], [30, EOS]])
    block = drafter.propose(Prefix(*pad_rows([[START, 10], [START, 20], [START, 5]], 7)), 5)
    assert block.lengths.tolist() == [1, 5, 0]
    assert int(block.tokens.min()) >= 0


def random_text(length: int, rng: torch.Generator) -> list[int]:
    return torch.randint(3, 7, (length,), generator=rng).tolist()


@pytest.mark.parametrize(("max_ngram", "min_ngram"), [(3, 1), (3, 2), (1, 1), (2, 1), (4, 1), (5, 5)])
def test_ragged_batches_equal_the_definition(max_ngram: int, min_ngram: int) -> None:
    """Few ids, so that every kind of tie occurs; rows leave, swap and join on the way."""
    rng = torch.Generator().manual_seed(max_ngram)
    drafter = PromptLookupDrafter(tiny_config(), max_ngram=max_ngram, min_ngram=min_ngram)
    sources = [random_text(n, rng) for n in (1, 12, 7)]
    start(drafter, sources)
    rows = [[START], [START, *random_text(3, rng)], [START, *random_text(9, rng)]]
    num_drafted = 0
    for round_number in range(60):
        count = round_number % 6
        drafts = propose(drafter, rows, count)
        assert drafts == [draft_slowly(s, r, count, max_ngram, min_ngram) for s, r in zip(sources, rows, strict=True)]
        num_drafted += sum(map(len, drafts))
        rows = [[*row, *random_text(1 + round_number % 2, rng)] for row in rows]
        if round_number == 20:
            drafter.select_rows(torch.tensor([2, 0]))
            sources, rows = [sources[2], sources[0]], [rows[2], rows[0]]
        if round_number == 40:
            longer = random_text(30, rng)
            start(drafter, [longer, [4]])
            sources, rows = [*sources, longer, [4]], [*rows, [START], [START, 4]]
    assert num_drafted > 10


def test_rows_may_all_leave_and_others_come() -> None:
    drafter = PromptLookupDrafter(tiny_config())
    start(drafter, [[10, 11, 12, EOS]])
    drafter.select_rows(torch.zeros(0, dtype=torch.long))
    start(drafter, [[20, 21, EOS]])
    assert propose(drafter, [[START, 20]]) == [[21, EOS]]


@pytest.mark.parametrize(("max_ngram", "min_ngram"), [(0, 0), (3, 0), (2, 3), (9, 1)])
def test_impossible_sizes_are_refused(max_ngram: int, min_ngram: int) -> None:
    with pytest.raises(OptionError, match=f"min_ngram={min_ngram}, max_ngram={max_ngram}; use"):
        PromptLookupDrafter(tiny_config(), max_ngram=max_ngram, min_ngram=min_ngram)


def test_defaults() -> None:
    drafter = PromptLookupDrafter(tiny_config())
    assert (drafter.default_num_draft_tokens, drafter.max_draft_tokens, drafter.hidden_layers) == (10, None, ())
