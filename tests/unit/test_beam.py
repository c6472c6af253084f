"""Beam selection against transformers' beam search, on models that are tables of next-token scores."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from spec2seq.decoding.beam import BeamSettings, BeamState, advance, finalize
from spec2seq.ranking import best_ids
from spec2seq.types import Hypothesis, Prefix, TensorScores

VOCAB, START, PAD, EOS = 12, 0, 1, 2


class TableModel(MarianMTModel):
    """A model whose next-token scores depend on the last two tokens only: `table[two ago, last]`."""

    table: Tensor
    num_calls = 0

    def forward(self, decoder_input_ids, encoder_outputs=None, **_):
        self.num_calls += 1
        before = torch.cat([decoder_input_ids[:, :1], decoder_input_ids[:, :-1]], dim=1)
        return Seq2SeqLMOutput(logits=self.table[before, decoder_input_ids])


@pytest.fixture(scope="module")
def reference() -> TableModel:
    return TableModel(
        MarianConfig(
            vocab_size=VOCAB, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
            decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=64,
            pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=START, forced_eos_token_id=None,
        )
    ).eval()  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One group: its table [V, V, V], prompt and budget."""

    table: Tensor
    prompt: tuple[int, ...] = (START,)
    budget: int = 12

    def log_probs(self, tokens: Tensor) -> Tensor:
        """Next-token log-probabilities [K, V] of the beams [K, T]."""
        return self.table[tokens[:, -2 if tokens.shape[1] > 1 else -1], tokens[:, -1]].log_softmax(-1)


def random_table(seed: int, eos_bonus: float = 1.0) -> Tensor:
    table = torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * 1.5
    table[..., EOS] += eos_bonus
    return table


@dataclass(frozen=True)
class Outcome:
    """What a source ends as, and after how many steps."""

    hypotheses: list[Hypothesis]
    num_steps: int


def expected(reference: TableModel, source: Source, settings: BeamSettings) -> Outcome:
    """What transformers returns for the source alone."""
    reference.table, reference.num_calls = source.table, 0
    output = reference.generate(
        input_ids=torch.tensor([[5, 6, EOS]]),
        decoder_input_ids=torch.tensor([source.prompt]),
        max_new_tokens=source.budget,
        num_beams=settings.num_beams,
        num_return_sequences=settings.num_return_sequences,
        length_penalty=settings.length_penalty,
        early_stopping=settings.early_stopping,
        eos_token_id=list(settings.eos_token_ids) or None,
        use_cache=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    ends = set(settings.eos_token_ids)
    hypotheses = [
        Hypothesis(_cut(row[1:], len(source.prompt) - 1, ends), score)
        for row, score in zip(output.sequences.tolist(), output.sequences_scores.tolist(), strict=True)
    ]
    return Outcome(hypotheses, reference.num_calls)


def _cut(token_ids: list[int], start: int, ends: set[int]) -> list[int]:
    """The ids up to the first end after the prompt, without what fills the row behind it."""
    stop = next((i + 1 for i in range(start, len(token_ids)) if token_ids[i] in ends), len(token_ids))
    return token_ids[:stop]


def search(sources: list[Source], settings: BeamSettings, max_groups: int = 3) -> list[Outcome]:
    """Decode all sources, at most `max_groups` at a time: the next one joins in the step after another is done."""
    waiting = list(range(len(sources)))
    live: list[int] = []
    num_steps = dict.fromkeys(waiting, 0)
    outcomes: dict[int, Outcome] = {}
    state = None
    while waiting or live:
        if waiting and len(live) < max_groups:
            newcomer = start([sources[waiting[0]]], settings)
            state = state.append(newcomer) if live else newcomer
            live.append(waiting.pop(0))
        state, is_done = step(state, [sources[i] for i in live], settings)
        for group, i in enumerate(live):
            num_steps[i] += 1
            if is_done[group]:
                outcomes[i] = Outcome(finalize(state, group, settings), num_steps[i])
        kept = [group for group in range(len(live)) if not is_done[group]]
        state, live = state.select_groups(torch.tensor(kept, dtype=torch.long)), [live[group] for group in kept]
    return [outcomes[i] for i in range(len(sources))]


def start(sources: list[Source], settings: BeamSettings) -> BeamState:
    prompt_lengths = torch.tensor([len(source.prompt) for source in sources])
    budgets = torch.tensor([source.budget for source in sources])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(source.prompt) for source in sources], batch_first=True)
    return BeamState.start(Prefix(ids, prompt_lengths), prompt_lengths, prompt_lengths + budgets, settings.num_beams)


def step(state: BeamState, sources: list[Source], settings: BeamSettings) -> tuple[BeamState, list[bool]]:
    log_probs = [
        source.log_probs(state.tokens[group, :, : state.lengths[group]]) for group, source in enumerate(sources)
    ]
    result = advance(state, *best_ids(torch.stack(log_probs), settings.num_candidates), settings)
    for group in range(len(sources)):
        length = int(state.lengths[group])
        grown = torch.cat([state.tokens[group, result.parents[group], :length], result.tokens[group][:, None]], dim=1)
        assert torch.equal(result.state.tokens[group, :, : length + 1], grown)
    return result.state, result.is_done.tolist()


def assert_equal(actual: Outcome, wanted: Outcome) -> None:
    assert [h.token_ids for h in actual.hypotheses] == [h.token_ids for h in wanted.hypotheses]
    assert [h.score for h in actual.hypotheses] == pytest.approx([h.score for h in wanted.hypotheses], abs=1e-5)
    assert actual.num_steps == wanted.num_steps


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("num_beams", [2, 3, 5])
def test_equals_transformers(reference, num_beams, length_penalty, early_stopping):
    settings = BeamSettings(num_beams, (EOS,), length_penalty, early_stopping, num_return_sequences=num_beams)
    sources = [
        Source(random_table(1)),
        Source(random_table(2, eos_bonus=3.0), prompt=(START, 7, 4)),
        Source(random_table(3, eos_bonus=-2.0), budget=5),
        Source(random_table(4, eos_bonus=2.0), prompt=(START, 9), budget=20),
        Source(random_table(5), budget=1),
    ]
    for actual, source in zip(search(sources, settings), sources, strict=True):
        assert_equal(actual, expected(reference, source, settings))


@pytest.mark.parametrize("eos_token_ids", [(), (EOS, 7), (EOS, 3, 9)])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("num_beams", [2, 4])
def test_several_and_no_ends(reference, num_beams, early_stopping, eos_token_ids):
    settings = BeamSettings(num_beams, eos_token_ids, 1.0, early_stopping, num_return_sequences=num_beams)
    sources = [Source(random_table(seed), budget=9) for seed in range(10, 14)]
    for source in sources[:2]:  # nearly everything ends
        source.table[..., eos_token_ids] += 6.0
    for actual, source in zip(search(sources, settings), sources, strict=True):
        assert_equal(actual, expected(reference, source, settings))


@pytest.mark.parametrize("num_return_sequences", [1, 2, 3])
def test_returns_as_many_as_asked_for(reference, num_return_sequences):
    settings = BeamSettings(4, (EOS,), num_return_sequences=num_return_sequences)
    source = Source(random_table(20))
    (actual,) = search([source], settings)
    assert len(actual.hypotheses) == num_return_sequences
    assert_equal(actual, expected(reference, source, settings))


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 6])
def test_budget_with_unfinished_beams(reference, budget, early_stopping):
    settings = BeamSettings(3, (EOS,), 0.6, early_stopping, num_return_sequences=3)
    sources = [Source(random_table(seed, eos_bonus=-3.0), budget=budget) for seed in range(30, 35)]
    outcomes = search(sources, settings)
    for actual, source in zip(outcomes, sources, strict=True):
        assert_equal(actual, expected(reference, source, settings))
    assert all(len(h.token_ids) == budget for h in outcomes[0].hypotheses)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_fewer_continuations_than_beams(reference, early_stopping):
    """Only two tokens may follow anything, so that beams that do not exist yet fill the list of candidates."""
    table = torch.full((VOCAB, VOCAB, VOCAB), float("-inf"))
    table[..., 5], table[..., EOS] = random_table(40)[..., 5], random_table(40)[..., EOS]
    settings = BeamSettings(4, (EOS,), 1.0, early_stopping, num_return_sequences=2)
    source = Source(table)
    (actual,) = search([source], settings)
    assert_equal(actual, expected(reference, source, settings))


def test_outcome_does_not_depend_on_neighbours():
    settings = BeamSettings(3, (EOS,), num_return_sequences=3)
    sources = [Source(random_table(seed), (START, *range(3, 3 + seed % 4)), 4 + seed) for seed in range(50, 58)]
    alone = [search([source], settings)[0] for source in sources]
    sources.append(Source(random_table(58), (START, *[4] * 70), 5))  # its neighbours must make room
    alone.append(search([sources[-1]], settings)[0])
    assert len({outcome.num_steps for outcome in alone}) > 2
    for max_groups in (2, 8):
        assert search(sources, settings, max_groups) == alone
        assert search(sources[::-1], settings, max_groups) == alone[::-1]


def test_equal_scores_go_to_the_lowest_beam_then_the_lowest_id():
    settings = BeamSettings(2, (EOS,))
    state = start([Source(random_table(0))], settings)
    ids = torch.tensor([[[4, 6, 8, 9], [3, 5, 7, 10]]])
    state = advance(state, torch.tensor([[[-1.0, -1.0, -1.0, -1.0], [-1.0, -1.0, -1.0, -1.0]]]), ids, settings).state
    assert state.tokens[0, :, 1].tolist() == [4, 6]
    result = advance(state, torch.tensor([[[-2.0, -2.0, -3.0, -4.0], [-2.0, -2.0, -3.0, -4.0]]]), ids, settings)
    assert result.parents.tolist() == [[0, 0]]
    assert result.tokens.tolist() == [[4, 6]]


def test_budget_ends_a_group_whose_places_are_not_all_taken():
    """Only one continuation is possible at the last position, so that one of two places stays empty."""
    settings = BeamSettings(2, (EOS,), num_return_sequences=2)
    state = start([Source(random_table(0), budget=2)], settings)
    ids = torch.tensor([[[4, 6, 8, 9], [3, 5, 7, 10]]])
    first = advance(state, torch.tensor([[[-1.0, -2.0, -3.0, -4.0], [-1.0, -2.0, -3.0, -4.0]]]), ids, settings)
    assert not first.is_done[0]
    nothing = float("-inf")
    values = torch.tensor([[[-1.0, nothing, nothing, nothing], [nothing, nothing, nothing, nothing]]])
    last = advance(first.state, values, ids, settings)
    assert last.is_done[0]
    assert finalize(last.state, 0, settings) == [Hypothesis([4, 4], -1.0), Hypothesis([], -1e9)]


def test_forced_first_token_counts_as_generated(reference):
    """A prefix with a forced token equals a first step in which only that token has a finite score."""
    settings = BeamSettings(3, (EOS,), 2.0, num_return_sequences=3)
    source = Source(random_table(60), (START, 8), budget=9)
    lengths = torch.tensor([1])
    state = BeamState.start(Prefix(torch.tensor([[START, 8]]), lengths + 1), lengths, lengths + 10, 3)
    is_done = [False]
    while not is_done[0]:
        state, is_done = step(state, [source], settings)
    reference.table = source.table
    output = reference.generate(
        input_ids=torch.tensor([[5, EOS]]), forced_bos_token_id=8, max_new_tokens=10, num_beams=3, length_penalty=2.0,
        num_return_sequences=3, use_cache=False, output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    hypotheses = finalize(state, 0, settings)
    assert [h.token_ids for h in hypotheses] == [_cut(row[1:], 0, {EOS}) for row in output.sequences.tolist()]
    assert [h.score for h in hypotheses] == pytest.approx(output.sequences_scores.tolist(), abs=1e-5)


@pytest.mark.parametrize("count", [2, 4, 6])
def test_fewer_possible_tokens_than_candidates_are_not_counted_twice(count):
    """As at a forced end: one token is possible, and the others follow it in the order of their ids."""
    values = torch.full((2, 3, VOCAB), float("-inf"))
    values[0, :, 0], values[1, :, 5] = 0.0, -1.0
    best, ids = TensorScores(values).top(count)
    assert ids[0, 0].tolist() == list(range(count))
    assert ids[1, 2].tolist() == [5, *[i for i in range(count) if i != 5]][:count]
    assert best[0, 0].tolist() == [0.0, *[float("-inf")] * (count - 1)]
