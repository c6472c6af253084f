"""Whatever is drafted, and whenever the drafter starts: the output is that of plain search, or follows its law."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.decoding import search_choice
from spec2seq.decoding.controller import Controller, FixedLength
from spec2seq.decoding.costs import DraftCosts, LearnedCosts, VerifyCosts
from spec2seq.decoding.loop import Decoder
from spec2seq.decoding.sampling import SamplingSearch
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.drafters.spec import SpecDrafter
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import ConstantDrafter, OracleDrafter, RandomDrafter, TableVerifier, WrongDrafter, tiny_config
from spec2seq.types import SourceBatch, Wanted
from tests.chi_square import p_value
from tests.tiny_drafters import tiny_drafter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spec2seq.decoding.controller import DraftLength, Round
    from spec2seq.interfaces import Drafter
    from spec2seq.types import DecodedRequest, DraftBlock, Prefix

PAD, START, EOS = 1, 2, 2
SOURCES = [
    [4, 9, 2],
    [5, 6, 7, 8, 9, 4, 2],
    [11, 2],
    [30, 31, 30, 31, 30, 2],
    [4, 9, 9, 2],
    [21, 22, 2],
    [40, 2],
    [12, 13, 14, 15, 2],
]
LIMIT = 24
DRAFTERS = ["oracle", "wrong", "random", "eos", "pad", "prompt_lookup", "small_model", "spec", "reader"]


class Plan:
    """`DraftLength` that goes through given numbers again and again.

    Args:
        numbers: of tokens to draft.
        is_free: whether the drafter need not be started before the first one above 0.
    """

    max_draft_tokens = 25

    def __init__(self, numbers: Sequence[int], *, is_free: bool = True) -> None:
        self._numbers = itertools.cycle(numbers)
        self.is_free = is_free

    def plan(self, num_rows: int, tokens_left: Callable[[], float] | None) -> int:
        if tokens_left is not None:
            assert 1 <= tokens_left() <= LIMIT
        return next(self._numbers)

    def learn_start(self, num_rows: int, seconds: float) -> None:
        assert num_rows > 0

    def learn(self, outcome: Round) -> None:
        assert len(outcome.num_accepted) == len(outcome.num_judged) == (outcome.num_draft_tokens > 0) * outcome.num_rows


class ReadingDrafter(RandomDrafter):
    """One that reads the verifier's states, and has to see all of them."""

    hidden_layers = (1,)

    def __init__(self, outputs: dict[tuple[int, ...], list[int]]) -> None:
        super().__init__(seed=1, outputs=outputs)
        self.num_seen: list[int] = []

    def start(self, source: SourceBatch, encoded: Any) -> None:
        super().start(source, encoded)
        self.num_seen += [1] * len(source.lengths)

    def commit(self, prefix: Prefix, acceptance: Any, output: Any) -> None:
        super().commit(prefix, acceptance, output)
        assert output.hidden is not None
        assert prefix.lengths.tolist() == self.num_seen
        self.num_seen = (prefix.lengths + acceptance.num_accepted + 1).tolist()

    def select_rows(self, rows: torch.Tensor) -> None:
        super().select_rows(rows)
        self.num_seen = [self.num_seen[row] for row in rows.tolist()]


def run(
    verifier: TableVerifier, drafter: Drafter | None = None, *, num_sources: int = 8, max_rows: int = 64, **options: Any
) -> list[DecodedRequest]:
    """Results in the order of the sources."""
    resolved = resolve_options({}, verifier.config, None, {"max_new_tokens": LIMIT, "eos_token_id": [2, 7], **options})
    decoder = Decoder(verifier, drafter, max_rows=max_rows)
    requests = decoder.add(SourceBatch.from_lists(SOURCES[:num_sources], PAD), resolved)
    while decoder.alive:
        decoder.step()
    return [decoder.result(request) for request in requests]


def texts(results: Sequence[DecodedRequest]) -> list[list[int]]:
    return [result.hypotheses[0].token_ids for result in results]


class Grid:
    """A verifier, its greedy outputs, and drafters for it."""

    def __init__(self) -> None:
        self.verifier = TableVerifier()
        self.plain = run(self.verifier)
        self.expected = texts(self.plain)

    def drafter(self, kind: str) -> Drafter:
        outputs = {tuple(row): ids for row, ids in zip(SOURCES, self.expected, strict=True)}
        makers: dict[str, Callable[[], Drafter]] = {
            "oracle": lambda: OracleDrafter(outputs),
            "wrong": lambda: WrongDrafter(outputs),
            "random": lambda: RandomDrafter(seed=1, outputs=outputs),
            "eos": lambda: ConstantDrafter(EOS),
            "pad": lambda: ConstantDrafter(PAD),
            "prompt_lookup": lambda: PromptLookupDrafter(self.verifier.config),
            "small_model": lambda: SmallModelDrafter(TableVerifier()),
            "spec": lambda: SpecDrafter(tiny_drafter()),
            "reader": lambda: ReadingDrafter(outputs),
        }
        return makers[kind]()


@pytest.fixture(scope="module")
def grid() -> Grid:
    return Grid()


def follow(monkeypatch: pytest.MonkeyPatch, make: Callable[[], DraftLength]) -> None:
    """Let "auto" mean this."""
    monkeypatch.setattr(search_choice, "_length", lambda *_: make())


@pytest.mark.filterwarnings("ignore:num_draft_tokens=")
@pytest.mark.parametrize("numbers", [[0, 0, 3], [2, 0, 0, 0, 5, 1], [0, 1, 25, 0], [4]])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_the_output_is_that_of_plain_search_whatever_is_drafted(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, kind: str, numbers: list[int]
) -> None:
    """One row, three, eight, and eight of which three at a time decode: rows join drafters at work and idle ones."""
    for is_free in (True, False):
        follow(monkeypatch, lambda is_free=is_free: Plan(numbers, is_free=is_free))  # type: ignore[misc]
        for num_sources, max_rows in ((1, 1), (3, 8), (8, 8), (8, 3)):
            results = run(grid.verifier, grid.drafter(kind), num_sources=num_sources, max_rows=max_rows)
            assert texts(results) == grid.expected[:num_sources]
            for result in results:
                counts = result.stats.rounds_by_num_draft_tokens
                assert sum(counts) == result.stats.num_rounds
                assert {number for number, count in enumerate(counts) if count} <= set(numbers)


@pytest.mark.parametrize("kind", DRAFTERS)
def test_auto_gives_the_output_of_plain_search(grid: Grid, kind: str) -> None:
    for num_sources, max_rows in ((1, 1), (3, 8), (8, 8), (8, 3)):
        for _ in range(3):  # what calls cost becomes known
            results = run(grid.verifier, grid.drafter(kind), num_sources=num_sources, max_rows=max_rows)
            assert texts(results) == grid.expected[:num_sources]


@pytest.mark.filterwarnings("ignore:num_draft_tokens=")
@pytest.mark.parametrize("kind", [kind for kind in DRAFTERS if kind not in ("random", "reader")])
def test_a_drafter_that_starts_late_drafts_as_one_that_was_there_all_the_time(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    found = []
    for is_free in (True, False):
        follow(monkeypatch, lambda is_free=is_free: Plan([0, 0, 0, 0, 4, 4, 4, 4, 4], is_free=is_free))  # type: ignore[misc]
        results = run(grid.verifier, grid.drafter(kind), eos_token_id=[])
        assert sum(result.stats.num_drafted for result in results) > 0 or kind == "prompt_lookup"
        no_time = {"seconds_encode": 0.0, "seconds_draft": 0.0, "seconds_verify": 0.0, "seconds_rest": 0.0}
        found.append([replace(result.stats, **no_time) for result in results])  # type: ignore[arg-type]
    assert found[0] == found[1]


class CountingSpec(SpecDrafter):
    """Remembers with how many rows it was started."""

    def __init__(self) -> None:
        super().__init__(tiny_drafter())
        self.started: list[int] = []

    def start(self, source: SourceBatch, encoded: Any) -> None:
        super().start(source, encoded)
        self.started.append(len(source.lengths))


def test_a_drafter_that_is_never_asked_encodes_nothing(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = CountingSpec()
    follow(monkeypatch, lambda: Plan([0]))
    assert texts(run(grid.verifier, drafter)) == grid.expected
    assert drafter.started == []
    # first asked in the third round, with the rows that are still there
    follow(monkeypatch, lambda: Plan([0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
    run(grid.verifier, drafter, eos_token_id=[])
    assert drafter.started == [len(SOURCES)]


def test_rows_that_join_an_idle_drafter_make_it_start_again_when_it_is_asked(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = CountingSpec()
    follow(monkeypatch, lambda: Plan([2, 0, 0, 0, 0, 0, 0, 0]))
    results = run(grid.verifier, drafter, max_rows=3)
    assert texts(results) == grid.expected
    assert drafter.started[0] == 3
    assert sum(drafter.started) > len(SOURCES) - 3


class TestChoice:
    """What "auto" means."""

    def length(self, drafter: Drafter, **options: Any) -> DraftLength:
        verifier = TableVerifier()
        search = search_choice.make_search(verifier, drafter, resolve_options({}, verifier.config, None, options))
        assert search.drafting is not None
        return search.drafting.length

    def test_it_is_a_controller_wherever_the_output_does_not_depend_on_it(self) -> None:
        drafter = PromptLookupDrafter(tiny_config())
        for options in ({}, {"do_sample": True}, {"do_sample": True, "seed": 1}):
            length = self.length(drafter, **options)
            assert isinstance(length, Controller)
            assert length.max_draft_tokens == drafter.default_num_draft_tokens

    def test_a_number_is_that_number_and_relaxed_decoding_has_the_drafters_own(self) -> None:
        drafter = ConstantDrafter(5)
        for options, expected in (({"num_draft_tokens": 3}, 3), ({"top_beta": 3}, 5)):
            length = self.length(drafter, **options)
            assert isinstance(length, FixedLength)
            assert length.plan(4, None) == expected

    def test_relaxed_outputs_are_the_same_every_time(self, grid: Grid) -> None:
        options = {"top_beta": 3, "tau": 3.0, "eos_token_id": []}
        found = [texts(run(grid.verifier, grid.drafter("small_model"), **options)) for _ in range(3)]
        fixed = texts(run(grid.verifier, grid.drafter("small_model"), num_draft_tokens=5, **options))
        assert found == [fixed] * 3


class Adaptive(Plan):
    """Drafts more after more was accepted: allowed, as it is about earlier blocks."""

    def __init__(self) -> None:
        super().__init__([2])
        self._next = 1

    def plan(self, num_rows: int, tokens_left: Callable[[], float] | None) -> int:
        return self._next

    def learn(self, outcome: Round) -> None:
        self._next = sum(outcome.num_accepted) % 3


class PeekingSearch(SamplingSearch):
    """Wrong: takes a block back having seen that it starts with a token of some kind."""

    def _ask(self, drafter: Drafter, prefix: Prefix, num_draft_tokens: int) -> DraftBlock:
        draft = super()._ask(drafter, prefix, num_draft_tokens)
        return replace(draft, lengths=draft.lengths * (draft.tokens[:, 0] != 3))


class KnownCosts(VerifyCosts):
    def needs_plain_round(self, num_rows: int) -> bool:
        return False


class FlatCosts(LearnedCosts):
    """An engine on which everything takes the same time, so that drafting pays whenever anything is accepted."""

    def __init__(self) -> None:
        super().__init__(KnownCosts(64.0), DraftCosts())

    def verify(self, num_rows: int, max_draft_tokens: int) -> list[float]:
        return [1.0] * (max_draft_tokens + 1)

    def draft(self, num_rows: int, max_draft_tokens: int) -> list[float]:
        return [0.0] * (max_draft_tokens + 1)


@pytest.mark.exhaustive
class TestLaw:
    """Sampling on a vocabulary of 5, every output of three tokens counted."""

    num_rows = 2000
    length = 3
    source = (3, 4, 2)
    seeds = range(20)

    def verifier(self) -> TableVerifier:
        return TableVerifier(tiny_config(vocab_size=5), context=None, spread=2.5)

    def law(self) -> dict[tuple[int, ...], float]:
        """Probability of every finished output."""
        verifier, finished = self.verifier(), {}
        encoded = verifier.encode(SourceBatch.from_lists([self.source], PAD))
        open_ones: dict[tuple[int, ...], float] = {(): 1.0}
        while open_ones:
            prefix, probability = open_ones.popitem()
            count = len(prefix) + 1
            tokens, positions = torch.tensor([[START, *prefix]]), torch.arange(count)[None]
            cache = verifier.new_cache(1)
            output = verifier.decode(tokens, positions, torch.tensor([count]), cache, encoded, Wanted())
            for token, chance in enumerate(output.scores.logits()[0, -1].softmax(-1).tolist()):
                is_over = token == EOS or count == self.length
                (finished if is_over else open_ones)[(*prefix, token)] = probability * chance
        return finished

    def p_values(self) -> list[float]:
        law = self.law()
        places = {output: i for i, output in enumerate(law)}
        options = resolve_options(
            {}, self.verifier().config, None, {"do_sample": True, "max_new_tokens": self.length, "top_k": 0}
        )
        found = []
        for seed in self.seeds:
            small = TableVerifier(tiny_config(vocab_size=5), context=None, seed=1, spread=2.5)
            decoder = Decoder(self.verifier(), SmallModelDrafter(small), max_rows=self.num_rows)
            source = SourceBatch.from_lists([self.source] * self.num_rows, PAD)
            first = seed * self.num_rows
            requests = decoder.add(source, options, seeds=range(first, first + self.num_rows))
            while decoder.alive:
                decoder.step()
            results = [decoder.result(request) for request in requests]
            outputs = [tuple(result.hypotheses[0].token_ids) for result in results]
            assert sum(result.stats.num_accepted for result in results) > 0
            counts = torch.tensor([places[output] for output in outputs]).bincount(minlength=len(law))
            found.append(p_value(counts, torch.tensor(list(law.values()))))
        return found

    def test_lengths_that_follow_earlier_blocks_keep_the_law(self, monkeypatch: pytest.MonkeyPatch) -> None:
        follow(monkeypatch, Adaptive)
        p_values = self.p_values()
        assert sum(p < 0.01 for p in p_values) <= 3, p_values

    def test_the_controller_keeps_the_law(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(search_choice, "costs_of", lambda *_, **__: FlatCosts())
        p_values = self.p_values()
        assert sum(p < 0.01 for p in p_values) <= 3, p_values

    def test_one_that_peeks_at_the_block_is_found_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        follow(monkeypatch, lambda: FixedLength(2))
        monkeypatch.setattr(search_choice, "SamplingSearch", PeekingSearch)
        p_values = self.p_values()
        assert sum(p < 0.01 for p in p_values) >= 15, p_values
