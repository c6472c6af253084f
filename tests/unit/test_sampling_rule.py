"""The rule of speculative sampling: against its definition token by token, and against the law it must keep.

The law is one of sequences: the score of a token depends on its place and on the token before it. The draft follows
another law of the same kind. What the rule leaves open is filled up with plain draws, so that whole sequences are
compared.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spec2seq.acceptance import SpeculativeSampling, draw_tokens
from spec2seq.decoding.warpers import Warpers
from spec2seq.types import Acceptance, DraftBlock, TensorScores
from tests.chi_square import p_value

VOCAB_SIZE = 5
NUM_ROWS = 20_000
SEEDS = range(20)
WARPERS = [
    Warpers(),
    Warpers(temperature=0.6, top_k=3),
    Warpers(temperature=1.7, top_p=0.8),
    Warpers(top_k=4, min_p=0.15),
]


class Chain:
    """Laws [n, V, V]: place, token before it, token. The token before the first place is 0."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self.laws = scores.softmax(-1)
        self._sums = self.laws.double().cumsum(-1)

    def draw(self, place: int, before: Tensor) -> Tensor:
        sums = self._sums[place][before]
        return (torch.rand(len(before), 1, dtype=torch.double) * sums[:, -1:] >= sums).sum(-1)

    def sequences(self) -> Tensor:
        """The probability of every sequence, first token slowest [V ** n]."""
        law = self.laws[0, 0]
        for place in range(1, len(self.scores)):
            law = (law.reshape(-1, VOCAB_SIZE, 1) * self.laws[place]).flatten()
        return law


def make_chains(num_places: int, warpers: Warpers, seed: int = 0) -> tuple[Chain, Chain]:
    """A verifier's law and a draft's that is somewhat like it, both warped."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_places, VOCAB_SIZE, VOCAB_SIZE)
    scores = torch.randn(shape, generator=generator) * 1.5
    return Chain(warpers(scores)), Chain(warpers(scores + torch.randn(shape, generator=generator)))


def make_draft(chain: Chain, num_slots: int, *, has_law: bool) -> DraftBlock:
    """Blocks of ragged lengths; drawn from the chain, or points that nobody knows the law of."""
    tokens, log_probs = torch.zeros((NUM_ROWS, 0), dtype=torch.long), []
    before = torch.zeros(NUM_ROWS, dtype=torch.long)
    for slot in range(num_slots):
        log_probs.append(chain.laws[slot][before].log())
        before = chain.draw(slot, before)
        tokens = torch.cat([tokens, before[:, None]], dim=1)
    lengths = torch.where(torch.rand(NUM_ROWS) < 0.2, torch.randint(0, num_slots + 1, (NUM_ROWS,)), num_slots)
    return DraftBlock(tokens, lengths, torch.stack(log_probs, dim=1) if has_law else None)


def scores_of(chain: Chain, draft: DraftBlock) -> TensorScores:
    before = torch.cat([torch.zeros((NUM_ROWS, 1), dtype=torch.long), draft.tokens], dim=1)
    return TensorScores(chain.scores[torch.arange(draft.num_slots + 1), before])


def whole_sequences(chain: Chain, draft: DraftBlock, acceptance: Acceptance) -> Tensor:
    """What came out, filled up with plain draws, as numbers in the order of `Chain.sequences` [B]."""
    tokens = torch.zeros(NUM_ROWS, dtype=torch.long)
    numbers = torch.zeros(NUM_ROWS, dtype=torch.long)
    for place in range(draft.num_slots + 1):
        drawn = chain.draw(place, tokens)
        drafted = draft.tokens[:, min(place, draft.num_slots - 1)]
        tokens = torch.where(acceptance.num_accepted > place, drafted, drawn)
        tokens = torch.where(acceptance.num_accepted == place, acceptance.next_tokens, tokens)
        numbers = numbers * VOCAB_SIZE + tokens
    return numbers


def p_of_rule(rule: SpeculativeSampling, num_slots: int, seed: int, *, has_law: bool) -> float:
    """Every seed has a law of its own, and the warpers take turns."""
    torch.manual_seed(seed)
    verifier, drafter = make_chains(num_slots + 1, WARPERS[seed % len(WARPERS)], seed)
    draft = make_draft(drafter, num_slots, has_law=has_law)
    acceptance = rule.accept(draft, scores_of(verifier, draft))
    numbers = whole_sequences(verifier, draft, acceptance)
    return p_value(numbers.bincount(minlength=VOCAB_SIZE ** (num_slots + 1)), verifier.sequences())


@pytest.mark.parametrize("num_slots", [1, 2, 3, 4])
@pytest.mark.parametrize("has_law", [True, False])
@pytest.mark.parametrize("verification", ["block", "token"])
def test_sequences_follow_the_law_of_the_verifier(verification: str, has_law: bool, num_slots: int) -> None:
    p_values = [p_of_rule(SpeculativeSampling(verification), num_slots, seed, has_law=has_law) for seed in SEEDS]
    assert sum(p < 0.01 for p in p_values) <= 3, p_values


class PeekingController(SpeculativeSampling):
    """Wrong: takes back draft tokens that look bad, having seen them."""

    def accept(self, draft: DraftBlock, scores: TensorScores, noise: Tensor | None = None) -> Acceptance:
        log_probs = scores.logits().log_softmax(-1)[:, :-1].gather(-1, draft.tokens[..., None])[..., 0]
        drafted = draft.log_probs.gather(-1, draft.tokens[..., None])[..., 0]
        lengths = (log_probs >= drafted).cumprod(1).sum(1).minimum(draft.lengths)
        return super().accept(DraftBlock(draft.tokens, lengths, draft.log_probs), scores, noise)


class NoRemainder(SpeculativeSampling):
    """Wrong: after a rejection it draws from the whole law, not from what the draft left of it."""

    def accept(self, draft: DraftBlock, scores: TensorScores, noise: Tensor | None = None) -> Acceptance:
        num_accepted = super().accept(draft, scores, noise).num_accepted
        laws = scores.logits().softmax(-1)[torch.arange(NUM_ROWS), num_accepted]
        return Acceptance(num_accepted, torch.multinomial(laws, 1)[:, 0])


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("wrong_rule", [PeekingController, NoRemainder])
def test_wrong_rules_are_found_out(wrong_rule: type[SpeculativeSampling], verification: str) -> None:
    p_values = [p_of_rule(wrong_rule(verification), 1, seed, has_law=True) for seed in SEEDS]
    assert sum(p < 0.01 for p in p_values) >= 15, p_values


def test_drawing_points_from_the_whole_law_is_found_out() -> None:
    p_values = [p_of_rule(NoRemainder(), 1, seed, has_law=False) for seed in SEEDS]
    assert sum(p < 0.01 for p in p_values) >= 15, p_values


@pytest.mark.parametrize("has_law", [True, False])
def test_blocks_keep_at_least_as_many_tokens_as_single_judgements(has_law: bool) -> None:
    gains, errors = [], []
    for seed in range(4):
        verifier, drafter = make_chains(5, Warpers(), seed)
        draft = make_draft(drafter, 4, has_law=has_law)
        scores = scores_of(verifier, draft)
        kept = [SpeculativeSampling(kind).accept(draft, scores).num_accepted.double() for kind in ("block", "token")]
        gains.append(float(kept[0].mean() - kept[1].mean()))
        errors.append(float((kept[0].var() + kept[1].var()).sqrt()) / math.sqrt(NUM_ROWS))
    assert all(gain > -3 * error for gain, error in zip(gains, errors, strict=True))
    # for points the two are equally good
    assert has_law == (sum(gains) > 5 * math.hypot(*errors))


def accept_slowly(
    verification: str, tokens: list[int], drafted: Tensor | None, laws: Tensor, noise: Tensor
) -> tuple[int, int]:
    """The definition for one row: tokens [k], laws [k+1, V], drafted [k, V] or None, noise [k+1, 2]."""
    count = len(tokens)
    laws, uniforms = laws.double(), noise.tolist()
    points = torch.eye(laws.shape[1], dtype=torch.double)[tokens]
    drafted = points if drafted is None else drafted.double()
    ratios = [float(laws[i, tokens[i]] / drafted[i, tokens[i]]) for i in range(count)]
    weights, kept = [1.0], 0
    if verification == "token":
        while kept < count and uniforms[kept][0] < ratios[kept]:
            kept += 1
        weights *= count + 1
    else:
        for ratio in ratios:
            weights.append(min(1.0, weights[-1] * ratio))
        for i in range(1, count + 1):
            surplus = float((weights[i] * laws[i] - drafted[i]).clamp(min=0).sum()) if i < count else 0.0
            chance = surplus / (surplus + 1 - weights[i]) if surplus else 0.0
            kept = i if uniforms[i - 1][0] < (weights[i] if i == count else chance) else kept
    rest = laws[kept] if kept == count else (weights[kept] * laws[kept] - drafted[kept]).clamp(min=0)
    sums = (rest / rest.sum()).cumsum(0)
    return kept, int((sums <= uniforms[kept][1]).sum())


@pytest.mark.parametrize("has_law", [True, False])
@pytest.mark.parametrize("verification", ["block", "token"])
def test_every_row_is_decided_as_defined(verification: str, has_law: bool) -> None:
    verifier, drafter = make_chains(6, Warpers(top_k=4), seed=3)
    draft = make_draft(drafter, 5, has_law=has_law)
    scores = scores_of(verifier, draft)
    noise = torch.rand(NUM_ROWS, 6, 2, dtype=torch.double)
    acceptance = SpeculativeSampling(verification).accept(draft, scores, noise)
    laws = scores.logits().softmax(-1)
    for row in range(400):
        n = int(draft.lengths[row])
        drafted = draft.log_probs[row, :n].exp() if has_law else None
        expected = accept_slowly(
            verification, draft.tokens[row, :n].tolist(), drafted, laws[row, : n + 1], noise[row, : n + 1]
        )
        assert (int(acceptance.num_accepted[row]), int(acceptance.next_tokens[row])) == expected, row
    assert acceptance.num_accepted[:400].unique().tolist() == [0, 1, 2, 3, 4, 5]


def decide(
    tokens: list[int], laws: list[list[float]], noise: list[list[float]], log_probs: Tensor | None = None
) -> tuple[int, int]:
    draft = DraftBlock(torch.tensor([tokens], dtype=torch.long), torch.tensor([len(tokens)]), log_probs)
    scores = TensorScores(torch.tensor([laws]).log())
    acceptance = SpeculativeSampling().accept(draft, scores, torch.tensor([noise], dtype=torch.double))
    return int(acceptance.num_accepted), int(acceptance.next_tokens)


class TestByHand:
    laws = ((0.6, 0.3, 0.1), (0.2, 0.0, 0.8))

    def test_a_point_is_kept_as_often_as_it_is_probable(self) -> None:
        assert decide([0], self.laws, [[0.59, 0.0], [0.0, 0.1]]) == (1, 0)
        assert decide([0], self.laws, [[0.61, 0.0], [0.0, 0.1]]) == (0, 1)

    def test_a_rejected_point_is_not_drawn_again(self) -> None:
        # 0.3 and 0.1 are left
        assert decide([0], self.laws, [[0.61, 0.74], [0.0, 0.0]]) == (0, 1)
        assert decide([0], self.laws, [[0.61, 0.76], [0.0, 0.0]]) == (0, 2)

    def test_a_drawn_token_is_kept_where_the_verifier_finds_it_likelier(self) -> None:
        log_probs = torch.tensor([[[0.5, 0.2, 0.3]]]).log()
        assert decide([0], self.laws, [[0.99, 0.0], [0.0, 0.3]], log_probs) == (1, 2)
        assert decide([2], self.laws, [[0.33, 0.0], [0.0, 0.1]], log_probs) == (1, 0)
        # 0.1 of token 0 and 0.1 of token 1 are left
        assert decide([2], self.laws, [[0.34, 0.49], [0.0, 0.0]], log_probs) == (0, 0)
        assert decide([2], self.laws, [[0.34, 0.51], [0.0, 0.0]], log_probs) == (0, 1)

    def test_tokens_that_the_verifier_rules_out_never_come(self) -> None:
        assert decide([0, 1], [*self.laws, [1.0, 0.0, 0.0]], [[0.0, 0.0], [0.0, 0.999], [0.0, 0.0]]) == (1, 2)

    def test_an_empty_draft_is_a_plain_draw(self) -> None:
        assert decide([], [[0.6, 0.3, 0.1]], [[0.0, 0.59]]) == (0, 0)
        assert decide([], [[0.6, 0.3, 0.1]], [[0.0, 0.89]]) == (0, 1)

    def test_equal_laws_keep_everything(self) -> None:
        laws = torch.tensor([self.laws])
        log_probs = laws.log()
        assert decide([2, 0], [*self.laws, [0, 0, 1]], [[0.999, 0], [0.999, 0], [0, 0.5]], log_probs) == (2, 2)

    def test_slots_beyond_the_length_are_never_kept(self) -> None:
        draft = DraftBlock(torch.tensor([[2, 2, 2]]), torch.tensor([1]))
        scores = TensorScores(torch.tensor([[[0.0, 0.0, 1.0]] * 4]).log())
        noise = torch.zeros(1, 4, 2, dtype=torch.double)
        assert SpeculativeSampling().accept(draft, scores, noise).num_accepted.tolist() == [1]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("has_law", [True, False])
def test_broken_scores_are_reached_as_often_as_without_a_draft(verification: str, has_law: bool, broken: float) -> None:
    """The draft decides nothing behind them: a row ends up there as often as its law leads it there."""
    verifier, drafter = make_chains(4, Warpers(), seed=5)
    draft = make_draft(drafter, 3, has_law=has_law)
    draft = DraftBlock(draft.tokens, torch.full((NUM_ROWS,), 3), draft.log_probs)
    scores = scores_of(verifier, draft).logits().clone()
    is_broken = draft.tokens[:, 0] == 1  # as if the model broke after token 1
    scores[is_broken, 1, 3] = broken
    acceptance = SpeculativeSampling(verification).accept(draft, TensorScores(scores))
    assert int(acceptance.num_accepted[is_broken].max()) == 1
    first = torch.where(acceptance.num_accepted > 0, draft.tokens[:, 0], acceptance.next_tokens)
    assert p_value(first.bincount(minlength=VOCAB_SIZE), verifier.laws[0, 0]) > 0.001


def test_draws_follow_weights_and_avoid_zeros() -> None:
    weights = torch.tensor([[0.0, 2.0, 0.0, 6.0, 0.0]])
    uniforms = torch.tensor([0.0, 0.249, 0.251, 1 - 2.0**-49], dtype=torch.double)
    assert draw_tokens(weights.expand(4, -1), uniforms).tolist() == [1, 1, 3, 3]
    assert draw_tokens(torch.full((1, 5), torch.nan), torch.tensor([0.5]).double()).tolist()[0] in range(5)
