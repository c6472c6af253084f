"""Sampling through the whole loop: the law of plain sampling, and with a seed its very text."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.decoding.loop import Decoder
from spec2seq.decoding.noise import RowNoise
from spec2seq.decoding.warpers import Warpers
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import (
    ConstantDrafter,
    OracleDrafter,
    RandomDrafter,
    TableVerifier,
    WrongDrafter,
    tiny_config,
)
from spec2seq.types import DecoderOutput, DraftBlock, SourceBatch, TensorScores, Wanted
from tests.chi_square import p_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.interfaces import Choose, Drafter
    from spec2seq.types import DecodedRequest, Emission, Prefix

PAD, START, EOS = 1, 2, 2
SOURCES = [[4, 9, 2], [5, 6, 7, 8, 9, 4, 2], [11, 2], [30, 31, 30, 31, 30, 2], [4, 9, 9, 2], [21, 22, 2], [40, 2]]


def run(
    verifier: TableVerifier,
    sources: Sequence[Sequence[int]],
    drafter: Drafter | None = None,
    *,
    max_rows: int = 64,
    seeds: Sequence[int] | None = None,
    emissions: list[Emission] | None = None,
    **options: Any,
) -> list[DecodedRequest]:
    """Results in the order of the sources, sampled unless told otherwise."""
    resolved = resolve_options({}, verifier.config, None, {"do_sample": True, **options})
    decoder = Decoder(verifier, drafter, max_rows=max_rows)
    requests = decoder.add(SourceBatch.from_lists(sources, PAD), resolved, seeds=seeds)
    while decoder.alive:
        told = decoder.step()
        if emissions is not None:
            emissions.extend(told)
    return [decoder.result(request) for request in requests]


def texts(results: Sequence[DecodedRequest]) -> list[list[int]]:
    return [result.hypotheses[0].token_ids for result in results]


class BrokenDrafter(RandomDrafter):
    """Has the loop choose from laws without meaning in every other row."""

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        assert choose is not None
        law = torch.randn(len(prefix.lengths), self.vocab_size)
        law[::2, 3] = torch.nan
        tokens = torch.stack([choose(law, slot) for slot in range(num_draft_tokens)], dim=1)
        return DraftBlock(tokens, torch.full_like(prefix.lengths, num_draft_tokens))


class TestLaw:
    """Every sequence of a vocabulary of 5 comes out as often as the enumerated law says."""

    num_rows = 1500
    length = 3
    source = (3, 4, 2)
    options: dict[str, Any] = {"max_new_tokens": length, "top_k": 4, "temperature": 0.9, "top_p": 0.97}  # noqa: RUF012

    def verifier(self) -> TableVerifier:
        return TableVerifier(tiny_config(vocab_size=5), context=None, spread=2.5)

    def law(self) -> dict[tuple[int, ...], float]:
        """Probability of every finished output."""
        verifier = self.verifier()
        encoded = verifier.encode(SourceBatch.from_lists([self.source], PAD))
        finished, open_ones = {}, {(): 1.0}
        for _ in range(self.length):
            for prefix, probability in list(open_ones.items()):
                del open_ones[prefix]
                tokens = torch.tensor([[START, *prefix]])
                positions = torch.arange(len(prefix) + 1)[None]
                output = verifier.decode(
                    tokens, positions, torch.tensor([len(prefix) + 1]), verifier.new_cache(1), encoded, Wanted()
                )
                law = Warpers(0.9, 4, 0.97)(output.scores.logits()[0, -1]).softmax(-1).tolist()
                for token, chance in enumerate(law):
                    is_done = token == EOS or len(prefix) + 1 == self.length
                    (finished if is_done else open_ones)[(*prefix, token)] = probability * chance
        return finished

    def drafters(self) -> dict[str, Drafter | None]:
        def small(seed: int, spread: float) -> Drafter:
            return SmallModelDrafter(TableVerifier(tiny_config(vocab_size=5), context=None, seed=seed, spread=spread))

        return {
            "none": None,
            "constant": ConstantDrafter(3),
            "end": ConstantDrafter(EOS),
            "sharper": small(0, 4.0),
            "other": small(1, 2.5),
            "broken": BrokenDrafter(vocab_size=5),
        }

    @pytest.mark.parametrize("kind", ["none", "constant", "end", "sharper", "other", "broken"])
    @pytest.mark.parametrize("is_seeded", [False, True])
    def test_outputs_follow_the_law(self, kind: str, is_seeded: bool) -> None:
        law = self.law()
        places = {output: i for i, output in enumerate(law)}
        p_values = []
        for repeat in range(2):
            seeds = range(repeat * self.num_rows, (repeat + 1) * self.num_rows)
            seed = {"seed": 0} if is_seeded else {}
            results = run(
                self.verifier(),
                [self.source] * self.num_rows,
                self.drafters()[kind],
                max_rows=self.num_rows,
                seeds=seeds,
                num_draft_tokens=2,
                **seed,
                **self.options,
            )
            found = torch.tensor([places[tuple(text)] for text in texts(results)])
            p_values.append(p_value(found.bincount(minlength=len(law)), torch.tensor(list(law.values()))))
            num_accepted = sum(result.stats.num_accepted for result in results)
            assert (num_accepted > 0) == (kind != "none")
        assert max(p_values) > 0.05
        assert min(p_values) > 1e-3


class Grid:
    """Plain sampling with a seed, and everything that must not change its text."""

    def __init__(self, **options: Any) -> None:
        self.verifier = TableVerifier(spread=5.0)
        self.options = {"max_new_tokens": 20, "seed": 11, **options}
        self.expected = texts(run(self.verifier, SOURCES, **self.options))

    def drafter(self, kind: str) -> Drafter:
        outputs = {tuple(row): ids for row, ids in zip(SOURCES, self.expected, strict=True)}
        return {
            "oracle": lambda: OracleDrafter(outputs),
            "wrong": lambda: WrongDrafter(outputs),
            "random": lambda: RandomDrafter(seed=1, outputs=outputs),
            "eos": lambda: ConstantDrafter(EOS),
            "pad": lambda: ConstantDrafter(PAD),
            "prompt_lookup": lambda: PromptLookupDrafter(self.verifier.config),
            "same": lambda: SmallModelDrafter(TableVerifier(spread=5.0)),
            "other": lambda: SmallModelDrafter(TableVerifier(seed=1, spread=5.0)),
        }[kind]()


@pytest.fixture(scope="module")
def grid() -> Grid:
    return Grid()


DRAFTERS = ["oracle", "wrong", "random", "eos", "pad", "prompt_lookup", "same", "other"]


@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 5, 25])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_seed_gives_the_same_text_whatever_is_drafted(grid: Grid, kind: str, num_draft_tokens: int) -> None:
    for batch in ([0], [0, 1, 2], range(len(SOURCES))):
        sources = [SOURCES[i] for i in batch]
        drafter = grid.drafter(kind)
        found = texts(run(grid.verifier, sources, drafter, num_draft_tokens=num_draft_tokens, **grid.options))
        assert found == [grid.expected[i] for i in batch]


def test_the_order_and_the_company_of_rows_change_nothing(grid: Grid) -> None:
    for order, max_rows in itertools.product(([6, 5, 4, 3, 2, 1, 0], [3, 1, 5], [2, 2, 0]), (1, 2, 8)):
        for kind in ("random", "same"):
            found = texts(
                run(grid.verifier, [SOURCES[i] for i in order], grid.drafter(kind), max_rows=max_rows, **grid.options)
            )
            assert found == [grid.expected[i] for i in order]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.4, "top_k": 0},
        {"top_k": 5, "top_p": 0.7, "min_p": 0.02},
        {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
        {"min_new_tokens": 9, "bad_words_ids": [[7], [30, 31]], "suppress_tokens": [PAD]},
        {"forced_bos_token_id": 9, "forced_eos_token_id": EOS, "max_new_tokens": 7},
    ],
)
def test_a_seed_gives_the_same_text_with_other_options(options: dict[str, Any]) -> None:
    grid = Grid(**options)
    assert len({tuple(text) for text in grid.expected}) == len(SOURCES)
    for kind, num_draft_tokens in itertools.product(DRAFTERS, (2, 10)):
        found = texts(
            run(grid.verifier, SOURCES, grid.drafter(kind), num_draft_tokens=num_draft_tokens, **grid.options)
        )
        assert found == grid.expected, kind


def test_the_text_of_a_seed_is_the_best_of_scores_and_noise(grid: Grid) -> None:
    """Recomputed from the definition, token by token."""
    encoded = grid.verifier.encode(SourceBatch.from_lists([SOURCES[0]], PAD))
    noise, text = RowNoise.from_seeds([11], [0]), []
    while len(text) < 20 and EOS not in text:
        tokens = torch.tensor([[START, *text]])
        count = tokens.shape[1]
        output = grid.verifier.decode(
            tokens, torch.arange(count)[None], torch.tensor([count]), grid.verifier.new_cache(1), encoded, Wanted()
        )
        scores = Warpers(top_k=50)(output.scores.logits()[:, -1:])
        text.append(int((scores + noise.gumbel(scores, torch.tensor([[len(text)]]))).argmax()))
    assert text == grid.expected[0]


def test_a_drafter_that_knows_the_law_agrees_with_the_seed(grid: Grid) -> None:
    """The chooser adds the noise that the verifier will add: nothing is ever rejected."""
    results = run(
        grid.verifier, SOURCES, grid.drafter("same"), num_draft_tokens=5, suppress_tokens=[PAD], **grid.options
    )
    assert all(result.stats.num_judged == result.stats.num_accepted > 0 for result in results)


@pytest.mark.parametrize("is_seeded", [False, True])
def test_a_drafter_with_the_same_law_is_never_rejected(grid: Grid, is_seeded: bool) -> None:
    options = {"seed": 3} if is_seeded else {}
    results = run(
        grid.verifier,
        SOURCES,
        grid.drafter("same"),
        num_draft_tokens=5,
        max_new_tokens=20,
        suppress_tokens=[PAD],
        seeds=range(len(SOURCES)),
        **options,
    )
    for result in results:
        assert result.stats.num_accepted == result.stats.num_judged > 0


class TestTemperatures:
    """The ends of the scales."""

    def greedy(self, grid: Grid) -> list[list[int]]:
        return texts(run(grid.verifier, SOURCES, do_sample=False, max_new_tokens=20))

    @pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
    @pytest.mark.parametrize("is_seeded", [False, True])
    def test_greedy_search_in_disguise(self, grid: Grid, options: dict[str, float], is_seeded: bool) -> None:
        seed = {"seed": 1} if is_seeded else {}
        for kind in ("random", "other"):
            found = run(grid.verifier, SOURCES, grid.drafter(kind), max_new_tokens=20, **options, **seed)
            assert texts(found) == self.greedy(grid)

    def test_temperature_one_is_real_sampling(self, grid: Grid) -> None:
        options = {"max_new_tokens": 20, "temperature": 1.0}
        one, again, other = (texts(run(grid.verifier, SOURCES, seed=seed, **options)) for seed in (1, 1, 2))
        assert one == again
        assert all(a != b for a, b in zip(one, other, strict=True))
        assert all(a != b for a, b in zip(one, self.greedy(grid), strict=True))


class TestFreshSeeds:
    def test_every_request_reports_one_of_its_own(self, grid: Grid) -> None:
        first, second = (run(grid.verifier, SOURCES, max_new_tokens=20) for _ in range(2))
        assert len({result.seed for result in (*first, *second)}) == 2 * len(SOURCES)
        assert texts(first) != texts(second)
        assert [result.seed for result in run(grid.verifier, SOURCES, seed=4, max_new_tokens=2)] == [4] * len(SOURCES)
        assert run(grid.verifier, SOURCES, do_sample=False, max_new_tokens=2)[0].seed is None

    @pytest.mark.parametrize("kind", ["prompt_lookup", "other"])
    def test_a_reported_seed_replays_its_request_in_any_company(self, grid: Grid, kind: str) -> None:
        options = {"max_new_tokens": 20, "num_draft_tokens": 4}
        results = run(grid.verifier, SOURCES, grid.drafter(kind), **options)
        for order, max_rows in (([5, 0, 3, 6, 2, 4, 1], 3), ([4], 1), ([1, 2, 1], 8)):
            seeds = [results[i].seed or 0 for i in order]
            sources = [SOURCES[i] for i in order]
            again = run(grid.verifier, sources, grid.drafter(kind), max_rows=max_rows, seeds=seeds, **options)
            assert texts(again) == [texts(results)[i] for i in order]

    @pytest.mark.parametrize("spread", [1.0, 4.0])
    def test_how_long_others_go_on_drafting_does_not_matter(self, spread: float) -> None:
        """A small vocabulary, so that many drafted blocks end early."""
        config = tiny_config(vocab_size=7)
        verifier = TableVerifier(config, spread=2.0)
        sources = [[3 + i % 4, 3 + i // 4 % 4, 3 + i // 16, EOS] for i in range(32)]

        def sample(rows: range, seeds: Sequence[int] | None = None) -> list[DecodedRequest]:
            drafter = SmallModelDrafter(TableVerifier(config, spread=spread))
            chosen = [sources[i] for i in rows]
            return run(verifier, chosen, drafter, seeds=seeds, num_draft_tokens=8, max_new_tokens=20)

        together = sample(range(32))
        assert sum(result.stats.num_accepted for result in together) > 32
        for i, result in enumerate(together):
            assert texts(sample(range(i, i + 1), [result.seed or 0])) == texts([result])

    def test_torch_is_left_alone(self, grid: Grid) -> None:
        before = torch.get_rng_state()
        run(grid.verifier, SOURCES, grid.drafter("other"), max_new_tokens=20)
        assert torch.equal(torch.get_rng_state(), before)


class CountingVerifier(TableVerifier):
    """Remembers how many sources each call of `encode` got."""

    def __init__(self) -> None:
        super().__init__(spread=5.0)
        self.encoded: list[int] = []

    def encode(self, source: SourceBatch) -> Any:
        self.encoded.append(len(source.lengths))
        return super().encode(source)


class TestSeveralSamples:
    options: dict[str, Any] = {"max_new_tokens": 15, "seed": 5}  # noqa: RUF012

    def test_they_come_in_the_order_of_their_index(self, grid: Grid) -> None:
        singles = run(grid.verifier, SOURCES, **self.options)
        many = run(grid.verifier, SOURCES, num_return_sequences=4, **self.options)
        few = run(grid.verifier, SOURCES, grid.drafter("other"), num_return_sequences=2, max_rows=3, **self.options)
        for one, four, two in zip(singles, many, few, strict=True):
            outputs = [hypothesis.token_ids for hypothesis in four.hypotheses]
            assert len({tuple(output) for output in outputs}) == 4
            assert outputs[0] == one.hypotheses[0].token_ids
            assert [hypothesis.token_ids for hypothesis in two.hypotheses] == outputs[:2]

    def test_each_source_is_encoded_once(self) -> None:
        verifier = CountingVerifier()
        run(verifier, SOURCES[:3], num_return_sequences=4, **self.options)
        assert verifier.encoded == [3]

    def test_statistics_are_those_of_all_samples(self, grid: Grid) -> None:
        drafter = OracleDrafter(dict(zip(map(tuple, SOURCES), grid.expected, strict=True)))
        for result in run(
            grid.verifier, SOURCES, drafter, num_return_sequences=3, forced_bos_token_id=9, **self.options
        ):
            assert result.stats.num_tokens == sum(len(hypothesis.token_ids) for hypothesis in result.hypotheses)
            assert result.stats.num_forced == 3
            assert result.stats.num_rounds + result.stats.num_accepted + 3 == result.stats.num_tokens

    @pytest.mark.parametrize("forced", [None, 9])
    def test_the_caller_is_told_the_first_one_as_it_comes(self, grid: Grid, forced: int | None) -> None:
        emissions: list[Emission] = []
        options = {**self.options, "forced_bos_token_id": forced}
        results = run(grid.verifier, SOURCES, num_return_sequences=3, emissions=emissions, **options)
        requests = {emission.request for emission in emissions}
        assert len(requests) == len(SOURCES)
        for result, request in zip(results, sorted(requests), strict=True):
            mine = [emission for emission in emissions if emission.request == request]
            assert [i for emission in mine for i in emission.token_ids] == result.hypotheses[0].token_ids
            assert [emission.finish_reason for emission in mine[:-1]] == [None] * (len(mine) - 1)
            assert mine[-1].finish_reason == result.finish_reason
            assert (result.finish_reason == "eos") == (result.hypotheses[0].token_ids[-1] == EOS)

    def test_a_forced_token_can_be_all(self, grid: Grid) -> None:
        results = run(grid.verifier, SOURCES, num_return_sequences=2, forced_bos_token_id=9, max_new_tokens=1)
        assert [[h.token_ids for h in result.hypotheses] for result in results] == [[[9], [9]]] * len(SOURCES)

    def test_cancelling_stops_all_of_them(self, grid: Grid) -> None:
        arguments = {"do_sample": True, "num_return_sequences": 3, **self.options}
        options = resolve_options({}, grid.verifier.config, None, arguments)
        decoder = Decoder(grid.verifier, max_rows=4)
        first, second = decoder.add(SourceBatch.from_lists(SOURCES[:2], PAD), options)
        decoder.step()
        decoder.cancel(first)
        assert next((told.request, told.finish_reason) for told in decoder.step()) == (first, "cancelled")
        assert [len(h.token_ids) for h in decoder.result(first).hypotheses] == [1, 1, 1]
        while decoder.alive:
            decoder.step()
        expected = run(grid.verifier, SOURCES[:2], num_return_sequences=3, **self.options)[1]
        assert decoder.result(second).hypotheses == expected.hypotheses

    def test_scores_are_those_of_each_sample(self, grid: Grid) -> None:
        many = run(grid.verifier, SOURCES, num_return_sequences=2, output_scores=True, **self.options)
        for result in many:
            scores = [hypothesis.score for hypothesis in result.hypotheses]
            assert None not in scores
            assert scores[0] != scores[1]


class BrokenVerifier(TableVerifier):
    """Scores of one source become NaN where the prefix has `length` tokens."""

    def __init__(self, source: Sequence[int], length: int, value: float) -> None:
        super().__init__(spread=5.0)
        self.key = int(self.encode(SourceBatch.from_lists([source], PAD)).keys)
        self.length, self.value = length, value

    def decode(self, tokens: Tensor, positions: Tensor, *args: Any, **kwargs: Any) -> DecoderOutput:
        output = super().decode(tokens, positions, *args, **kwargs)
        queries, encoded = kwargs.get("queries"), args[2]
        places = positions if queries is None else positions.gather(1, queries)
        values = output.scores.logits().clone()
        values[(encoded.keys[:, None] == self.key) & (places == self.length - 1), 13] = self.value
        return DecoderOutput(TensorScores(values), output.hidden)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_seeded", [False, True])
@pytest.mark.parametrize("kind", ["none", "prompt_lookup", "same"])
def test_broken_scores_end_their_request_alone(grid: Grid, kind: str, is_seeded: bool, value: float) -> None:
    sources = SOURCES[:4]
    options = {"max_new_tokens": 20, "min_new_tokens": 8, "num_draft_tokens": 3} | ({"seed": 1} if is_seeded else {})
    make = (lambda: None) if kind == "none" else (lambda: grid.drafter(kind))
    expected = run(grid.verifier, sources, make(), seeds=range(4), **options)
    verifier = BrokenVerifier(sources[1], 6, value)
    results = run(verifier, sources, make(), seeds=range(4), **options)
    assert [result.finish_reason == "error" for result in results] == [False, True, False, False]
    assert "NaN or infinite scores" in (results[1].error or "")
    assert len(results[1].hypotheses[0].token_ids) <= 5
    if is_seeded:
        broken = results[1].hypotheses[0].token_ids
        assert broken == expected[1].hypotheses[0].token_ids[: len(broken)]
    for i in (0, 2, 3):
        assert results[i].hypotheses == expected[i].hypotheses
    many = run(verifier, sources, make(), num_return_sequences=2, **options)
    assert [result.finish_reason == "error" for result in many] == [False, True, False, False]
