"""Joining the outputs of an input's pieces."""

from __future__ import annotations

from spec2seq.pipelines.results import Alternative, blank_result, join_results, sum_stats
from spec2seq.types import DecodedRequest, Hypothesis, RequestStats


def test_stats_are_summed() -> None:
    one = RequestStats(
        num_tokens=5, num_forced=1, num_rounds=2, num_accepted=3, accepted_per_position=[2, 1], seconds_encode=0.5
    )
    other = RequestStats(
        num_tokens=7, num_rounds=1, num_accepted=4, accepted_per_position=[1, 1, 1, 1], seconds_verify=1.0
    )
    total = sum_stats([one, other])
    assert (total.num_tokens, total.num_forced, total.num_rounds, total.num_accepted) == (12, 1, 3, 7)
    assert total.accepted_per_position == [3, 2, 1, 1]
    assert total.seconds == 1.5
    assert total.tokens_per_round == 11 / 3
    assert not total.is_degenerate
    assert sum_stats([one, RequestStats(is_degenerate=True)]).is_degenerate
    assert one.accepted_per_position == [2, 1], "the parts are left alone"


def test_pieces_become_one_result_with_the_worst_finish_reason() -> None:
    first = DecodedRequest([Hypothesis([5, 0], -1.0), Hypothesis([6, 0], -2.0)], "eos", RequestStats(num_tokens=2))
    second = DecodedRequest([Hypothesis([7], -0.5), Hypothesis([8], -0.75)], "length", RequestStats(num_tokens=1))
    result = join_results([first, second], ["best", "second"])
    assert (result.text, result.token_ids, result.score) == ("best", [5, 0, 7], -1.5)
    assert result.alternatives == [Alternative("second", [6, 0, 8], -2.75)]
    assert result.finish_reason == "length"
    assert result.stats.num_tokens == 3


def test_scores_are_none_unless_all_are_known() -> None:
    scored = DecodedRequest([Hypothesis([5], -1.0)], "eos", RequestStats())
    unscored = DecodedRequest([Hypothesis([5])], "eos", RequestStats())
    assert join_results([scored, unscored], ["x"]).score is None


def test_a_blank_text_costs_nothing() -> None:
    result = blank_result(" \n")
    assert (result.text, result.token_ids, result.score, result.finish_reason) == (" \n", [], None, "eos")
    assert (result.stats.num_rounds, result.stats.tokens_per_round, result.stats.acceptance_rate) == (0, 0.0, 0.0)
