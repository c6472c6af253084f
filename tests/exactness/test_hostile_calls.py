"""A decoder used in every way but the usual one: cancelled, mixed, idle, interleaved, given too little or nonsense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.decoding.loop import Decoder
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.errors import InputError, OptionError
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import ConstantDrafter, OracleDrafter, RandomDrafter, TableVerifier
from spec2seq.types import DecoderOutput, DraftBlock, SourceBatch
from tests.exactness.reference import Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Choose, Drafter, Verifier
    from spec2seq.types import Emission, Prefix

PAD = 1


def make_sources(num_rows: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (num_rows,), generator=generator).tolist()
    return [torch.randint(4, 50, (n,), generator=generator).tolist() for n in lengths]


def batch(*sources: Sequence[int]) -> SourceBatch:
    return SourceBatch.from_lists(sources, PAD)


def resolve(verifier: Verifier, **options: Any) -> ResolvedOptions:
    return resolve_options({}, verifier.config, None, {"eos_token_id": [], "max_new_tokens": 20, **options})


def finish(decoder: Decoder) -> list[Emission]:
    told: list[Emission] = []
    while decoder.alive:
        told += decoder.step()
    return told


def outputs_of(decoder: Decoder, requests: Sequence[int]) -> list[list[int]]:
    return [decoder.result(request).hypotheses[0].token_ids for request in requests]


def plain(verifier: Verifier, sources: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
    """What each source gives alone, without any drafter."""
    outputs = []
    for source in sources:
        decoder = Decoder(verifier)
        requests = decoder.add(batch(source), resolve(verifier, **options))
        finish(decoder)
        outputs += outputs_of(decoder, requests)
    return outputs


class ScriptedLengths(RandomDrafter):
    """Random blocks whose lengths come in turns: none at all, one row only, ragged, all of them."""

    turn = 0

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        draft = super().propose(prefix, num_draft_tokens, choose)
        tokens = draft.tokens.masked_fill(torch.arange(num_draft_tokens) >= draft.lengths[:, None], 7)
        lengths = [
            torch.zeros_like(draft.lengths),
            (torch.arange(len(draft.lengths)) == self.turn % len(draft.lengths)) * num_draft_tokens,
            draft.lengths,
            torch.full_like(draft.lengths, num_draft_tokens),
        ][self.turn % 4]
        self.turn += 1
        return DraftBlock(tokens, lengths)


@pytest.fixture(scope="module")
def model() -> TableVerifier:
    return TableVerifier(context=None)


@pytest.fixture(scope="module")
def expected(model: TableVerifier) -> dict[tuple[int, ...], list[int]]:
    """Plain outputs of twelve sources."""
    sources = make_sources(12)
    return {tuple(source): output for source, output in zip(sources, plain(model, sources), strict=True)}


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pair = Pair(tmp_path_factory.mktemp("bart"), "bart", seed=27, position_scale=1.5)
    pair.forget_generation_settings()
    return pair


Answers = dict[tuple[int, ...], list[int]]


class TestCancelling:
    @pytest.mark.parametrize("kind", ["none", "oracle", "random", "prompt_lookup", "small_model"])
    def test_waiting_and_live_requests_go_and_the_others_never_notice(
        self, model: TableVerifier, expected: Answers, kind: str
    ) -> None:
        makers: dict[str, Callable[[], Drafter | None]] = {
            "none": lambda: None,
            "oracle": lambda: OracleDrafter(expected),
            "random": lambda: RandomDrafter(outputs=expected),
            "prompt_lookup": lambda: PromptLookupDrafter(model.config),
            "small_model": lambda: SmallModelDrafter(TableVerifier(context=3)),
        }
        decoder = Decoder(model, makers[kind](), max_rows=6)
        requests = decoder.add(batch(*expected), resolve(model, num_draft_tokens=3))
        told = decoder.step() + decoder.step()
        gone = {requests[i] for i in (0, 3, 5, 7, 11)}  # the last two are waiting
        for request in gone:
            decoder.cancel(request)
            decoder.cancel(request)
        decoder.cancel(99)
        told += finish(decoder)
        for request, output in zip(requests, expected.values(), strict=True):
            result = decoder.result(request)
            mine = [emission for emission in told if emission.request == request]
            ids = [token_id for emission in mine for token_id in emission.token_ids]
            assert [emission.finish_reason for emission in mine if emission.finish_reason] == [result.finish_reason]
            assert result.finish_reason == ("cancelled" if request in gone else "length")
            assert result.hypotheses[0].token_ids == ids
            assert ids == (output[: len(ids)] if request in gone else output)
            assert len(ids) < len(output) or request not in gone

    def test_everything_can_go_and_others_come(self, model: TableVerifier, expected: Answers) -> None:
        decoder = Decoder(model, OracleDrafter(expected), max_rows=4)
        options = resolve(model, num_draft_tokens=3)
        for _ in range(2):
            requests = decoder.add(batch(*expected), options)
            decoder.step()
            for request in requests:
                decoder.cancel(request)
            told = finish(decoder)
            assert [emission.finish_reason for emission in told] == ["cancelled"] * 12
        last = decoder.add(batch(*expected), options)
        finish(decoder)
        assert outputs_of(decoder, last) == list(expected.values())

    def test_what_is_already_done_cannot_be_cancelled(self, model: TableVerifier) -> None:
        """A forced first token can be all of an output; the next step tells it, once."""
        decoder = Decoder(model)
        (request,) = decoder.add(batch([5, 6]), resolve(model, forced_bos_token_id=9, max_new_tokens=1))
        decoder.cancel(request)
        assert [(told.token_ids, told.finish_reason) for told in finish(decoder)] == [([9], "length")]
        assert decoder.result(request).finish_reason == "length"


class TestIdle:
    def test_steps_after_the_end_do_nothing(self, expected: Answers) -> None:
        model = TableVerifier(context=None)
        decoder = Decoder(model, OracleDrafter(expected))
        assert not decoder.alive
        assert decoder.step() == []
        for _ in range(2):
            requests = decoder.add(batch(*expected), resolve(model, num_draft_tokens=4))
            finish(decoder)
            num_calls = model.num_calls
            assert decoder.step() == decoder.step() == []
            assert not decoder.alive
            assert model.num_calls == num_calls
            assert outputs_of(decoder, requests) == list(expected.values())
            with pytest.raises(KeyError):
                decoder.result(requests[0])

    def test_no_sources_are_no_requests(self, model: TableVerifier) -> None:
        decoder = Decoder(model)
        assert decoder.add(batch(), resolve(model)) == []
        assert not decoder.alive


class TestMixing:
    def test_requests_with_other_options_join_while_a_batch_is_live(self, model: TableVerifier) -> None:
        sources = make_sources(4, seed=3)
        said: list[dict[str, Any]] = [
            {"num_draft_tokens": 3},
            {"num_beams": 3},
            {"num_draft_tokens": 0, "max_new_tokens": 7},
            {"num_beams": 2, "speculative_beams": True, "num_draft_tokens": 3},
            {"do_sample": True, "seed": 4, "num_draft_tokens": 2},
            {"num_draft_tokens": 6, "no_repeat_ngram_size": 2, "eos_token_id": [8, 9]},
            {"num_draft_tokens": 3},
            {"suppress_tokens": [11, 12], "num_draft_tokens": 5},
        ]
        decoder = Decoder(model, RandomDrafter(seed=5, vocab_size=50), max_rows=12)
        added = []
        for options in said:
            added.append(decoder.add(batch(*sources), resolve(model, **options)))
            decoder.step()
        finish(decoder)
        for options, requests in zip(said, added, strict=True):
            assert outputs_of(decoder, requests) == plain(model, sources, **options), options

    def test_several_decoders_share_a_model_and_take_turns(self, bart: Pair) -> None:
        sources = bart.sources(5, seed=8)
        said: list[dict[str, Any]] = [{}, {"suppress_tokens": [8, 21]}, {"num_beams": 2}, {"bad_words_ids": [[16]]}]
        expected = [plain(bart.verifier, sources, **options) for options in said]
        decoders = [Decoder(bart.verifier, PromptLookupDrafter(bart.config), max_rows=n) for n in (2, 8, 4, 3)]
        added = [
            decoder.add(batch(*sources), resolve(bart.verifier, num_draft_tokens=4, **options))
            for decoder, options in zip(decoders, said, strict=True)
        ]
        while any(decoder.alive for decoder in decoders):
            for decoder in decoders:
                decoder.step()
        got = [outputs_of(decoder, requests) for decoder, requests in zip(decoders, added, strict=True)]
        assert got == expected
        assert got[0] != got[1]


class TestBudgetsAndStarts:
    @pytest.mark.parametrize("kind", ["none", "oracle", "constant", "prompt_lookup", "small_model"])
    def test_many_rows_that_may_say_one_token(self, model: TableVerifier, expected: Answers, kind: str) -> None:
        drafter: Drafter | None = {
            "none": None,
            "oracle": OracleDrafter(expected),
            "constant": ConstantDrafter(5),
            "prompt_lookup": PromptLookupDrafter(model.config),
            "small_model": SmallModelDrafter(model),
        }[kind]
        rows = list(expected) * 12
        budgets = [1 if i % 7 else 3 for i in range(len(rows))]
        decoder = Decoder(model, drafter, max_rows=50)
        requests = decoder.add(batch(*rows), resolve(model, num_draft_tokens=5), budgets=budgets)
        finish(decoder)
        wanted = [expected[row][:budget] for row, budget in zip(rows, budgets, strict=True)]
        assert outputs_of(decoder, requests) == wanted

    def test_blocks_of_any_lengths_also_none(self, model: TableVerifier, expected: Answers) -> None:
        widths: list[int] = []

        class Watching(TableVerifier):
            def decode(self, tokens: Tensor, *args: Any, **kwargs: Any) -> DecoderOutput:
                widths.append(tokens.shape[1])
                return super().decode(tokens, *args, **kwargs)

        watching = Watching(context=None)
        decoder = Decoder(watching, ScriptedLengths(seed=3, outputs=expected, chance=0.9))
        requests = decoder.add(batch(*expected), resolve(model, num_draft_tokens=4))
        finish(decoder)
        assert outputs_of(decoder, requests) == list(expected.values())
        assert widths[:2] == [1, 5], "slots that no row uses are not computed"

    @pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"no_repeat_ngram_size": 2, "min_new_tokens": 6}])
    def test_ragged_prompts_equal_transformers(self, bart: Pair, options: dict[str, Any]) -> None:
        sources = bart.sources(4, seed=9)
        prompts = [[2], [2, 9, 8], [2, 7, 7, 5, 12, 30, 4, 11], [2, 6]]
        options = {"eos_token_id": [2, 16], "forced_eos_token_id": 2, "max_new_tokens": 12, **options}
        expected = []
        for source, prompt in zip(sources, prompts, strict=True):
            (row,) = bart.transformers_ids([source], decoder_input_ids=torch.tensor([prompt]), **options)
            expected.append(row[len(prompt) - 1 :])
        drafters: list[Drafter | None] = [None, PromptLookupDrafter(bart.config), SmallModelDrafter(bart.verifier)]
        for drafter in [*drafters, RandomDrafter(seed=2), ConstantDrafter(16)]:
            for max_rows in (3, 64):
                got = bart.ids(sources, drafter, prompts=prompts, max_rows=max_rows, num_draft_tokens=4, **options)
                assert got == expected

    def test_first_tokens_forced_for_some_rows_and_not_for_others(self, bart: Pair) -> None:
        sources = bart.sources(4, seed=10)
        forced = [None, 9, None, 30]
        expected = []
        for source, token in zip(sources, forced, strict=True):
            said = {} if token is None else {"forced_bos_token_id": token}
            expected += bart.transformers_ids([source], eos_token_id=2, max_new_tokens=12, **said)
        for drafter in (None, ConstantDrafter(9), PromptLookupDrafter(bart.config)):
            decoder = Decoder(bart.verifier, drafter)
            options = resolve(bart.verifier, eos_token_id=2, max_new_tokens=12, num_draft_tokens=3)
            requests = decoder.add(batch(*sources), options, forced_first_tokens=forced)
            finish(decoder)
            results = [decoder.result(request) for request in requests]
            assert [result.hypotheses[0].token_ids for result in results] == expected
            assert [result.stats.num_forced for result in results] == [0, 1, 0, 1]

    @pytest.mark.parametrize("budget", [1, 2, 3])
    @pytest.mark.parametrize("num_beams", [1, 3])
    def test_both_ends_forced_leave_little_between(self, bart: Pair, budget: int, num_beams: int) -> None:
        sources = bart.sources(3, seed=10)
        said = {"forced_bos_token_id": 9, "forced_eos_token_id": 2, "eos_token_id": 2}
        options = {**said, "max_new_tokens": budget, "num_beams": num_beams}
        expected = bart.transformers_ids(sources, **options)
        assert all(row[-1] == 2 and len(row) <= budget for row in expected)
        for drafter in (None, ConstantDrafter(9), RandomDrafter()):
            assert bart.ids(sources, drafter, num_draft_tokens=4, **options) == expected


class TestNonsense:
    @pytest.mark.parametrize(
        ("said", "message"),
        [
            ({"budgets": [5, 0]}, r"a budget of 0 new tokens is not allowed: use 1 or more"),
            ({"budgets": [-2, 5]}, r"a budget of -2 new tokens"),
            ({"prompts": [[2], []]}, r"a prompt of 0 tokens .* decoder start token"),
            ({"prompts": [[2, 50], [2]]}, r"a prompt holds 50, but the target vocabulary has 50 tokens"),
            (
                {"forced_first_tokens": [None, 77]},
                r"a forced first token is 77, but the target vocabulary",
            ),
            ({"budgets": [5]}, r"budgets has 1 entries for 2 sources"),
            ({"prompts": []}, r"prompts has 0 entries for 2 sources"),
            ({"forced_first_tokens": [9] * 3}, r"forced_first_tokens has 3 entries for 2 sources"),
            ({"seeds": [1]}, r"seeds has 1 entries for 2 sources"),
        ],
    )
    def test_it_is_refused_before_anything_is_queued(
        self, model: TableVerifier, expected: Answers, said: dict[str, Any], message: str
    ) -> None:
        decoder = Decoder(model)
        with pytest.raises((InputError, OptionError), match=message):
            decoder.add(batch([5], [6, 7]), resolve(model), **said)
        assert not decoder.alive
        requests = decoder.add(batch(*expected), resolve(model))
        finish(decoder)
        assert outputs_of(decoder, requests) == list(expected.values())

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (
                SourceBatch(torch.full((2, 3), 7), torch.tensor([3, 0])),
                "a source has 0 tokens; leave empty sources out",
            ),
            (batch([5], [50]), "a source holds 50, but the source vocabulary has 50 tokens"),
            (batch([5], [-1, 4]), "a source holds -1, but the source vocabulary"),
            (batch([5], [4] * 200), "a source of 200 tokens exceeds the 128 positions"),
        ],
    )
    def test_sources_that_no_model_takes_are_refused_too(self, bart: Pair, source: SourceBatch, message: str) -> None:
        decoder = Decoder(bart.verifier)
        with pytest.raises(InputError, match=message):
            decoder.add(source, resolve(bart.verifier))
        assert not decoder.alive

    def test_padding_may_hold_anything(self, bart: Pair) -> None:
        decoder = Decoder(bart.verifier)
        source = SourceBatch(torch.tensor([[5, 6, 2], [7, 2, 49]]), torch.tensor([3, 2]))
        requests = decoder.add(source, resolve(bart.verifier, max_new_tokens=6))
        finish(decoder)
        assert outputs_of(decoder, requests) == plain(bart.verifier, [[5, 6, 2], [7, 2]], max_new_tokens=6)

    def test_the_callers_tensor_may_change_while_its_rows_wait(self, model: TableVerifier, expected: Answers) -> None:
        decoder = Decoder(model, max_rows=2)
        source = batch(*expected)
        requests = decoder.add(source, resolve(model))
        source.ids.fill_(9)
        finish(decoder)
        assert outputs_of(decoder, requests) == list(expected.values())

    def test_tiny_room_for_rows_and_tokens(self, model: TableVerifier, expected: Answers) -> None:
        """A single request is always let in."""
        decoder = Decoder(model, OracleDrafter(expected), max_rows=1, max_batch_tokens=1)
        requests = decoder.add(batch(*expected), resolve(model, num_draft_tokens=25))
        finish(decoder)
        assert outputs_of(decoder, requests) == list(expected.values())
