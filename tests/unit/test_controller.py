"""How much is drafted: the decision itself, and what a batch costs that leaves it to the controller. No clock."""

from __future__ import annotations

import gc
import itertools
import json
import math
import random
import time
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spec2seq.decoding.controller import MIN_GAIN, Batch, Controller, FixedLength, Round, choose, speeds
from spec2seq.decoding.costs import (
    MAX_SINCE_PLAIN,
    CostCurve,
    DraftCosts,
    LearnedCosts,
    VerifyCosts,
    costs_of,
    interpolated,
)
from spec2seq.decoding.survival import Survival
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.small_model import SmallModelDrafter
from spec2seq.evaluation.benchmark.call_costs import CallTimes, TimedDrafter
from spec2seq.testing import ConstantDrafter, TableVerifier, tiny_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spec2seq.decoding.controller import DraftLength

RECORDS = json.loads((Path(__file__).parents[1] / "fixtures" / "controller_records.json").read_text())
BATCH_SIZES = [1, 2, 4, 8, 16, 32, 64]
MAX_DRAFT_TOKENS = 10
# of a good trained drafter, as on a card
CARD = {8: (0.8, 0.65, 0.5, 0.4, 0.33, 0.27, 0.22, 0.18)}


@dataclass
class Engine:
    """`CostTable` of recorded calls: seconds by rows and tokens per row, and of drafting by rows."""

    name: str
    draft_share: float | None = None  # of a plain round of as many rows; what copying takes when None

    def __post_init__(self) -> None:
        record = RECORDS["engines"][self.name]
        self._rows, self._tokens, self._seconds = record["rows"], record["tokens"], record["seconds"]

    def call(self, num_rows: int, num_tokens: int) -> float:
        by_rows = [interpolated([num_tokens], (self._tokens, row))[0] for row in self._seconds]
        return interpolated([num_rows], (self._rows, by_rows))[0]

    def drafting(self, num_rows: int, num_draft_tokens: int) -> float:
        if self.draft_share is not None:
            return self.draft_share * self.call(num_rows, 1)
        return RECORDS["copying"]["fixed"] + num_rows * RECORDS["copying"]["per_row"]

    def verify(self, num_rows: int, max_draft_tokens: int) -> list[float]:
        return [self.call(num_rows, k + 1) for k in range(max_draft_tokens + 1)]

    def draft(self, num_rows: int, max_draft_tokens: int) -> list[float]:
        return [0.0, *(self.drafting(num_rows, k) for k in range(1, max_draft_tokens + 1))]


@dataclass
class Line:
    """An output, and for each of its places how long the drafter's block there is and how much of it is right."""

    drafted: list[int]
    right: list[int]
    place: int = 0

    @property
    def is_over(self) -> bool:
        return self.place >= len(self.drafted)


@dataclass
class Outcome:
    """Seconds of some batches, and how often each number of tokens was asked for."""

    seconds: float = 0.0
    rounds: dict[int, int] = field(default_factory=dict)


def decode(lines: Sequence[Line], length: DraftLength, engine: Engine, outcome: Outcome) -> None:
    """Decode one batch as the loop does, by the records."""
    live = [Line(line.drafted, line.right) for line in lines]
    while live:
        num_rows = len(live)
        count = length.plan(num_rows, None)
        outcome.rounds[count] = outcome.rounds.get(count, 0) + 1
        widths, accepted, judged = [], [], []
        for line in live:
            left = len(line.drafted) - line.place
            widths.append(min(line.drafted[line.place], count, left - 1))
            kept = min(line.right[line.place], widths[-1])
            accepted.append(kept)
            judged.append(kept if kept == left - 1 else min(kept + 1, count))
            line.place += kept + 1
        num_queries = num_rows * (max(widths) + 1)
        drafting = engine.drafting(num_rows, count) if count else 0.0
        verifying = engine.call(num_rows, max(widths) + 1)
        outcome.seconds += drafting + verifying
        num_drafts = sum(width > 0 for width in widths)
        length.learn(Round(num_rows, count, num_queries, drafting, verifying, accepted, judged, num_drafts))
        live = [line for line in live if not line.is_over]


def decode_all(lines: Sequence[Line], batch_size: int, make: Callable[[], DraftLength], engine: Engine) -> Outcome:
    """All lines in batches of like length, each with a length of its own."""
    ordered = sorted(lines, key=lambda line: -len(line.drafted))
    outcome = Outcome()
    for start in range(0, len(ordered), batch_size):
        decode(ordered[start : start + batch_size], make(), engine, outcome)
    return outcome


def copied_lines() -> list[Line]:
    return [Line(*line) for line in RECORDS["lines"]]


def drafted_lines(chance: float, num_draft_tokens: int, num_lines: int = 64, seed: int = 0) -> list[Line]:
    """Outputs for which a drafter always has a block, each token of it right with this chance."""
    rng = random.Random(seed)
    lines = []
    for _ in range(num_lines):
        length = rng.randint(12, 45)
        right = []
        for _ in range(length):
            kept = 0
            while kept < num_draft_tokens and rng.random() < chance:
                kept += 1
            right.append(kept)
        lines.append(Line([num_draft_tokens] * length, right))
    return lines


def new_costs() -> LearnedCosts:
    return LearnedCosts(VerifyCosts(64.0), DraftCosts())


def copying_controller(costs: LearnedCosts) -> Controller:
    survival = Survival(PromptLookupDrafter.survival, PromptLookupDrafter.chance_of_draft)
    return Controller(costs, survival, MAX_DRAFT_TOKENS)


def best_fixed(lines: Sequence[Line], batch_size: int, engine: Engine, sizes: Sequence[int]) -> float:
    return min(decode_all(lines, batch_size, lambda k=k: FixedLength(k), engine).seconds for k in sizes)  # type: ignore[misc]


class TestChoice:
    """The pure decision."""

    gains = Survival(CARD).gains(8)

    @pytest.mark.parametrize("name", sorted(RECORDS["engines"]))
    @pytest.mark.parametrize("draft_share", [0.1, 0.4, 2.0])
    def test_it_is_within_the_hysteresis_of_the_best(self, name: str, draft_share: float) -> None:
        engine = Engine(name, draft_share)
        for num_rows in range(1, 65):
            found = speeds(engine, self.gains, Batch(num_rows))
            for current in range(9):
                chosen = choose(engine, self.gains, Batch(num_rows), current)
                assert found[chosen] >= max(found) / 1.05
                assert found[chosen] >= found[0]

    def test_speeds_are_tokens_by_seconds(self) -> None:
        engine = Engine("torch", 0.5)
        plain, double = engine.call(4, 1), engine.call(4, 2)
        found = speeds(engine, [0.0, 0.7], Batch(4))
        assert found == pytest.approx([4 / plain, 4 * 1.7 / (double + 0.5 * plain)])
        # where no row is proposed anything the call is a plain one
        found = speeds(engine, [0.0, 0.7], Batch(4, chance_of_draft=0.1))
        share = 1 - 0.9**4
        assert found[1] == pytest.approx(4 * 1.7 / (plain + share * (double - plain) + 0.5 * plain))
        # starting is shared out among the rounds that are left
        found = speeds(engine, [0.0, 0.7], Batch(4, start_seconds=0.3, tokens_left=17))
        assert found[1] == pytest.approx(4 * 1.7 / (double + 0.5 * plain + 0.3 / 10))

    def test_a_bad_draft_an_expensive_drafter_a_full_machine_and_a_late_start_all_mean_none(self) -> None:
        cheap = Engine("torch", 0.1)
        assert choose(cheap, self.gains, Batch(1)) > 3
        assert choose(cheap, [0.0, 0.05, 0.06], Batch(1)) == 0
        assert choose(Engine("torch", 4.0), self.gains, Batch(1)) == 0
        assert choose(cheap, Survival({2: (0.3, 0.1)}).gains(2), Batch(64)) == 0
        assert choose(cheap, self.gains, Batch(1, start_seconds=1.0, tokens_left=3)) == 0

    def test_a_block_ends_where_the_next_token_does_not_pay(self) -> None:
        cheap = Engine("torch", 0.1)
        rising = [choose(cheap, Survival({1: (chance,)}).gains(8), Batch(1)) for chance in (0.3, 0.6, 0.9)]
        assert rising == sorted(rising)
        assert 0 < rising[1] < rising[2] == 8

    def test_what_is_drafted_now_stays_unless_another_number_is_clearly_better(self) -> None:
        class Table:
            """Two numbers that are nearly as good; the second one `gain` better."""

            def __init__(self, gain: float) -> None:
                self.gain = gain

            def verify(self, num_rows: int, max_draft_tokens: int) -> list[float]:
                return [1.0, 1.0, 1.0 / self.gain]

            def draft(self, num_rows: int, max_draft_tokens: int) -> list[float]:
                return [0.0, 0.0, 0.0]

        gains = [0.0, 1.0, 1.0]
        slightly, clearly = Table(1 + (MIN_GAIN - 1) / 2), Table(2 * MIN_GAIN)
        assert choose(slightly, gains, Batch(1), current=1) == 1
        assert choose(slightly, gains, Batch(1), current=2) == 2
        assert choose(clearly, gains, Batch(1), current=1) == 2
        # but nothing is drafted at a loss, however slight
        assert choose(slightly, [0.0, -0.01, -0.2], Batch(1), current=1) == 0


class TestReplay:
    """Batches decoded by recorded costs and acceptance: the engine's costs are learned on the way."""

    @pytest.mark.parametrize("name", sorted(RECORDS["engines"]))
    @pytest.mark.parametrize("batch_size", BATCH_SIZES)
    def test_copying_is_within_five_percent_of_the_best_fixed_number(self, batch_size: int, name: str) -> None:
        engine, costs, lines = Engine(name), new_costs(), copied_lines()
        first = decode_all(lines, batch_size, lambda: copying_controller(costs), engine)
        again = decode_all(lines, batch_size, lambda: copying_controller(costs), engine)
        best = best_fixed(lines, batch_size, engine, (0, 1, 2, 3, 4, 5, 7, 10))
        assert again.seconds <= 1.05 * best
        # learning what the engine costs is a part of the first call
        assert first.seconds <= 1.08 * best

    @pytest.mark.parametrize("name", sorted(RECORDS["engines"]))
    @pytest.mark.parametrize("batch_size", BATCH_SIZES)
    def test_a_drafter_that_knows_itself_is_within_five_percent_of_the_best_fixed_number(
        self, batch_size: int, name: str
    ) -> None:
        engine, costs, lines = Engine(name, 0.35), new_costs(), drafted_lines(0.8, 8, num_lines=192)
        for is_measured in (False, True):
            outcome = decode_all(lines, batch_size, lambda: Controller(costs, Survival(CARD), 8), engine)
            if is_measured:
                best = best_fixed(lines, batch_size, engine, (0, 1, 2, 3, 4, 6, 8))
                assert outcome.seconds <= 1.05 * best

    @pytest.mark.parametrize("name", sorted(RECORDS["engines"]))
    @pytest.mark.parametrize("batch_size", BATCH_SIZES)
    def test_text_in_which_nothing_repeats_costs_little(self, batch_size: int, name: str) -> None:
        engine, costs = Engine(name), new_costs()
        silent = [Line([0] * len(line.drafted), [0] * len(line.drafted)) for line in copied_lines()]
        wrong = [Line(line.drafted, [0] * len(line.drafted)) for line in copied_lines()]
        for lines, share in ((silent, 1.03), (wrong, 1.04)):
            plain = decode_all(lines, batch_size, lambda: FixedLength(0), engine)
            outcome = decode_all(lines, batch_size, lambda: copying_controller(costs), engine)
            assert outcome.seconds <= share * plain.seconds

    def test_large_batches_are_left_alone(self) -> None:
        engine, costs = Engine("torch"), new_costs()
        lines = [Line([1] * 40, [i % 4 == 0] * 40) for i in range(64)]
        outcome = decode_all(lines, 64, lambda: copying_controller(costs), engine)
        plain = decode_all(lines, 64, lambda: FixedLength(0), engine)
        assert outcome.seconds <= 1.02 * plain.seconds

    def test_a_text_that_starts_to_repeat_is_found_out(self) -> None:
        """After 400 tokens without a match everything is copied: the drafter comes back."""
        engine, costs = Engine("torch"), new_costs()
        line = Line([0] * 400 + [10] * 400, [0] * 400 + [min(10, 400 - i) for i in range(400)])
        outcome, plain = Outcome(), Outcome()
        decode([line], copying_controller(costs), engine, outcome)
        decode([line], FixedLength(0), engine, plain)
        assert outcome.rounds.get(10, 0) > 20
        assert outcome.seconds < 0.75 * plain.seconds

    def test_probes_of_a_drafter_that_loses_are_rare(self) -> None:
        engine, costs = Engine("torch", 3.0), new_costs()
        lines = [Line([5] * 1000, [0] * 1000)]
        outcome = decode_all(lines, 1, lambda: Controller(costs, Survival({5: (0.2, 0.1)}), 5), engine)
        plain = decode_all(lines, 1, lambda: FixedLength(0), engine)
        num_probes = sum(count for number, count in outcome.rounds.items() if number)
        assert 0 < num_probes < 20
        assert outcome.seconds <= 1.02 * plain.seconds

    def test_a_probe_that_took_much_longer_than_expected_is_paid_for(self) -> None:
        """After one that lost as much as 20 plain rounds take, 2000 of these come before the next."""
        engine = Engine("torch")
        controller = Controller(new_costs(), Survival({5: (0.05,)}), 5)
        plain = engine.call(1, 1)
        numbers = []
        for _ in range(2500):
            numbers.append(controller.plan(1, None))
            seconds = 21 * plain if numbers[-1] else plain
            judged = [[0], [1]] if numbers[-1] else [[], []]
            controller.learn(Round(1, numbers[-1], 1 + numbers[-1], 0.0, seconds, *judged, num_drafts=1))
        probes = [place for place, number in enumerate(numbers) if number]
        assert probes
        assert all(later - before >= 2000 for before, later in itertools.pairwise(probes))

    def test_plain_rounds_are_measured_again_and_again(self) -> None:
        """Otherwise a plain round that was slow once would make drafting look good for ever."""
        engine, costs = Engine("torch", 0.1), new_costs()
        lines = [Line([8] * 3000, [8] * 3000)]
        outcome = decode_all(lines, 1, lambda: Controller(costs, Survival(CARD), 8), engine)
        assert outcome.rounds[0] >= 3000 // 9 // (MAX_SINCE_PLAIN + 2)
        assert outcome.rounds[0] < outcome.rounds[8] / 20


class TestSurvival:
    def test_a_prior_is_what_it_says(self) -> None:
        survival = Survival({2: (0.5, 0.4), 4: (0.6, 0.3, 0.15, 0.1)})
        sums = [0.0, 0.5, 0.9, 0.6 + 0.3 + 0.15, 0.6 + 0.3 + 0.15 + 0.1]
        assert survival.gains(4) == pytest.approx(sums)
        assert survival.gains(3) == pytest.approx(sums[:4])
        # beyond the card the last chance goes on
        assert survival.gains(5)[5] == pytest.approx(sums[4] + 0.1 * (0.1 / 0.15))

    def test_outcomes_move_the_chances(self) -> None:
        survival = Survival({3: (0.5, 0.25, 0.125)})
        for _ in range(200):
            survival.learn([3, 0], [3, 1], num_drafts=2)
        # 400 blocks, of which the first token is judged in all and the others in half; the prior counts as two more
        first, later = (0.5 * 2 + 200) / (2 + 400), (0.5 * 2 + 200) / (2 + 200)
        sums = [0.0, first, first + first * later, first + first * later + first * later**2]
        assert survival.gains(3) == pytest.approx(sums)
        for _ in range(400):
            survival.learn([0, 0], [1, 1], num_drafts=0)
        assert survival.gains(3)[3] < 0.5
        assert survival.chance_of_draft < 0.3

    def test_a_block_that_could_not_be_judged_further_is_no_failure(self) -> None:
        survival = Survival({2: (0.5, 0.25)})
        before = survival.gains(2)
        survival.learn([0], [0], num_drafts=1)
        assert survival.gains(2) == before
        survival.learn([1], [1], num_drafts=1)
        first, second = survival.gains(2)[1], survival.gains(2)[2] - survival.gains(2)[1]
        assert first > before[1]
        assert second / first == pytest.approx(0.5)

    def test_what_drafters_say_of_themselves(self) -> None:
        assert Survival.expected_of(PromptLookupDrafter(tiny_config())).chance_of_draft < 1
        unknown = Survival.expected_of(ConstantDrafter(5))
        assert unknown.chance_of_draft == 1
        assert 0.3 < unknown.gains(1)[1] < 0.7


class TestCosts:
    def test_the_least_of_the_latest_samples_counts(self) -> None:
        curve = CostCurve(64.0)
        for seconds in (9.0, 5.0, 7.0):
            curve.add(4, seconds)
        assert curve.at([4]) == [5.0]
        for _ in range(5):
            curve.add(4, 6.0)
        assert curve.at([4]) == [6.0]

    def test_between_and_beyond_samples(self) -> None:
        curve = CostCurve(64.0)
        curve.add(4, 1.0)
        assert curve.at([4, 68]) == pytest.approx([1.0, 1.0 + 64 / 68])
        for _ in range(2):
            curve.add(8, 1.4)
        assert curve.at([4, 6, 8, 16]) == pytest.approx([1.0, 1.2, 1.4, 2.2])

    def test_a_first_slow_call_is_not_taken_at_its_word(self) -> None:
        curve = CostCurve(64.0)
        curve.add(1, 1.0)
        curve.add(8, 9.0)
        assert curve.at([8])[0] < 6.0
        curve.add(8, 9.5)
        assert curve.at([8]) == [9.0]
        # nor is one that took a hundred times as long as it should
        curve.add(64, 1000.0)
        assert curve.at([64])[0] < 200.0

    def test_every_number_of_rows_starts_with_plain_rounds(self) -> None:
        costs = VerifyCosts(64.0)
        assert costs.needs_plain_round(4)
        for _ in range(2):
            costs.add(4, 4, 1.0)
        assert not costs.needs_plain_round(4)
        assert not costs.needs_plain_round(5)
        assert costs.needs_plain_round(8)
        for _ in range(MAX_SINCE_PLAIN + 1):
            costs.add(4, 12, 1.1)
        assert costs.needs_plain_round(4)
        costs.add(4, 4, 1.0)
        assert not costs.needs_plain_round(4)

    def test_calls_of_other_rows_give_the_shape(self) -> None:
        costs = VerifyCosts(64.0)
        for size, seconds in ((2, 1.0), (16, 2.0), (32, 3.0)) * 2:
            costs.add(2, size, seconds)
        costs.add(16, 16, 3.0)
        assert costs.at(16, 1) == pytest.approx([3.0, 4.5])
        assert costs.at(2, 7)[7] == pytest.approx(2.0)

    def test_calls_far_larger_than_any_seen_are_not_tried(self) -> None:
        costs = VerifyCosts(64.0)
        costs.add(64, 64, 1.0)
        assert [math.isinf(seconds) for seconds in costs.at(64, 4)] == [False, False, False, True, True]
        costs = VerifyCosts(64.0)
        costs.add(1, 1, 1.0)
        assert not math.isinf(costs.at(1, 25)[25])

    def test_drafting_between_numbers_that_are_known(self) -> None:
        costs = DraftCosts()
        assert costs.at(1, 2) == [0.0, 0.0, 0.0]
        costs.add(1, 2, 0.4)
        assert costs.at(1, 4) == pytest.approx([0.0, 0.2, 0.4, 0.4, 0.4])
        costs.add(1, 4, 0.8)
        assert costs.at(1, 4) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
        assert costs.start(3) == 0.0
        costs.add_start(2, 0.5)
        assert costs.start(4) > 0.5

    def test_costs_belong_to_what_is_loaded(self) -> None:
        verifier, other, small = TableVerifier(), TableVerifier(), TableVerifier()
        drafters = [SmallModelDrafter(small), SmallModelDrafter(small), SmallModelDrafter(other)]
        first, second, third = (costs_of(verifier, drafter) for drafter in drafters)
        assert first.verifying is second.verifying is third.verifying
        assert first.drafting is second.drafting
        assert first.drafting is not third.drafting
        assert costs_of(other, drafters[0]).verifying is not first.verifying
        assert costs_of(verifier, drafters[0], is_sampling=True).verifying is not first.verifying
        copying = [costs_of(verifier, PromptLookupDrafter(verifier.config)).drafting for _ in range(2)]
        assert copying[0] is copying[1]
        assert costs_of(other, PromptLookupDrafter(verifier.config)).drafting is not copying[0]

    def test_nothing_is_kept_of_what_is_gone(self) -> None:
        verifier, small = TableVerifier(), TableVerifier()
        costs = costs_of(verifier, SmallModelDrafter(small))
        costs.drafting.add(1, 4, 0.5)
        gone = weakref.ref(small)
        del small
        gc.collect()
        assert gone() is None
        drafting = weakref.ref(costs.drafting)
        del costs
        gc.collect()
        assert drafting() is None

    def test_a_drafter_with_a_watch_is_known_as_the_one_inside(self) -> None:
        verifier, times = TableVerifier(), CallTimes(time.perf_counter)
        for drafter in (SmallModelDrafter(TableVerifier()), PromptLookupDrafter(verifier.config)):
            watched = TimedDrafter(drafter, times)
            assert costs_of(verifier, watched).drafting is costs_of(verifier, drafter).drafting
            mine, its = Survival.expected_of(watched), Survival.expected_of(drafter)
            assert mine.gains(8) == its.gains(8)
            assert mine.chance_of_draft == its.chance_of_draft
