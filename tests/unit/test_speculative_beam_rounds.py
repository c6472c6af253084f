"""Speculative beam search equals plain beam search whatever the drafter, on a verifier that notices wrong slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.decoding.beam_search import BeamSearch
from spec2seq.decoding.loop import Decoder
from spec2seq.decoding.search_choice import make_search
from spec2seq.decoding.speculative_beam import SpeculativeBeamSearch
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.errors import OptionError
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import ConstantDrafter, OracleDrafter, RandomDrafter, TableVerifier, WrongDrafter, tiny_config
from spec2seq.types import Acceptance, DecoderOutput, DraftBlock, Prefix, SourceBatch, TensorScores

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.interfaces import Choose, Drafter
    from spec2seq.types import DecodedRequest

SOURCES = [[5, 6, 7, 2], [9, 2], [11, 12, 13, 14, 15, 2], [20, 21, 2], [30, 31, 32, 2], [8, 9, 10, 40, 41, 2]]
DRAFTERS = ["oracle", "wrong", "random", "constant_eos", "constant_pad", "prompt_lookup", "small_model", "itself"]
LIMIT = 18
DEFAULTS: dict[str, Any] = {"eos_token_id": [2, 7, 33], "max_new_tokens": LIMIT, "output_scores": True}


def run(
    verifier: TableVerifier,
    drafter: Drafter | None = None,
    *,
    max_rows: int = 12,
    sources: list[list[int]] = SOURCES,
    prompts: list[list[int]] | None = None,
    budgets: list[int] | None = None,
    **options: Any,
) -> list[DecodedRequest]:
    resolved = resolve_options({}, verifier.config, None, {**DEFAULTS, **options})
    decoder = Decoder(verifier, drafter, max_rows=max_rows)
    requests = decoder.add(SourceBatch.from_lists(sources, 1), resolved, prompts=prompts, budgets=budgets)
    while decoder.alive:
        decoder.step()
    return [decoder.result(request) for request in requests]


def speculate(verifier: TableVerifier, drafter: Drafter, **settings: Any) -> list[DecodedRequest]:
    return run(verifier, drafter, speculative_beams=True, **settings)


def make_drafter(kind: str, verifier: TableVerifier, plain: list[DecodedRequest]) -> Drafter:
    outputs = {tuple(row): result.hypotheses[0].token_ids for row, result in zip(SOURCES, plain, strict=True)}
    makers: dict[str, Callable[[], Drafter]] = {
        "oracle": lambda: OracleDrafter(outputs),
        "wrong": lambda: WrongDrafter(outputs),
        "random": lambda: RandomDrafter(seed=1, outputs=outputs),
        "constant_eos": lambda: ConstantDrafter(7),
        "constant_pad": lambda: ConstantDrafter(1),
        "prompt_lookup": lambda: PromptLookupDrafter(verifier.config),
        "small_model": lambda: SmallModelDrafter(TableVerifier(seed=3)),
        "itself": lambda: SmallModelDrafter(TableVerifier(seed=verifier.seed, context=verifier.context)),
    }
    return makers[kind]()


def assert_equal(actual: list[DecodedRequest], expected: list[DecodedRequest]) -> None:
    """Same outputs, scores, ends and numbers of steps."""
    for mine, plain in zip(actual, expected, strict=True):
        assert [h.token_ids for h in mine.hypotheses] == [h.token_ids for h in plain.hypotheses]
        assert [h.score for h in mine.hypotheses] == pytest.approx([h.score for h in plain.hypotheses], abs=1e-5)
        assert mine.finish_reason == plain.finish_reason
        assert mine.stats.num_rounds + mine.stats.num_free_steps == plain.stats.num_rounds
        assert mine.stats.num_tokens == plain.stats.num_tokens


@pytest.mark.parametrize("num_beams", [2, 4, 5])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_equals_plain_beam_search(kind: str, num_beams: int) -> None:
    verifier = TableVerifier(context=3)
    settings: dict[str, Any] = {
        "num_beams": num_beams,
        "num_return_sequences": num_beams,
        "early_stopping": True,
        "budgets": [LIMIT, 5, 11, 1, LIMIT, 14],
    }
    plain = run(verifier, **settings)
    assert len({result.stats.num_rounds for result in plain}) > 3, "the sources must end after different steps"
    for num_draft_tokens, max_rows in ((2, num_beams), (4, 3 * num_beams)):
        drafter = make_drafter(kind, verifier, plain)
        results = speculate(verifier, drafter, max_rows=max_rows, num_draft_tokens=num_draft_tokens, **settings)
        assert_equal(results, plain)


OPTIONS: dict[str, dict[str, Any]] = {
    "early": {"early_stopping": True},
    "never": {"early_stopping": "never", "length_penalty": 1.5},
    "short": {"length_penalty": -1.0},
    "no_end": {"eos_token_id": [], "max_new_tokens": 9},
    "ends_everywhere": {"eos_token_id": list(range(2, 30))},
    "min_new_tokens": {"min_new_tokens": 6},
    "forced_end": {"forced_eos_token_id": 7, "max_new_tokens": 5},
    "forced_first": {"forced_bos_token_id": 12, "length_penalty": 2.0},
    "no_repeat": {"no_repeat_ngram_size": 2},
    "repetition": {"repetition_penalty": 1.7},
    "bad_words": {"bad_words_ids": [[16], [8, 21], [31, 5, 6]]},
    "suppressed": {"suppress_tokens": [8, 16, 20], "renormalize_logits": True},
    "one_token": {"max_new_tokens": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name: str) -> None:
    verifier = TableVerifier(context=2)
    options = {"num_beams": 3, "num_return_sequences": 3, **OPTIONS[name]}
    plain = run(verifier, **options)
    for kind in ("random", "prompt_lookup", "itself"):
        results = speculate(verifier, make_drafter(kind, verifier, plain), num_draft_tokens=3, **options)
        assert_equal(results, plain)


def test_prompts_and_budgets_of_each_rows_own() -> None:
    verifier = TableVerifier(context=None)
    settings: dict[str, Any] = {
        "prompts": [[2], [2, 9, 9], [2, *[4, 5] * 40], [2], [2, 8], [3]],
        "budgets": [6, 1, 4, 17, 9, 12],
        "num_beams": 3,
        "num_return_sequences": 3,
    }
    processed = {
        "min_new_tokens": 4,
        "eos_token_id": [2, *range(20, 40)],
        "forced_eos_token_id": 33,
        "no_repeat_ngram_size": 2,
    }
    for options in ({}, processed):
        plain = run(verifier, **settings, **options)
        for kind, max_rows in (("oracle", 3), ("small_model", 6), ("itself", 64)):
            drafter = make_drafter(kind, verifier, plain)
            assert_equal(speculate(verifier, drafter, max_rows=max_rows, **settings, **options), plain)


def test_long_outputs_reuse_the_slots_of_dead_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 steps draft some 1500 prefixes; what stays is the hypotheses and what was drafted last."""
    verifier = TableVerifier(context=3)
    options: dict[str, Any] = {"num_beams": 4, "eos_token_id": [], "max_new_tokens": 100, "num_return_sequences": 4}
    plain = run(verifier, **options)
    widest = last = 0
    verify = verifier.decode

    def watch(*args: Any, **kwargs: Any) -> DecoderOutput:
        nonlocal widest, last
        widest, last = max(widest, int(kwargs["slots"].max())), max(last, int(args[1].max()))
        return verify(*args, **kwargs)

    monkeypatch.setattr(verifier, "decode", watch)
    results = speculate(verifier, make_drafter("itself", verifier, plain), num_draft_tokens=3, **options)
    assert_equal(results, plain)
    assert min(result.stats.num_drafted for result in results) > 700
    assert widest < 256
    assert last == 99, "nothing is asked about the last token"


@pytest.mark.parametrize("num_beams", [2, 4, 5])
def test_a_perfect_drafter_halves_the_calls(num_beams: int) -> None:
    """Drafted one token ahead by the verifier's own law, which never says pad, every call serves two steps."""
    verifier = TableVerifier(context=3)
    options = {"num_beams": num_beams, "suppress_tokens": [1], "renormalize_logits": True}
    plain = run(verifier, **options)
    drafter = make_drafter("itself", verifier, plain)
    num_calls = verifier.num_calls
    results = speculate(verifier, drafter, num_draft_tokens=1, max_rows=64, **options)
    for result, expected in zip(results, plain, strict=True):
        assert result.stats.num_rounds == -(-expected.stats.num_rounds // 2)
        assert result.stats.rounds_by_num_draft_tokens == [0, result.stats.num_rounds]
        assert result.stats.num_accepted >= result.stats.num_free_steps * (num_beams - 1)
    assert verifier.num_calls - num_calls == max(result.stats.num_rounds for result in results)


def test_deeper_drafts_save_more_calls_and_wrong_ones_none() -> None:
    verifier = TableVerifier(context=3)
    plain = run(verifier, num_beams=2)
    num_steps = sum(result.stats.num_rounds for result in plain)

    def num_rounds(kind: str, num_draft_tokens: int) -> int:
        drafter = make_drafter(kind, verifier, plain)
        results = speculate(verifier, drafter, num_beams=2, num_draft_tokens=num_draft_tokens)
        return sum(result.stats.num_rounds for result in results)

    assert num_rounds("itself", 4) < num_rounds("itself", 1) < 0.6 * num_steps
    assert num_rounds("oracle", 4) < 0.95 * num_steps
    assert num_rounds("constant_eos", 4) == num_steps


class Bookkeeper(SmallModelDrafter):
    """Compares what the loop tells its drafter with what it asks about afterwards.

    Its blocks have different lengths, and every second one begins with a token that is not what its law says.
    """

    known: torch.Tensor | None = None  # [R, T] what the rows' next prefixes begin with, as far as is_known says
    is_known: torch.Tensor
    block: DraftBlock

    def __init__(self, verifier: TableVerifier) -> None:
        super().__init__(verifier)
        self.num_accepted: list[int] = []

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        if self.known is not None:
            width = self.known.shape[1]
            assert bool(((prefix.ids[:, :width] == self.known) | ~self.is_known).all())
            assert bool((prefix.lengths >= self.is_known.sum(1)).all())
        block = super().propose(prefix, num_draft_tokens, choose)
        places = torch.arange(len(block.tokens))
        tokens = block.tokens.clone()
        tokens[:, 0] = (tokens[:, 0] + places % 2) % 50
        self.block = DraftBlock(tokens, block.lengths.clamp(max=places % 3))
        return self.block

    def select_rows(self, rows: torch.Tensor) -> None:
        super().select_rows(rows)
        if self.known is not None and len(rows):
            self.known, self.is_known = self.known[rows], self.is_known[rows]
        if hasattr(self, "block"):
            self.block = DraftBlock(self.block.tokens[rows], self.block.lengths[rows])

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        super().commit(prefix, acceptance, output)
        kept = acceptance.num_accepted
        assert bool((kept <= self.block.lengths).all())
        self.num_accepted += kept.tolist()
        width = int(prefix.lengths.max())
        self.known = torch.cat([prefix.ids[:, :width], torch.zeros(len(kept), 5, dtype=torch.long)], dim=1)
        offsets = torch.arange(self.block.num_slots)
        slots = prefix.lengths[:, None] + offsets.minimum(kept[:, None])
        self.known.scatter_(1, slots, torch.where(offsets < kept[:, None], self.block.tokens, 0))
        self.known.scatter_(1, (prefix.lengths + kept)[:, None], acceptance.next_tokens[:, None])
        self.is_known = torch.arange(self.known.shape[1]) <= (prefix.lengths + kept)[:, None]


def test_the_drafter_hears_what_became_of_its_rows() -> None:
    """`commit` names the rows' prefixes and how much of their own blocks came true."""
    verifier = TableVerifier(context=3)
    drafter = Bookkeeper(TableVerifier(context=3))
    settings: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": []}
    plain = run(verifier, **settings)
    assert_equal(speculate(verifier, drafter, num_draft_tokens=4, max_rows=64, **settings), plain)
    assert max(drafter.num_accepted) == 2


def test_broken_scores_end_their_source_and_leave_its_neighbours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers to the longest sources break after the fifth token, in the middle of a walk."""
    verifier = TableVerifier(context=3)
    options: dict[str, Any] = {"num_beams": 3, "eos_token_id": []}
    plain = run(verifier, **options)
    decode = verifier.decode

    def poisoned(tokens: torch.Tensor, positions: torch.Tensor, *args: Any, **kwargs: Any) -> DecoderOutput:
        values = decode(tokens, positions, *args, **kwargs).scores.logits().clone()
        values[(args[2].lengths[:, None] == 6) & (positions == 5)] = torch.nan
        return DecoderOutput(TensorScores(values))

    monkeypatch.setattr(verifier, "decode", poisoned)
    broken = run(verifier, **options)
    for kind in ("random", "itself"):
        for max_rows in (3, 64):
            drafter = make_drafter(kind, verifier, plain)
            results = speculate(verifier, drafter, num_draft_tokens=4, max_rows=max_rows, **options)
            assert_equal(results, broken)
            is_broken = [len(source) == 6 for source in SOURCES]
            assert [result.finish_reason == "error" for result in results] == is_broken
            assert "NaN or infinite scores" in (results[2].error or "")
            healthy = [i for i, broken in enumerate(is_broken) if not broken]
            assert_equal([results[i] for i in healthy], [plain[i] for i in healthy])


def test_broken_scores_that_nobody_asks_about_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a pad is NaN, and pads are drafted all the time but never among the hypotheses."""
    verifier = TableVerifier(context=3)
    options: dict[str, Any] = {"num_beams": 3, "suppress_tokens": [1]}
    plain = run(verifier, **options)
    decode = verifier.decode
    num_poisoned = 0

    def poisoned(tokens: torch.Tensor, *args: Any, **kwargs: Any) -> DecoderOutput:
        nonlocal num_poisoned
        values = decode(tokens, *args, **kwargs).scores.logits().clone()
        values[tokens == 1] = torch.nan
        num_poisoned += int((tokens == 1).sum())
        return DecoderOutput(TensorScores(values))

    monkeypatch.setattr(verifier, "decode", poisoned)
    assert_equal(speculate(verifier, ConstantDrafter(1), num_draft_tokens=2, **options), plain)
    assert num_poisoned > 50


def test_a_cancelled_request_leaves_the_others_alone() -> None:
    verifier = TableVerifier(context=3)
    plain = run(verifier, num_beams=3)
    options = resolve_options({}, verifier.config, None, {**DEFAULTS, "num_beams": 3, "speculative_beams": True})
    decoder = Decoder(verifier, make_drafter("itself", verifier, plain), max_rows=64)
    requests = decoder.add(SourceBatch.from_lists(SOURCES, 1), options)
    decoder.step()
    decoder.cancel(requests[1])
    while decoder.alive:
        decoder.step()
    results = [decoder.result(request) for request in requests]
    assert results.pop(1).finish_reason == "cancelled"
    assert_equal(results, plain[:1] + plain[2:])


class TestChoiceOfTheSearch:
    VERIFIER = TableVerifier()

    def search(self, drafter: Drafter | None, **options: Any) -> object:
        resolved = resolve_options({}, self.VERIFIER.config, None, {"num_beams": 3, **options})
        return make_search(self.VERIFIER, drafter, resolved)

    def test_speculation_is_chosen_only_where_it_is_asked_for(self) -> None:
        assert type(self.search(ConstantDrafter(5))) is BeamSearch
        assert type(self.search(None, speculative_beams=True)) is BeamSearch
        assert type(self.search(ConstantDrafter(5), speculative_beams=True, num_draft_tokens=0)) is BeamSearch
        assert type(self.search(ConstantDrafter(5), speculative_beams=True)) is SpeculativeBeamSearch

    @pytest.mark.parametrize(("said", "expected"), [("auto", 2), (1, 1), (7, 7)])
    def test_depth(self, said: str | int, expected: int) -> None:
        search = self.search(ConstantDrafter(5), speculative_beams=True, num_draft_tokens=said)
        assert isinstance(search, SpeculativeBeamSearch)
        assert search.num_draft_tokens == expected

    def test_a_drafter_of_shorter_blocks_decides(self) -> None:
        drafter = ConstantDrafter(5)
        drafter.default_num_draft_tokens = 1
        search = self.search(drafter, speculative_beams=True)
        assert isinstance(search, SpeculativeBeamSearch)
        assert search.num_draft_tokens == 1

    def test_a_drafter_that_needs_hidden_states_is_refused(self) -> None:
        drafter = ConstantDrafter(5)
        drafter.hidden_layers = (1,)
        options = resolve_options({}, self.VERIFIER.config, None, {"num_beams": 3, "speculative_beams": True})
        with pytest.raises(OptionError, match="hidden states and cannot draft for beams; pass speculative_beams=False"):
            Decoder(self.VERIFIER, drafter).add(SourceBatch.from_lists(SOURCES, 1), options)

    def test_without_beams_the_option_warns(self) -> None:
        with pytest.warns(UserWarning, match="speculative_beams=True has no effect without beam search"):
            resolve_options({}, tiny_config(), None, {"speculative_beams": True})

    def test_a_source_counts_as_all_its_beams(self) -> None:
        """Three beams and room for seven rows: two sources at a time."""
        verifier = TableVerifier(context=3)
        sizes = []
        decode = verifier.decode

        def watch(tokens: torch.Tensor, *args: Any, **kwargs: Any) -> DecoderOutput:
            sizes.append(len(tokens))
            return decode(tokens, *args, **kwargs)

        verifier.decode = watch  # type: ignore[method-assign]
        speculate(verifier, ConstantDrafter(5), num_beams=3, max_rows=7)
        assert max(sizes) == 2
