"""Acceptance rules against hand-computed cases and a slow reference that follows the definition row by row."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from spec2seq.acceptance import ExactMatch, TopBetaTolerance
from spec2seq.errors import OptionError
from spec2seq.interfaces import AcceptanceRule
from spec2seq.types import DraftBlock, TensorScores

EOS, PAD = 0, 4


def accept(
    rule: AcceptanceRule, tokens: list[list[int]], scores: list[list[list[float]]], lengths: list[int] | None = None
) -> tuple[list[int], list[int]]:
    draft = DraftBlock(
        torch.tensor(tokens, dtype=torch.long),
        torch.tensor([len(row) for row in tokens] if lengths is None else lengths),
    )
    acceptance = rule.accept(draft, TensorScores(torch.tensor(scores, dtype=torch.float32)))
    return acceptance.num_accepted.tolist(), acceptance.next_tokens.tolist()


def accept_slowly(
    tokens: list[int],
    length: int,
    scores: Tensor,
    *,
    top_beta: int = 1,
    tau: float = 0.0,
    eos: tuple[int, ...] = (),
    pad: int | None = None,
) -> tuple[int, int]:
    """The definition, one token at a time, on scores [k+1, V]."""

    def best_of(row: Tensor) -> int:
        return max(range(len(row)), key=lambda token: (float(row[token]), -token))

    for i in range(length):
        row, token = scores[i], tokens[i]
        best = best_of(row)
        better = sum(
            float(row[other]) > float(row[token]) or (float(row[other]) == float(row[token]) and other < token)
            for other in range(len(row))
        )
        passes = better < top_beta and float(row.max() - row[token]) <= tau
        if token in eos or best in eos or token == pad:
            passes = token == best
        if not passes:
            return i, best
    return length, best_of(scores[length])


class TestExactMatch:
    def test_keeps_leading_matches_and_adds_the_correction(self) -> None:
        scores = [[[0, 0, 1, 0, 0], [0, 3, 1, 0, 0], [0, 0, 0, 5, 0], [9, 0, 0, 0, 0]]]
        assert accept(ExactMatch(), [[2, 1, 3]], scores) == ([3], [0])
        assert accept(ExactMatch(), [[2, 2, 3]], scores) == ([1], [1])
        assert accept(ExactMatch(), [[1, 1, 3]], scores) == ([0], [2])

    def test_ties_go_to_the_lowest_id(self) -> None:
        scores = [[[0, 7, 0, 7, 0], [2, 2, 2, 2, 2]]]
        assert accept(ExactMatch(), [[1]], scores) == ([1], [0])
        assert accept(ExactMatch(), [[3]], scores) == ([0], [1])

    def test_rows_keep_their_own_number_of_tokens(self) -> None:
        best = torch.eye(5)
        scores = torch.stack([best[torch.tensor([1, 2, 3])], best[torch.tensor([3, 3, 1])]]).tolist()
        assert accept(ExactMatch(), [[1, 2], [3, 2]], scores) == ([2, 1], [3, 3])

    def test_slots_beyond_the_length_are_never_accepted(self) -> None:
        scores = torch.eye(5)[torch.tensor([[1, 2, 3]])].tolist()
        assert accept(ExactMatch(), [[1, 2]], scores, lengths=[1]) == ([1], [2])
        assert accept(ExactMatch(), [[1, 2]], scores, lengths=[0]) == ([0], [1])

    def test_an_empty_block_is_a_step_of_plain_search(self) -> None:
        assert accept(ExactMatch(), [[], []], [[[0, 1, 0]], [[0, 0, 1]]]) == ([0, 0], [1, 2])

    def test_noise_is_added_before_the_best_is_taken(self) -> None:
        scores = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
        noise = torch.tensor([[[2.0, 0.0, 0.0], [0.0, 5.0, 0.0]]])
        draft = DraftBlock(torch.tensor([[0]]), torch.tensor([1]))
        acceptance = ExactMatch().accept(draft, TensorScores(scores), noise)
        assert (acceptance.num_accepted.tolist(), acceptance.next_tokens.tolist()) == ([1], [1])

    def test_looks_at_one_id_and_no_logits(self) -> None:
        assert (ExactMatch().num_top, ExactMatch().needs_logits) == (1, False)


class TestTopBetaTolerance:
    def test_tau_is_the_largest_gap_that_passes(self) -> None:
        scores = [[[0, 4, 3, 2.5, 0], [0, 0, 0, 1, 0]]]
        assert accept(TopBetaTolerance(3, 1.0), [[2]], scores) == ([1], [3])  # gap exactly 1.0
        assert accept(TopBetaTolerance(3, 0.999), [[2]], scores) == ([0], [1])
        assert accept(TopBetaTolerance(3, 1.5), [[3]], scores) == ([1], [3])
        assert accept(TopBetaTolerance(2, 1.5), [[3]], scores) == ([0], [1])  # third best

    def test_ties_at_the_cut_count_towards_the_lowest_id(self) -> None:
        scores = [[[0, 5, 4, 4, 4], [1, 0, 0, 0, 0]]]
        assert accept(TopBetaTolerance(3, 2.0), [[3]], scores) == ([1], [0])
        assert accept(TopBetaTolerance(3, 2.0), [[4]], scores) == ([0], [1])

    def test_first_failure_ends_the_block(self) -> None:
        scores = [[[0, 2, 1.5, 0, 0], [0, 9, 0, 0, 0], [0, 2, 2, 0, 0], [1, 0, 0, 0, 0]]]
        assert accept(TopBetaTolerance(2, 1.0), [[2, 2, 1]], scores) == ([1], [1])
        assert accept(TopBetaTolerance(2, 1.0), [[2, 1, 2]], scores) == ([3], [0])

    def test_guard_lets_eos_pass_only_as_the_best(self) -> None:
        near_eos = [[[1.9, 2, 0, 0, 0], [0, 0, 1, 0, 0]]]  # EOS is second best
        best_is_eos = [[[2, 1.9, 0, 0, 0], [0, 0, 1, 0, 0]]]
        guarded = TopBetaTolerance(3, 1.0, eos_token_ids=(EOS,))
        released = TopBetaTolerance(3, 1.0, eos_token_ids=(EOS,), guard_eos=False)
        assert accept(guarded, [[EOS]], near_eos) == ([0], [1])
        assert accept(released, [[EOS]], near_eos) == ([1], [2])
        assert accept(guarded, [[1]], best_is_eos) == ([0], [EOS])
        assert accept(released, [[1]], best_is_eos) == ([1], [2])
        assert accept(guarded, [[EOS]], best_is_eos) == ([1], [2])

    def test_every_eos_is_guarded(self) -> None:
        scores = [[[0, 2, 1.9, 0, 0], [0, 0, 0, 1, 0]]]
        assert accept(TopBetaTolerance(2, 1.0, eos_token_ids=(EOS, 2)), [[2]], scores) == ([0], [1])
        assert accept(TopBetaTolerance(2, 1.0, eos_token_ids=(EOS,)), [[2]], scores) == ([1], [3])

    @pytest.mark.parametrize("guard_eos", [True, False])
    def test_pad_passes_only_as_the_best(self, guard_eos: bool) -> None:
        rule = TopBetaTolerance(3, 1.0, (EOS,), PAD, guard_eos)
        assert accept(rule, [[PAD]], [[[0, 2, 0, 0, 1.9], [0, 0, 1, 0, 0]]]) == ([0], [1])
        assert accept(rule, [[PAD]], [[[0, 1.9, 0, 0, 2], [0, 0, 1, 0, 0]]]) == ([1], [2])

    def test_slots_beyond_the_length_and_empty_blocks(self) -> None:
        scores = [[[0, 2, 1.9, 0, 0], [0, 0, 0, 1, 0]]]
        assert accept(TopBetaTolerance(3, 1.0), [[2]], scores, lengths=[0]) == ([0], [1])
        assert accept(TopBetaTolerance(3, 1.0), [[]], [[[0, 2, 1, 0, 0]]]) == ([0], [1])

    def test_banned_ids_never_pass(self) -> None:
        scores = [[[0, 2, float("-inf"), float("-inf"), float("-inf")], [0, 0, 0, 1, 0]]]
        assert accept(TopBetaTolerance(5, 1e9), [[2]], scores) == ([0], [1])

    def test_more_ranks_than_ids(self) -> None:
        assert accept(TopBetaTolerance(9, 2.0), [[2]], [[[0, 2, 1], [0, 0, 1]]]) == ([1], [2])

    def test_noise_is_refused(self) -> None:
        draft = DraftBlock(torch.tensor([[0]]), torch.tensor([1]))
        with pytest.raises(OptionError, match="top_beta=3 cannot be used in sampling with a seed"):
            TopBetaTolerance(3, 1.0).accept(draft, TensorScores(torch.zeros(1, 2, 5)), torch.zeros(1, 2, 5))

    @pytest.mark.parametrize(("top_beta", "tau"), [(0, 1.0), (-1, 1.0), (3, -0.1), (3, float("nan"))])
    def test_impossible_settings_are_refused(self, top_beta: int, tau: float) -> None:
        with pytest.raises(OptionError, match="use"):
            TopBetaTolerance(top_beta, tau)


def test_every_small_case_equals_the_definition() -> None:
    """All drafts of two tokens and all lengths, on score rows with every kind of tie, for many settings at once."""
    vocab_size = 5
    kinds = [[3, 3, 2, 2, 1], [0, 1, 2, 3, 4], [1, 1, 1, 1, 1], [2.0, 2.5, 3.0, 3.5, 3.5], [4, 0, 0, 0, 4]]
    rows = list(itertools.product(kinds, repeat=3))
    drafts = list(itertools.product(range(vocab_size), repeat=2))
    cases = [(r, d, n) for r in rows[:: len(rows) // 40] for d in drafts for n in range(3)]
    scores = torch.tensor([case[0] for case in cases], dtype=torch.float32)
    tokens = torch.tensor([case[1] for case in cases])
    lengths = torch.tensor([case[2] for case in cases])
    settings = [(1, 0.0, (), None), (2, 0.5, (), None), (3, 1.0, (EOS,), PAD), (5, 3.0, (EOS, 3), None)]
    for top_beta, tau, eos, pad in settings:
        rule = TopBetaTolerance(top_beta, tau, eos, pad)
        acceptance = rule.accept(DraftBlock(tokens, lengths), TensorScores(scores))
        expected = [
            accept_slowly(list(d), n, scores[i], top_beta=top_beta, tau=tau, eos=eos, pad=pad)
            for i, (_, d, n) in enumerate(cases)
        ]
        assert list(zip(acceptance.num_accepted.tolist(), acceptance.next_tokens.tolist(), strict=True)) == expected


@pytest.mark.parametrize("tau", [0.0, 3.0, 1e9])
def test_one_rank_is_exact_match_whatever_tau(tau: float) -> None:
    scores = TensorScores(torch.randint(0, 3, (200, 6, 5)).float())
    best = scores.top(1)[1][:, :5, 0]
    noisy = torch.where(torch.rand(200, 5) < 0.7, best, torch.randint(0, 5, (200, 5)))
    draft = DraftBlock(noisy, torch.randint(0, 6, (200,)))
    exact = ExactMatch().accept(draft, scores)
    relaxed = TopBetaTolerance(1, tau, (EOS,), PAD).accept(draft, scores)
    assert exact.num_accepted.tolist() == relaxed.num_accepted.tolist()
    assert exact.next_tokens.tolist() == relaxed.next_tokens.tolist()
    assert 100 < int(exact.num_accepted.sum()) < 900


def test_the_best_few_are_the_first_of_a_stable_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 4, (50, 3, 9), generator=generator).float()  # many ties
    values[0, 0, 4], values[1, 1] = -torch.inf, 2.0
    ordered = values.sort(dim=-1, descending=True, stable=True)
    for count in (1, 2, 4, 6, 9):
        best, ids = TensorScores(values).top(count)
        assert torch.equal(best, ordered.values[..., :count])
        assert torch.equal(ids, ordered.indices[..., :count])


def test_a_score_that_is_not_a_number_is_found_as_the_best() -> None:
    values = torch.tensor([[[1.0, torch.nan, 3.0]]])
    for count in (1, 2):
        best, ids = TensorScores(values).top(count)
        assert best[0, 0, 0].isnan()
        assert ids[0, 0, 0] == 1
