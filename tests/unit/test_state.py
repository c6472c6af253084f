"""The arithmetic of a round: fitting, laying out the verifier call, committing."""

import torch

from spec2seq.decoding.state import DecodeState
from spec2seq.types import Acceptance, DraftBlock

NO_EOS: list[int] = []


def steady_state() -> DecodeState:
    """Two rows of 3 and 2 committed tokens, all but the last cached, budgets to lengths 5 and 9."""
    state = DecodeState.start([[1, 2, 3], [1, 4]], [1, 1], [5, 9], "cpu")
    return DecodeState(state.tokens, state.lengths, state.lengths - 1, state.prompt_lengths, state.max_lengths)


def draft_of(*rows: list[int]) -> DraftBlock:
    width = max(len(row) for row in rows)
    return DraftBlock(
        torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.long),
        torch.tensor([len(row) for row in rows]),
    )


def accept(num_accepted: list[int], next_tokens: list[int]) -> Acceptance:
    return Acceptance(torch.tensor(num_accepted), torch.tensor(next_tokens))


def test_a_draft_is_cut_to_each_rows_budget_minus_one() -> None:
    draft = steady_state().fit(draft_of([5, 6, 7, 8], [9, 10, 11]))
    assert draft.lengths.tolist() == [1, 3]
    assert draft.tokens.tolist() == [[5, 6, 7], [9, 10, 11]]


def test_one_pending_token_per_row_needs_no_query_selection() -> None:
    call = steady_state().verify_input(draft_of([5], [9, 10]))
    assert call.tokens.tolist() == [[3, 5, 0], [4, 9, 10]]
    assert call.positions.tolist() == [[2, 3, 4], [1, 2, 3]]
    assert call.lengths.tolist() == [2, 3]
    assert call.queries is None


def test_the_first_call_feeds_the_whole_prompt_and_scores_from_its_last_token() -> None:
    state = DecodeState.start([[1, 2, 3], [1]], [3, 1], [9, 9], "cpu")
    call = state.verify_input(draft_of([5, 6], [7]))
    assert call.tokens[0].tolist() == [1, 2, 3, 5, 6]
    assert call.tokens[1, :2].tolist() == [1, 7]
    assert call.positions.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert call.lengths.tolist() == [5, 2]
    assert call.queries is not None
    assert call.queries.tolist() == [[2, 3, 4], [0, 1, 2]]


def test_accepted_tokens_and_the_verifiers_own_are_appended_raggedly() -> None:
    state, commitment = steady_state().commit(draft_of([5, 6], [9, 10]), accept([0, 2], [20, 21]), NO_EOS)
    assert state.lengths.tolist() == [4, 5]
    assert state.cached.tolist() == [3, 4]
    assert state.tokens[0, :4].tolist() == [1, 2, 3, 20]
    assert state.tokens[1, :5].tolist() == [1, 4, 9, 10, 21]
    assert commitment.num_tokens.tolist() == [1, 3]
    assert commitment.num_accepted.tolist() == [0, 2]
    assert commitment.is_ended.tolist() == [False, False]


def test_eos_at_every_place_of_a_block_cuts_there() -> None:
    block = [5, 6, 7]
    for place in range(4):
        tokens = [*block, 8]
        tokens[place] = 2
        state = DecodeState.start([[1]], [1], [20], "cpu")
        after, commitment = state.commit(draft_of(tokens[:3]), accept([3], [tokens[3]]), [40, 2])
        assert commitment.num_tokens.tolist() == [place + 1]
        assert commitment.num_accepted.tolist() == [min(3, place + 1)]
        assert commitment.is_ended.tolist() == [True]
        assert after.tokens[0, 1 : after.lengths[0]].tolist() == tokens[: place + 1]


def test_an_eos_beyond_the_accepted_tokens_ends_nothing() -> None:
    _, commitment = steady_state().commit(draft_of([5, 2], [2, 9]), accept([1, 0], [6, 7]), [2])
    assert commitment.is_ended.tolist() == [False, False]
    assert commitment.num_tokens.tolist() == [2, 1]


def test_joining_and_leaving_keep_rows_whole() -> None:
    joined = steady_state().concat(DecodeState.start([[1, 7, 8, 9]], [2], [30], "cpu"))
    kept = joined.select_rows(torch.tensor([2, 1]))
    assert kept.lengths.tolist() == [4, 2]
    assert kept.tokens[0, :4].tolist() == [1, 7, 8, 9]
    assert kept.prompt_lengths.tolist() == [2, 1]
    assert kept.max_lengths.tolist() == [30, 9]
    assert kept.cached.tolist() == [0, 1]


def test_a_buffer_that_is_full_grows() -> None:
    state = DecodeState.start([[1]], [1], [500], "cpu")
    for step in range(130):
        state, _ = state.commit(draft_of([3]), accept([1], [4]), NO_EOS)
        assert state.lengths.tolist() == [1 + 2 * (step + 1)]
    assert state.tokens[0, 1:261].tolist() == [3, 4] * 130
