"""The small model must draft what it would generate from each prefix alone, whatever happened in the rounds before."""

from __future__ import annotations

import pytest
import torch

from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.testing import TableVerifier, tiny_config
from spec2seq.types import Acceptance, DecoderOutput, DraftBlock, Prefix, SourceBatch, TensorScores, Wanted, pad_rows

SOURCES = [[5, 6, 7, 2], [8, 2], [9, 9, 10, 11, 12, 2], [30, 31, 2], [40, 2]]
NO_OUTPUT = DecoderOutput(TensorScores(torch.zeros(0)))


def make_drafter(model: TableVerifier, sources: list[list[int]]) -> SmallModelDrafter:
    drafter = SmallModelDrafter(model)
    start(drafter, sources)
    return drafter


def start(drafter: SmallModelDrafter, sources: list[list[int]]) -> None:
    batch = SourceBatch.from_lists(sources, 1)
    drafter.start(batch, TableVerifier(seed=99).encode(batch))


def prefix_of(rows: list[list[int]]) -> Prefix:
    return Prefix(*pad_rows(rows, 7))  # stale ids may follow, so the padding is an ordinary id


def proposed(block: DraftBlock) -> list[list[int]]:
    assert 0 <= int(block.lengths.min()) <= int(block.lengths.max()) <= block.num_slots
    return [row[:length] for row, length in zip(block.tokens.tolist(), block.lengths.tolist(), strict=True)]


def commit(drafter: SmallModelDrafter, rows: list[list[int]], num_accepted: list[int]) -> None:
    drafter.commit(prefix_of(rows), Acceptance(torch.tensor(num_accepted), torch.zeros(len(rows)).long()), NO_OUTPUT)


def continuation(model: TableVerifier, source: list[int], prefix: list[int], count: int) -> list[int]:
    """`count` tokens of greedy search from scratch, without pad, with the model's own start token."""
    tokens = [model.config.decoder_start_token_id, *prefix[1:]]
    encoded = model.encode(SourceBatch.from_lists([source], 1))
    for _ in range(count):
        n = len(tokens)
        output = model.decode(
            torch.tensor([tokens]), torch.arange(n)[None], torch.tensor([n]), model.new_cache(1), encoded, Wanted()
        )
        scores = output.scores.logits()[0, -1]
        scores[model.config.pad_token_id] = -torch.inf
        tokens.append(int(scores.argmax()))
    return tokens[len(prefix) :]


def continuations(model: TableVerifier, sources: list[list[int]], rows: list[list[int]], count: int) -> list[list[int]]:
    return [continuation(model, source, row, count) for source, row in zip(sources, rows, strict=True)]


@pytest.mark.parametrize("seed", range(6))
def test_drafts_equal_the_small_model_alone_over_ragged_rounds(seed: int) -> None:
    """Random acceptance (all of the block included), k = 0 rounds, rows leaving, swapping, and joining mid-flight."""
    model = TableVerifier(tiny_config(eos_token_ids=()), seed=seed, context=None)
    rng = torch.Generator().manual_seed(seed)
    sources, rows = SOURCES[:3], [[2], [2, 17], [2, 18, 19, 20]]  # given prefixes of different lengths
    drafter = make_drafter(model, sources)
    fully_accepted = 0
    for round_number in range(12):
        k = [3, 1, 0, 5][int(torch.randint(4, (), generator=rng))]
        block = drafter.propose(prefix_of(rows), k)
        assert proposed(block) == continuations(model, sources, rows, k)
        accepted = torch.randint(k + 1, (len(rows),), generator=rng).tolist()
        if round_number % 3 == 0:
            accepted[0] = k
        fully_accepted += sum(k > 0 and a == k for a in accepted)
        commit(drafter, rows, accepted)
        rows = [[*row, *d[:a], 21 + a] for row, d, a in zip(rows, proposed(block), accepted, strict=True)]
        if round_number == 4:
            drafter.select_rows(torch.tensor([2, 1]))
            sources, rows = [sources[2], sources[1]], [rows[2], rows[1]]
        if round_number == 6:
            start(drafter, SOURCES[3:])
            sources, rows = [*sources, *SOURCES[3:]], [*rows, [2], [2, 33]]
    assert fully_accepted > 0


def test_catches_up_on_rounds_it_was_not_asked_in() -> None:
    model = TableVerifier(tiny_config(eos_token_ids=()), context=None)
    drafter = make_drafter(model, SOURCES[:2])
    commit(drafter, [[2], [2]], [0, 0])  # before it ever proposed
    rows = [[2, 11], [2, 12]]
    drafts = proposed(drafter.propose(prefix_of(rows), 3))
    assert drafts == continuations(model, SOURCES[:2], rows, 3)
    commit(drafter, rows, [1, 0])
    rows = [[*rows[0], drafts[0][0], 13], [*rows[1], 14]]
    for token in (15, 16, 17):
        commit(drafter, rows, [0, 0])
        rows = [[*row, token] for row in rows]
    assert proposed(drafter.propose(prefix_of(rows), 3)) == continuations(model, SOURCES[:2], rows, 3)


def test_a_round_given_up_before_its_commit_is_drafted_again() -> None:
    model = TableVerifier(tiny_config(eos_token_ids=()), context=None)
    drafter = make_drafter(model, SOURCES[:1])
    expected = continuations(model, SOURCES[:1], [[2, 9]], 3)
    assert proposed(drafter.propose(prefix_of([[2, 9]]), 3)) == expected
    assert proposed(drafter.propose(prefix_of([[2, 9]]), 3)) == expected


def test_feeds_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TableVerifier(tiny_config(eos_token_ids=()))
    fed: list[list[int]] = []
    decode = model.decode

    def counting_decode(tokens, positions, lengths, *others, **options):  # type: ignore[no-untyped-def]
        fed.append(lengths.tolist())
        return decode(tokens, positions, lengths, *others, **options)

    monkeypatch.setattr(model, "decode", counting_decode)
    drafter = make_drafter(model, SOURCES[:2])
    rows = [[2], [2]]
    for round_number in range(3):
        fed.clear()
        block = drafter.propose(prefix_of(rows), 4)
        # a fully accepted block leaves two tokens to catch up on, its last one and the bonus; any other leaves one
        assert fed == [[2 if round_number else 1, 1], [1, 1], [1, 1], [1, 1]]
        commit(drafter, rows, [4, 2])
        rows = [[*row, *d[:a], 9] for row, d, a in zip(rows, proposed(block), (4, 2), strict=True)]


def test_own_decoder_start_token_replaces_the_verifiers() -> None:
    model = TableVerifier(tiny_config(decoder_start_token_id=3, eos_token_ids=()), context=None)
    rows = [[49], [49, 20]]
    drafts = proposed(make_drafter(model, SOURCES[:2]).propose(prefix_of(rows), 4))
    assert drafts == continuations(model, SOURCES[:2], [[3], [3, 20]], 4)
    assert drafts != proposed(
        make_drafter(TableVerifier(tiny_config(eos_token_ids=()), context=None), SOURCES[:2]).propose(
            prefix_of(rows), 4
        )
    )


def test_a_language_code_at_the_start_is_kept() -> None:
    model = TableVerifier(tiny_config(decoder_start_token_id=-1, eos_token_ids=()), context=None)
    first, second = (proposed(make_drafter(model, SOURCES[:1]).propose(prefix_of([[code]]), 4))[0] for code in (44, 45))
    assert first != second


def test_pad_is_never_proposed() -> None:
    model = TableVerifier(tiny_config(vocab_size=4, pad_token_id=1, eos_token_ids=()), context=None)
    sources = [[i, 2] for i in range(4)]
    block = make_drafter(model, sources).propose(prefix_of([[2]] * 4), 20)
    tokens = set(block.tokens.flatten().tolist())
    assert tokens == {0, 2, 3}


def test_rows_beyond_the_positions_get_empty_blocks() -> None:
    model = TableVerifier(tiny_config(max_positions=10, eos_token_ids=()), context=None)
    drafter = make_drafter(model, SOURCES[:3])
    rows = [[2] * 8, [2] * 9, [2] * 3]  # feeding 2 of 3 drafted tokens behind 9 needs 11 positions
    block = drafter.propose(prefix_of(rows), 3)
    assert block.lengths.tolist() == [3, 0, 3]
    alone = continuations(model, [SOURCES[0], SOURCES[2]], [rows[0], rows[2]], 3)
    assert [proposed(block)[0], proposed(block)[2]] == alone
    commit(drafter, rows, [1, 0, 2])
    rows = [[*rows[0], alone[0][0], 5], [*rows[1], 5], [*rows[2], *alone[1][:2], 5]]
    block = drafter.propose(prefix_of(rows), 3)
    assert block.lengths.tolist() == [0, 0, 3]
    assert proposed(block)[2] == continuation(model, SOURCES[2], rows[2], 3)


def test_nothing_is_computed_when_no_row_has_room() -> None:
    model = TableVerifier(tiny_config(max_positions=10))
    drafter = make_drafter(model, SOURCES[:2])
    block = drafter.propose(prefix_of([[2] * 20, [2] * 11]), 3)
    assert (block.lengths.tolist(), model.num_calls) == ([0, 0], 0)


def test_a_source_beyond_its_positions_is_cut() -> None:
    model = TableVerifier(tiny_config(max_positions=10, eos_token_ids=()))
    source = list(range(10, 30))
    block = make_drafter(model, [source, [8, 2]]).propose(prefix_of([[2], [2]]), 4)
    assert proposed(block) == continuations(model, [source[:10], [8, 2]], [[2], [2]], 4)


def test_a_block_ends_early_when_all_rows_have_ended() -> None:
    model = TableVerifier(tiny_config(eos_token_ids=()), context=None)
    expected = continuations(model, SOURCES[:2], [[2], [2]], 8)
    ending = TableVerifier(tiny_config(eos_token_ids=(expected[0][1], expected[1][2])), context=None)
    block = make_drafter(ending, SOURCES[:2]).propose(prefix_of([[2], [2]]), 8)
    assert proposed(block) == [row[:3] for row in expected]
    assert ending.num_calls == 3


def test_rows_without_room_do_not_keep_a_block_going() -> None:
    model = TableVerifier(tiny_config(max_positions=20, eos_token_ids=()), context=None)
    expected = continuation(model, SOURCES[0], [2], 8)
    ending = TableVerifier(tiny_config(max_positions=20, eos_token_ids=(expected[1],)), context=None)
    block = make_drafter(ending, SOURCES[:2]).propose(prefix_of([[2], [2] * 19]), 8)
    assert proposed(block) == [expected[:2], []]


def test_choose_sees_the_law_of_each_slot_and_decides() -> None:
    model = TableVerifier(tiny_config(eos_token_ids=()), context=None)
    seen: list[tuple[int, list[int]]] = []

    def choose_second_best(log_probs: torch.Tensor, index: int) -> torch.Tensor:
        assert torch.allclose(log_probs.exp().sum(-1), torch.ones(len(log_probs)))
        second = log_probs.topk(2).indices[:, 1]
        seen.append((index, second.tolist()))
        return second

    block = make_drafter(model, SOURCES[:2]).propose(prefix_of([[2], [2, 9]]), 3, choose_second_best)
    assert [index for index, _ in seen] == [0, 1, 2]
    assert block.tokens.T.tolist() == [tokens for _, tokens in seen]
    # the chosen token, not the best one, is what the next slot follows
    best_after = continuation(model, SOURCES[0], [2, *block.tokens[0, :2].tolist()], 1)[0]
    assert best_after != int(block.tokens[0, 2])
    follow_up = make_drafter(model, SOURCES[:1]).propose(prefix_of([[2, *block.tokens[0, :2].tolist()]]), 1)
    assert follow_up.tokens.tolist() == [[best_after]]


def test_rows_may_all_leave_and_others_come() -> None:
    model = TableVerifier(tiny_config(eos_token_ids=()), context=None)
    drafter = make_drafter(model, SOURCES[:2])
    drafter.propose(prefix_of([[2], [2]]), 3)
    drafter.select_rows(torch.zeros(0, dtype=torch.long))
    start(drafter, SOURCES[2:3])
    assert proposed(drafter.propose(prefix_of([[2, 4]]), 3)) == continuations(model, SOURCES[2:3], [[2, 4]], 3)


def test_defaults() -> None:
    drafter = SmallModelDrafter(TableVerifier(tiny_config(max_positions=64)))
    assert (drafter.default_num_draft_tokens, drafter.max_draft_tokens, drafter.hidden_layers) == (5, 64, ())
