"""Situations that other systems got wrong: ends, special tokens, short and long rows, companies, broken numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.decoding.loop import Decoder
from spec2seq.decoding.stats import is_degenerate
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.drafters.spec import SpecDrafter
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import ConstantDrafter, OracleDrafter, RandomDrafter, TableVerifier, WrongDrafter, tiny_config
from spec2seq.types import DecoderOutput, SourceBatch, TensorScores
from tests.exactness.reference import Pair, cut_after

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from spec2seq.interfaces import Choose, Drafter, Verifier
    from spec2seq.types import DecodedRequest, DraftBlock, Emission, Prefix

PAD, UNKNOWN = 1, 3
SOURCES = [[4, 9, 7], [5, 6, 7, 8, 9, 4, 7], [11, 7], [30, 31, 30, 31, 30, 7], [4, 9, 9, 7]]
SOURCES_OF_FEW_IDS = [[4, 5, 7], [5, 6, 7, 8, 3, 4, 7], [8, 7], [6, 5, 6, 5, 6, 7]]
# weights with which the outputs hold the pad and the unknown token among others
SEEDS_OF_PADS = {"t5": 10, "m2m100": 55, "bart": 13}


def run(
    verifier: Verifier,
    sources: Sequence[Sequence[int]],
    drafter: Drafter | None = None,
    *,
    budgets: Sequence[int] | None = None,
    told: list[Emission] | None = None,
    **options: Any,
) -> list[DecodedRequest]:
    """Results in the order of the sources; `told` is given all emissions."""
    resolved = resolve_options({}, verifier.config, None, options)
    decoder = Decoder(verifier, drafter)
    requests = decoder.add(SourceBatch.from_lists(sources, PAD), resolved, budgets=budgets)
    while decoder.alive:
        emissions = decoder.step()
        if told is not None:
            told += emissions
    return [decoder.result(request) for request in requests]


def texts(results: Sequence[DecodedRequest]) -> list[list[int]]:
    return [result.hypotheses[0].token_ids for result in results]


def right_answers(sources: Sequence[Sequence[int]], outputs: Sequence[list[int]]) -> dict[tuple[int, ...], list[int]]:
    return {tuple(source): output for source, output in zip(sources, outputs, strict=True)}


class WatchedLookup(PromptLookupDrafter):
    """Remembers the blocks that it proposed for one row."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.blocks: list[list[int]] = []

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        draft = super().propose(prefix, num_draft_tokens, choose)
        self.blocks.append(draft.tokens[0, : int(draft.lengths[0])].tolist())
        return draft


class CountingVerifier(TableVerifier):
    """Counts the rows of every call."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.rows: list[int] = []

    def decode(self, tokens: Tensor, *args: Any, **kwargs: Any) -> DecoderOutput:
        self.rows.append(len(tokens))
        return super().decode(tokens, *args, **kwargs)


class ShortNetwork:
    """A `DraftNetwork` that knows the right answers, with room for 41 tokens."""

    config = SimpleNamespace(block_size=5, max_positions=41)

    def __init__(self, output: Sequence[int]) -> None:
        self.output = torch.tensor(output)

    def encode(self, source: SourceBatch) -> SourceBatch:
        return source

    def draft(self, prefix: Prefix, num_draft_tokens: int, source: Any, wanted: Any) -> TensorScores:
        assert int(prefix.lengths.max()) - 1 + num_draft_tokens <= 41
        tokens = self.output[prefix.lengths[:, None] - 1 + torch.arange(num_draft_tokens)]
        return TensorScores(torch.nn.functional.one_hot(tokens, 50).float())


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    pair = Pair(tmp_path_factory.mktemp("bart"), "bart", seed=27, position_scale=1.5)
    pair.forget_generation_settings()
    return pair


class TestEnds:
    def test_a_stream_ends_with_the_end_wherever_it_lies_in_a_block(self) -> None:
        """transformers issue 47912: tokens behind an accepted end went to the streamer."""
        verifier = TableVerifier(context=None)
        outputs = texts(run(verifier, SOURCES, eos_token_id=[], max_new_tokens=30))
        drafter_outputs = right_answers(SOURCES, outputs)
        for place in range(7):
            end = outputs[0][place]
            assert outputs[0].index(end) == place
            told: list[Emission] = []
            options = {"eos_token_id": end, "max_new_tokens": 30, "num_draft_tokens": 4}
            results = run(verifier, SOURCES, OracleDrafter(drafter_outputs), told=told, **options)
            for request, (result, output) in enumerate(zip(results, outputs, strict=True)):
                mine = [emission for emission in told if emission.request == request]
                ids = [token_id for emission in mine for token_id in emission.token_ids]
                assert ids == result.hypotheses[0].token_ids == cut_after(output, [end])
                assert [emission.finish_reason for emission in mine[:-1]] == [None] * (len(mine) - 1)
                assert mine[-1].finish_reason == result.finish_reason == ("eos" if end in output else "length")
                origins = [origin for emission in mine for origin in emission.origins]
                assert len(origins) == len(ids)
                assert origins.count("accepted") == result.stats.num_accepted

    def test_a_copied_end_ends_the_text_and_what_was_copied_behind_it_is_dropped(self) -> None:
        num_met = 0
        for seed in range(12):
            verifier = TableVerifier(tiny_config(vocab_size=16), seed=seed)
            generator = torch.Generator().manual_seed(seed)
            source = torch.randint(4, 16, (40,), generator=generator).tolist()
            (output,) = texts(run(verifier, [source], eos_token_id=[], max_new_tokens=25))
            for end in set(output) & set(source[:-1]):
                drafter = WatchedLookup(verifier.config)
                options = {"eos_token_id": end, "max_new_tokens": 25, "num_draft_tokens": 6}
                assert texts(run(verifier, [source], drafter, **options)) == [cut_after(output, [end])]
                num_met += any(end in block[:-1] for block in drafter.blocks)
        assert num_met > 20, "blocks with an end in the middle are what this test is about"

    @pytest.mark.parametrize("options", [{}, {"min_new_tokens": 5}, {"forced_eos_token_id": 2}, {"num_beams": 3}])
    def test_without_an_end_everything_runs_to_the_budget(self, options: dict[str, Any]) -> None:
        verifier = TableVerifier(tiny_config(vocab_size=9))
        options = {"eos_token_id": [], "max_new_tokens": 25, **options}
        results = run(verifier, SOURCES_OF_FEW_IDS, **options)
        outputs = texts(results)
        assert [len(output) for output in outputs] == [25] * len(outputs)
        assert any(2 in output[:-1] for output in outputs), "the model's own end must have come up"
        assert {result.finish_reason for result in results} == {"length"}
        for drafter in (OracleDrafter(right_answers(SOURCES_OF_FEW_IDS, outputs)), ConstantDrafter(2)):
            assert texts(run(verifier, SOURCES_OF_FEW_IDS, drafter, num_draft_tokens=4, **options)) == outputs

    @pytest.mark.parametrize("kind", ["none", "right", "wrong"])
    def test_an_end_at_once_is_one_token(self, kind: str) -> None:
        verifier = TableVerifier()
        (output,) = texts(run(verifier, SOURCES[:1], eos_token_id=[], max_new_tokens=5))
        answers = right_answers(SOURCES[:1], [output])
        drafter = {"none": None, "right": OracleDrafter(answers), "wrong": WrongDrafter(answers)}[kind]
        (result,) = run(verifier, SOURCES[:1], drafter, eos_token_id=output[0], max_new_tokens=5, num_draft_tokens=3)
        assert (texts([result]), result.finish_reason) == ([output[:1]], "eos")
        assert (result.stats.num_tokens, result.stats.num_rounds, result.stats.tokens_per_round) == (1, 1, 1.0)
        assert result.stats.acceptance_rate == (kind == "right")
        assert result.stats.num_judged == {"none": 0, "right": 1, "wrong": 3}[kind]

    def test_a_minimum_length_holds_inside_a_block(self, bart: Pair) -> None:
        """The model would end at the sixth token, and does at the eleventh: one block holds both."""
        sources = bart.sources(6, seed=4)
        plain = bart.transformers_ids(sources, max_new_tokens=24)
        end = plain[0][5]
        assert plain[0].index(end) == 5
        options = {"eos_token_id": end, "min_new_tokens": 8, "max_new_tokens": 24}
        expected = bart.transformers_ids(sources, **options)
        assert (len(expected[0]), expected[0][-1]) == (11, end)
        drafters: list[Drafter] = [OracleDrafter(right_answers(sources, outputs)) for outputs in (plain, expected)]
        drafters += [ConstantDrafter(end), RandomDrafter(outputs=right_answers(sources, plain))]
        for num_draft_tokens in (2, 5, 12):
            for drafter in drafters:
                assert bart.ids(sources, drafter, num_draft_tokens=num_draft_tokens, **options) == expected


class TestTokens:
    def test_nothing_of_a_wrong_draft_is_committed_unchecked(self) -> None:
        verifier = TableVerifier()
        outputs = texts(run(verifier, SOURCES, eos_token_id=[], max_new_tokens=12))
        told: list[Emission] = []
        drafter = WrongDrafter(right_answers(SOURCES, outputs))
        results = run(verifier, SOURCES, drafter, told=told, eos_token_id=[], max_new_tokens=12, num_draft_tokens=1)
        assert texts(results) == outputs
        for request, result in enumerate(results):
            stats = result.stats
            assert (stats.num_accepted, stats.num_rounds, stats.num_judged) == (0, 12, 11)
            origins = [origin for emission in told if emission.request == request for origin in emission.origins]
            assert origins == ["correction"] * 11 + ["bonus"], "nothing is drafted where one token is left"

    @pytest.mark.parametrize("family", ["t5", "m2m100", "bart"])
    def test_pads_and_unknowns_that_the_model_really_says(self, family: str, tmp_path: Path) -> None:
        """A drafted pad passes where the model itself says it, and only there."""
        pair = Pair(tmp_path, family, seed=SEEDS_OF_PADS[family], dtype="float32" if family == "t5" else "float64")
        pair.forget_generation_settings()
        sources = pair.sources(6, seed=2)
        expected = pair.transformers_ids(sources, max_new_tokens=16)
        unknown = 2 if family == "t5" else UNKNOWN
        assert any(pair.pad in row[:-1] for row in expected)
        assert any(unknown in row[:-1] for row in expected)
        options = {"eos_token_id": [], "max_new_tokens": 16, "num_draft_tokens": 4}
        for drafter in (
            None,
            OracleDrafter(right_answers(sources, expected)),
            RandomDrafter(outputs=right_answers(sources, expected)),
            ConstantDrafter(pair.pad),
            ConstantDrafter(unknown),
            PromptLookupDrafter(pair.config),
            SmallModelDrafter(pair.verifier),
        ):
            results = pair.run(sources, drafter, **options)
            assert texts(results) == expected
            if isinstance(drafter, ConstantDrafter):
                said = sum(row.count(drafter.token) for row in expected)
                assert 0 < sum(result.stats.num_accepted for result in results) <= said

    def test_a_banned_start_token_is_never_accepted(self, tmp_path: Path) -> None:
        """Marian starts with pad and bans it; a draft of nothing else is of no use, relaxed or not."""
        pair = Pair(tmp_path, "marian", seed=5)
        sources = pair.sources(5, seed=1)
        expected = pair.transformers_ids(sources, num_beams=1, max_new_tokens=15)
        settings = {"checkpoint": pair.checkpoint, "num_beams": 1, "max_new_tokens": 15, "num_draft_tokens": 3}
        for relaxed in ({}, {"top_beta": 50, "tau": 1e9}):
            results = pair.run(sources, ConstantDrafter(pair.pad), **settings, **relaxed)
            assert texts(results) == expected
            assert [result.stats.num_accepted for result in results] == [0] * 5


class TestLengths:
    @pytest.mark.parametrize("kind", ["spec", "small_model", "prompt_lookup"])
    def test_outputs_longer_than_the_drafter_goes_on_without_it(self, kind: str) -> None:
        verifier = TableVerifier(tiny_config(max_positions=300), context=None)
        (output,) = texts(run(verifier, SOURCES[:1], eos_token_id=[], max_new_tokens=300))
        small = TableVerifier(tiny_config(max_positions=41), context=None)
        drafter: Drafter = {
            "spec": lambda: SpecDrafter(ShortNetwork(output)),
            "small_model": lambda: SmallModelDrafter(small),
            "prompt_lookup": lambda: PromptLookupDrafter(verifier.config),
        }[kind]()
        options = {"eos_token_id": [], "max_new_tokens": 300, "num_draft_tokens": 5}
        (result,) = run(verifier, SOURCES[:1], drafter, **options)
        assert texts([result]) == [output]
        assert len(output) == 300
        if kind != "prompt_lookup":
            # both draft perfectly as long as a block fits: 42 tokens, six at a time
            assert (result.stats.num_accepted, result.stats.num_rounds) == (35, 7 + 258)

    @pytest.mark.parametrize("num_beams", [1, 2])
    def test_finished_rows_are_in_no_call(self, num_beams: int) -> None:
        verifier = CountingVerifier(tiny_config(max_positions=128))
        options = {"eos_token_id": [], "max_new_tokens": 100, "num_beams": num_beams}
        results = run(verifier, SOURCES[:2], budgets=[3, 100], **options)
        assert [len(output) for output in texts(results)] == [3, 100]
        assert verifier.rows == [2 * num_beams] * 3 + [num_beams] * 97

    def test_a_loop_to_the_limit_is_flagged(self) -> None:
        # one token of context: whatever comes twice goes round in circles
        verifier = TableVerifier(tiny_config(vocab_size=9), context=1)
        options = {"eos_token_id": [], "max_new_tokens": 60}
        plain = run(verifier, SOURCES_OF_FEW_IDS, **options)
        drafted = run(verifier, SOURCES_OF_FEW_IDS, PromptLookupDrafter(verifier.config), num_draft_tokens=7, **options)
        assert texts(drafted) == texts(plain)
        assert sum(result.stats.num_accepted for result in drafted) > 100
        beams = run(verifier, SOURCES_OF_FEW_IDS, num_beams=2, **options)
        assert [result.stats.is_degenerate for result in (*plain, *drafted)] == [True] * 8
        in_circles = [is_degenerate(output) for output in texts(beams)]
        assert any(in_circles)
        assert [result.stats.is_degenerate for result in beams] == in_circles
        # the same circles, left before the limit
        end = texts(plain)[0][-1]
        (ended,) = run(verifier, SOURCES_OF_FEW_IDS[:1], **{**options, "eos_token_id": end})
        assert (ended.finish_reason, ended.stats.is_degenerate) == ("eos", False)
        varied = run(TableVerifier(context=None), SOURCES, **options)
        assert [result.stats.is_degenerate for result in varied] == [False] * len(SOURCES)

    def test_a_loop_is_eight_tokens_at_most_three_times(self) -> None:
        for size in range(1, 9):
            turn = list(range(size))
            assert is_degenerate([*range(50, 60), *turn * 3])
            assert not is_degenerate([*range(50, 60), *(turn * 3)[1:]])
            assert not is_degenerate([*turn * 3, 99])
        assert not is_degenerate(list(range(9)) * 3)


class TestCompany:
    def test_a_short_and_a_long_source_in_every_company(self, bart: Pair) -> None:
        generator = torch.Generator().manual_seed(1)
        lengths = [1, 60, *torch.randint(1, 61, (30,), generator=generator).tolist()]
        sources = [[*torch.randint(4, 40, (n,), generator=generator).tolist(), 2] for n in lengths]
        options = {"eos_token_id": 2, "max_new_tokens": 12, "num_draft_tokens": 4}
        alone = [bart.ids([source], PromptLookupDrafter(bart.config), **options)[0] for source in sources]
        assert len({tuple(output) for output in alone}) > 25
        for order in ([0, 1], [1, 0], [1, 7, 0, 3, 5, 2, 4, 6], list(range(32)), list(range(31, -1, -1))):
            rows = [sources[i] for i in order]
            together = bart.ids(rows, PromptLookupDrafter(bart.config), **options)
            assert together == [alone[i] for i in order]

    def test_sources_stay_as_they_are_whatever_is_rejected(self, bart: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        sources = bart.sources(3, seed=6)
        plain = bart.ids(sources, eos_token_id=[], max_new_tokens=10)
        decode, seen = bart.verifier.decode, []

        def watch(*args: Any, **kwargs: Any) -> DecoderOutput:
            encoded = args[4]
            seen.append((encoded.cross.clone(), encoded.lengths.clone()))
            return decode(*args, **kwargs)

        monkeypatch.setattr(bart.verifier, "decode", watch)
        drafter = WrongDrafter(right_answers(sources, plain))
        assert bart.ids(sources, drafter, eos_token_id=[], max_new_tokens=10, num_draft_tokens=4) == plain
        with torch.inference_mode():
            fresh = bart.verifier.encode(SourceBatch.from_lists(sources, PAD))
        assert len(seen) == 10
        for cross, lengths in seen:
            assert torch.equal(cross, fresh.cross)
            assert lengths.tolist() == [len(source) for source in sources]


class TestBrokenNumbers:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"repetition_penalty": 1.3},
            {"output_scores": True},
            {"top_beta": 3},
            {"num_beams": 3},
            {"num_beams": 3, "speculative_beams": True},
        ],
        ids=["plain", "processed", "scored", "relaxed", "beams", "speculative_beams"],
    )
    def test_they_end_their_row_and_leave_its_neighbours_alone(
        self, bart: Pair, options: dict[str, Any], value: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All scores of one row break after its fifth token, in the middle of a block."""
        sources = [source for source in bart.sources(8, seed=11) if len(source) != 5][:4]
        sources.insert(2, [9, 8, 7, 6, 2])
        options = {"eos_token_id": [], "max_new_tokens": 14, **options}
        expected = bart.run(sources, **options)
        decode = bart.verifier.decode

        def poisoned(tokens: Tensor, positions: Tensor, *args: Any, **kwargs: Any) -> DecoderOutput:
            output, queries, encoded = decode(tokens, positions, *args, **kwargs), kwargs.get("queries"), args[2]
            places = positions if queries is None else positions.gather(1, queries)
            values = output.scores.logits().clone()
            values[(encoded.lengths[:, None] == 5) & (places == 5)] = value
            return DecoderOutput(TensorScores(values), output.hidden)

        monkeypatch.setattr(bart.verifier, "decode", poisoned)
        for drafter in self.drafters(sources, texts(expected)):
            results = bart.run(sources, drafter, num_draft_tokens=3, **options)
            assert [result.finish_reason for result in results] == ["length", "length", "error", "length", "length"]
            assert "NaN or infinite scores" in (results[2].error or "")
            for i in (0, 1, 3, 4):
                assert results[i].error is None
                if "top_beta" not in options:
                    assert results[i].hypotheses == expected[i].hypotheses
            broken = results[2].hypotheses[0].token_ids
            assert len(broken) <= 5
            if "top_beta" not in options:
                assert broken == expected[2].hypotheses[0].token_ids[: len(broken)]

    def drafters(self, sources: Sequence[Sequence[int]], outputs: Sequence[list[int]]) -> list[Drafter | None]:
        answers = right_answers(sources, outputs)
        return [None, OracleDrafter(answers), RandomDrafter(outputs=answers)]

    def test_scores_behind_what_was_accepted_break_nothing(self) -> None:
        """What a rejected token would have led to is nobody's business."""
        verifier = TableVerifier(context=None)
        outputs = texts(run(verifier, SOURCES, eos_token_id=[], max_new_tokens=12))
        decode = verifier.decode

        def poisoned(tokens: Tensor, *args: Any, **kwargs: Any) -> DecoderOutput:
            values = decode(tokens, *args, **kwargs).scores.logits().clone()
            values[:, 1:] = float("nan")
            return DecoderOutput(TensorScores(values))

        verifier.decode = poisoned  # type: ignore[method-assign]
        drafter = WrongDrafter(right_answers(SOURCES, outputs))
        assert texts(run(verifier, SOURCES, drafter, eos_token_id=[], max_new_tokens=12, num_draft_tokens=3)) == outputs
