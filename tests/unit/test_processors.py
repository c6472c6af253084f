"""Processors against transformers' own, applied to one query of one row at a time."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from spec2seq.config import ModelConfig
from spec2seq.decoding.processors import Processors, QueryContext, build_processors
from spec2seq.generation_options import ResolvedOptions
from spec2seq.option_resolution import resolve_options

VOCAB = 20
MODEL = ModelConfig(
    "marian", VOCAB, VOCAB, 16, 2, 2, 2, 2, 8, 32, 32, "relu", "sinusoidal",
    pad_token_id=1, decoder_start_token_id=0, eos_token_ids=(2,),
)  # fmt: skip


def options_of(**said) -> ResolvedOptions:
    return resolve_options({}, MODEL, None, {"max_new_tokens": 12, **said})


def random_context(generator: random.Random, num_rows: int, num_queries: int) -> QueryContext:
    """Ragged rows over a few ids, so that n-grams repeat; the rows' drafts have different lengths."""
    committed = [generator.randint(1, 9) for _ in range(num_rows)]
    drafted = [generator.randint(0, num_queries - 1) for _ in range(num_rows)]
    prompts = [generator.randint(1, length) for length in committed]
    # A query at the last position a row may have, for forced ends.
    limits = [length + generator.randint(0, drafted[i]) + 1 for i, length in enumerate(committed)]
    width = max(committed) + num_queries
    offsets = torch.arange(num_queries)
    return QueryContext(
        tokens=torch.tensor([[generator.choice([2, 3, 4, 5, 6]) for _ in range(width)] for _ in range(num_rows)]),
        lengths=torch.tensor(committed)[:, None] + offsets,
        prompt_lengths=torch.tensor(prompts),
        max_lengths=torch.tensor(limits),
        valid=offsets <= torch.tensor(drafted)[:, None],
    )


def references(options: ResolvedOptions, prompt_length: int, max_length: int) -> list[hf.LogitsProcessor]:
    """transformers' processors for a row, in transformers' order; what these options leave out does not appear."""
    eos = list(options.eos_token_ids)
    chain: list[hf.LogitsProcessor] = []
    if options.repetition_penalty != 1.0:
        chain.append(hf.RepetitionPenaltyLogitsProcessor(options.repetition_penalty))
    if options.no_repeat_ngram_size:
        chain.append(hf.NoRepeatNGramLogitsProcessor(options.no_repeat_ngram_size))
    if options.bad_words_ids:
        chain.append(hf.NoBadWordsLogitsProcessor([list(word) for word in options.bad_words_ids], eos))
    if options.min_length:
        chain.append(hf.MinLengthLogitsProcessor(options.min_length, eos))
    if options.min_new_tokens:
        chain.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, options.min_new_tokens, eos))
    if options.forced_eos_token_ids:
        chain.append(hf.ForcedEOSTokenLogitsProcessor(max_length, list(options.forced_eos_token_ids)))
    if options.suppress_tokens:
        chain.append(hf.SuppressTokensLogitsProcessor(list(options.suppress_tokens)))
    return chain


def expected(logits: Tensor, context: QueryContext, options: ResolvedOptions, is_beam: bool) -> Tensor:
    result = torch.full_like(logits, float("nan"))
    for row, query in context.valid.nonzero().tolist():
        scores = logits[row, query][None].clone()
        scores = scores.log_softmax(-1) if is_beam else scores
        prefix = context.tokens[row, : context.lengths[row, query]][None]
        for process in references(options, int(context.prompt_lengths[row]), int(context.max_lengths[row])):
            scores = process(prefix, scores)
        if is_beam and options.renormalize_logits:
            scores = hf.LogitNormalization()(prefix, scores)
        result[row, query] = scores[0]
    return result


def actual(logits: Tensor, context: QueryContext, processors: Processors) -> Tensor:
    """As the loop does it: the engine adds the static bans, the processors do the rest."""
    logits = logits.clone()
    logits[..., list(processors.static_bans)] = float("-inf")
    if processors.is_empty:
        return logits.log_softmax(-1) if processors.is_beam else logits
    return processors(logits, context)


def assert_equals_transformers(options: ResolvedOptions, seed: int, num_queries: int, is_beam: bool) -> None:
    context = random_context(random.Random(seed), num_rows=5, num_queries=num_queries)
    logits = torch.randn(5, num_queries, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    result = actual(logits, context, build_processors(options, is_beam=is_beam))
    wanted = expected(logits, context, options, is_beam)
    valid = context.valid
    torch.testing.assert_close(result[valid], wanted[valid], rtol=1e-5, atol=1e-5)
    if not is_beam:
        assert torch.equal(result[valid], wanted[valid])


EACH = {
    "nothing": {},
    "penalty above 1": {"repetition_penalty": 1.7},
    "penalty below 1": {"repetition_penalty": 0.6},
    "1-grams": {"no_repeat_ngram_size": 1},
    "2-grams": {"no_repeat_ngram_size": 2},
    "3-grams": {"no_repeat_ngram_size": 3},
    "n-grams longer than any prefix": {"no_repeat_ngram_size": 40},
    "single bad words": {"bad_words_ids": [[3], [19]]},
    "bad sequences": {"bad_words_ids": [[3, 4], [4, 5], [5, 3, 6], [2, 2], [3, 4, 5, 6, 7], [3], [2]]},
    "sequences longer than some prefixes": {"bad_words_ids": [[token, token, 7] for token in (2, 3, 4, 5, 6)]},
    "min length": {"min_length": 8, "eos_token_id": [2, 5]},
    "min new tokens": {"min_new_tokens": 4, "eos_token_id": [2, 5]},
    "forced end": {"forced_eos_token_id": 2},
    "several forced ends": {"forced_eos_token_id": [2, 5]},
    "suppressed": {"suppress_tokens": [4, 7, 11]},
}  # fmt: skip


@pytest.mark.parametrize("is_beam", [False, True], ids=["greedy", "beam"])
@pytest.mark.parametrize("name", EACH)
def test_each_equals_transformers(name, is_beam):
    for seed in range(3):
        for num_queries in (1, 6):
            assert_equals_transformers(options_of(**EACH[name]), seed, num_queries, is_beam)


@pytest.mark.parametrize("renormalize", [False, True], ids=["", "renormalize"])
@pytest.mark.parametrize("is_beam", [False, True], ids=["greedy", "beam"])
def test_combinations_equal_transformers(is_beam, renormalize):
    generator = random.Random(0)
    names = [name for name in EACH if name != "nothing"]
    for seed in range(40):
        said: dict[str, object] = {}
        for name in generator.sample(names, generator.randint(2, 6)):
            said |= EACH[name]
        if "min_length" in said:
            said.pop("min_new_tokens", None)
        options = options_of(**said, renormalize_logits=renormalize)
        assert_equals_transformers(options, seed, generator.choice([1, 6]), is_beam)


def test_forced_end_stands_above_bad_words_and_below_suppressed_tokens():
    options = options_of(
        forced_eos_token_id=[2, 5], eos_token_id=2, bad_words_ids=[[5]], suppress_tokens=[2], min_length=99,
        max_new_tokens=120,
    )  # fmt: skip
    for is_beam in (False, True):
        context = QueryContext(
            torch.tensor([[0, 3, 4]]), torch.tensor([[3]]), torch.tensor([1]), torch.tensor([4]), torch.tensor([[True]])
        )
        result = actual(torch.randn(1, 1, VOCAB), context, build_processors(options, is_beam=is_beam))
        assert result[0, 0, 5] == 0.0
        assert result[0, 0].isneginf().sum() == VOCAB - 1


def test_static_bans_are_left_to_the_engine():
    options = options_of(bad_words_ids=[[3], [4, 5], [3]], suppress_tokens=[7])
    greedy = build_processors(options, is_beam=False)
    assert greedy.static_bans == (3, 7)
    assert len(greedy.dynamic) == 1  # the sequence
    assert build_processors(options_of(bad_words_ids=[[3]]), is_beam=False).is_empty


@pytest.mark.parametrize(
    ("said", "is_static"),
    [
        ({}, False),
        ({"renormalize_logits": True}, True),
        ({"renormalize_logits": True, "repetition_penalty": 2.0}, False),
    ],
)
def test_beam_search_bans_in_the_engine_only_where_that_is_the_same(said, is_static):
    options = options_of(bad_words_ids=[[3]], suppress_tokens=[7], **said)
    assert build_processors(options, is_beam=True).static_bans == ((3, 7) if is_static else ())
    assert_equals_transformers(options, seed=1, num_queries=6, is_beam=True)


def test_scores_of_queries_that_do_not_exist_stay():
    said = {"repetition_penalty": 1.7, "no_repeat_ngram_size": 1, "min_new_tokens": 9, "forced_eos_token_id": 2}
    options = options_of(**said, bad_words_ids=[[3, 4], [4, 3], [3, 3], [4, 4]])
    context = random_context(random.Random(3), num_rows=8, num_queries=6)
    context.max_lengths.copy_(context.lengths[:, -1] + 1)
    logits = torch.randn(8, 6, VOCAB)
    result = actual(logits, context, build_processors(options, is_beam=False))
    assert not context.valid.all()
    assert torch.equal(result[~context.valid], logits[~context.valid])
    assert not torch.equal(result[context.valid], logits[context.valid])


def test_stale_ids_behind_a_prefix_change_nothing():
    options = options_of(repetition_penalty=1.7, no_repeat_ngram_size=2, bad_words_ids=[[3, 4], [5, 6, 7]])
    context = random_context(random.Random(4), num_rows=6, num_queries=3)
    logits = torch.randn(6, 3, VOCAB)
    wanted = actual(logits, context, build_processors(options, is_beam=False))
    longest = (context.lengths * context.valid).amax(1, keepdim=True)
    is_stale = torch.arange(context.tokens.shape[1]) >= longest
    assert is_stale.any()
    context.tokens.masked_fill_(is_stale, 9)
    result = actual(logits, context, build_processors(options, is_beam=False))
    assert torch.equal(result[context.valid], wanted[context.valid])


def test_the_forced_end_can_be_left_to_the_caller():
    options = options_of(forced_eos_token_id=2)
    assert build_processors(options, is_beam=False, forces_eos=False).is_empty
    assert not build_processors(options, is_beam=False).is_empty
