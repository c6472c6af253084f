"""Rounds of many jobs: each gets what it would get alone, nobody waits for ever, and a broken one breaks alone."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from spec2seq import GenerationOptions, Pipeline
from spec2seq.errors import InputError, OptionError
from spec2seq.pipelines.plans import TextOptions
from spec2seq.serving.calls import Accepted, Finished, RoundTokens, TextCall, TextPart
from spec2seq.serving.jobs import Job
from spec2seq.serving.lanes import MAX_LANES
from spec2seq.serving.refusals import ModelFailureError
from spec2seq.serving.scheduler import NEWCOMER_TOKENS, Scheduler
from tests.serving_models import PoisonedVerifier, make_folder, poisoned
from tests.text_models import LINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.serving.calls import Telling

POISON = "3"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline.from_pretrained(make_folder(tmp_path_factory.mktemp("models")))


class Box:
    """A mailbox that keeps what is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def put(self, events: Sequence[Any]) -> None:
        self.events.extend(events)


class Figures:
    """Counts what the scheduler tells."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.num_failed = 0

    def began(self, seconds: float) -> None:
        pass

    def stepped(self, num_rows: int, seconds: float) -> None:
        self.rows.append(num_rows)

    def failed_batch(self) -> None:
        self.num_failed += 1


class Desk:
    """A scheduler and the jobs that were given to it, driven step by step."""

    def __init__(self, pipeline: Pipeline, max_batch_tokens: int = 16384) -> None:
        self.figures = Figures()
        self.scheduler = Scheduler(pipeline, GenerationOptions(), max_batch_tokens, self.figures)
        self.boxes: dict[Job, Box] = {}

    def give(self, *texts: str, telling: Telling = "nothing", **arguments: Any) -> Job:
        box = Box()
        job = Job(TextCall(texts, TextOptions(), arguments, telling), 60.0, box)  # type: ignore[arg-type]
        self.boxes[job] = box
        self.scheduler.plan(job)
        return job

    def turn(self) -> None:
        self.scheduler.let_in()
        self.scheduler.step()

    def run(self) -> None:
        for _ in range(2000):
            if all(job.is_over for job in self.boxes):
                break
            self.turn()
        assert all(job.is_over for job in self.boxes)
        assert self.scheduler.num_running == 0

    def texts(self, job: Job) -> list[str]:
        assert job.results is not None, job.error
        return [result.text for result in job.results]


def test_every_job_gets_what_it_would_get_alone(pipeline: Pipeline) -> None:
    choices: list[dict[str, Any]] = [
        {},
        {"num_draft_tokens": 0},
        {"num_beams": 3, "num_return_sequences": 2},
        {"num_beams": 3, "speculative_beams": True},
        {"top_beta": 3, "tau": 2.0, "num_draft_tokens": 4},
        {"do_sample": True, "seed": 5},
        {"max_new_tokens": 3},
        {"no_repeat_ngram_size": 2},
    ]
    desk = Desk(pipeline)
    given = [(desk.give(line, **choice), line, choice) for line in LINES[:3] for choice in choices]
    desk.run()
    for job, line, choice in given:
        (expected,) = pipeline.generate(line, **choice)
        assert job.results is not None, job.error
        assert job.results[0].token_ids == expected.token_ids, choice
        assert desk.texts(job) == [expected.text]
        assert [one.text for one in job.results[0].alternatives] == [one.text for one in expected.alternatives]
    assert max(desk.figures.rows) == 9, "three beams of three; jobs with equal options share a batch"


def test_lists_blank_texts_and_paragraphs(pipeline: Pipeline) -> None:
    texts = ["", " \n", f"{LINES[0]}\r\n\r\n{LINES[1]}\n", LINES[2]]
    desk = Desk(pipeline)
    job, empty, blank = desk.give(*texts), desk.give(), desk.give("\t")
    assert empty.results == []
    assert desk.texts(blank) == ["\t"], "blank texts never reach the model"
    desk.run()
    assert desk.texts(job) == [result.text for result in pipeline.generate(texts)]


def test_what_is_told_on_the_way_is_the_result(pipeline: Pipeline) -> None:
    text = f"{LINES[0]}\n\n{LINES[1]}\n"
    desk = Desk(pipeline)
    parts = desk.give(text, LINES[3], telling="texts", num_draft_tokens=4)
    rounds = desk.give(text, telling="rounds", num_draft_tokens=4)
    desk.run()
    expected = [result.text for result in pipeline.generate([text, LINES[3]])]
    told = [event for event in desk.boxes[parts].events if isinstance(event, TextPart)]
    assert len(told) == 4
    assert ["".join(part.text for part in told if part.index == i) for i in (0, 1)] == expected

    first, *between, last = desk.boxes[rounds].events
    assert isinstance(first, Accepted)
    assert isinstance(last, Finished)
    assert all(isinstance(event, RoundTokens) for event in between)
    pieces = ["".join("".join(event.texts) for event in between if event.piece == i) for i in (0, 1)]
    assert first.plans[0].split.join(pieces) == last.results[0].text == expected[0]
    numbers = [[event.round for event in between if event.piece == i] for i in (0, 1)]
    assert numbers == [list(range(1, len(mine) + 1)) for mine in numbers]
    assert sum(map(len, numbers)) == last.results[0].stats.num_rounds
    ids = [token_id for i in (0, 1) for event in between if event.piece == i for token_id in event.token_ids]
    assert ids == last.results[0].token_ids
    num_accepted = [origin for event in between for origin in event.origins].count("accepted")
    assert num_accepted == last.results[0].stats.num_accepted > 0


def test_a_newcomer_joins_at_the_next_round_and_leaves_when_it_is_done(pipeline: Pipeline) -> None:
    desk = Desk(pipeline)
    long = desk.give(LINES[0], min_new_tokens=3, max_new_tokens=60, num_draft_tokens=0)
    desk.turn()
    desk.turn()
    short = desk.give(LINES[1], min_new_tokens=3, max_new_tokens=3, num_draft_tokens=0)
    for _ in range(3):
        assert not short.is_over
        desk.turn()
    assert short.is_over
    assert desk.figures.rows == [1, 1, 2, 2, 2]
    assert not long.is_over
    desk.run()
    assert desk.texts(long) == [pipeline.generate(LINES[0], min_new_tokens=3, max_new_tokens=60)[0].text]


def test_other_options_make_progress_beside_a_stream_of_equal_ones(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("spec2seq.serving.scheduler.perf_counter", lambda: next(ticks))  # every round takes one second
    desk = Desk(pipeline)
    for i in range(20):
        desk.give(LINES[i % 8], num_draft_tokens=0)
    desk.turn()
    odd = desk.give(LINES[0], num_beams=2)
    num_rounds = 0
    while not odd.is_over:
        desk.give(LINES[num_rounds % 8], num_draft_tokens=0)
        desk.turn()
        num_rounds += 1
    assert 60 < num_rounds < 90, "the odd one has every fifth round"
    assert sum(job.is_over for job in desk.boxes) > 60, "and the others have the rest"


@pytest.mark.parametrize("cost", [1, 10])
def test_lanes_share_the_time_and_not_the_rounds(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, cost: int
) -> None:
    """A lane whose rounds take ten times as long has a tenth of the rounds."""
    desk = Desk(pipeline)
    dear = desk.give(LINES[0], max_new_tokens=120, num_draft_tokens=0)
    cheap = desk.give(LINES[0], max_new_tokens=100, num_draft_tokens=0, no_repeat_ngram_size=30)
    now = 0

    def clock() -> int:
        nonlocal now
        lane = min(desk.scheduler._lanes._lanes.values(), key=lambda lane: lane.used)
        now += cost if lane.key.options.no_repeat_ngram_size == 0 else 1
        return now

    monkeypatch.setattr("spec2seq.serving.scheduler.perf_counter", clock)
    while not cheap.is_over:
        desk.turn()
    assert not dear.is_over
    assert abs((len(desk.figures.rows) - 100) - 100 / cost) <= 2


def test_more_kinds_of_options_than_lanes_all_get_their_turn(pipeline: Pipeline) -> None:
    desk = Desk(pipeline)
    kinds = [{"min_new_tokens": n, "max_new_tokens": 4} for n in range(MAX_LANES)]
    for kind in kinds:
        desk.give(LINES[0], **kind)
    desk.turn()
    late = desk.give(LINES[1], no_repeat_ngram_size=2)
    num_rounds = 0
    while not late.is_over:
        for kind in kinds:  # no lane is ever short of newcomers
            desk.give(LINES[num_rounds % 8], **kind)
        desk.turn()
        num_rounds += 1
        assert num_rounds < 200
    assert desk.texts(late) == [pipeline.generate(LINES[1], no_repeat_ngram_size=2)[0].text]
    assert sum(job.is_over for job in desk.boxes) > num_rounds


def test_a_short_request_does_not_wait_for_a_long_list(pipeline: Pipeline) -> None:
    desk = Desk(pipeline)
    many = desk.give(*(LINES * 20))
    for _ in range(3):
        desk.turn()
    one = desk.give(LINES[0])
    while not one.is_over:
        desk.turn()
        assert not many.is_over
    assert max(desk.figures.rows) <= 25, "a job has three quarters of the 32 rows at most"
    desk.run()
    assert desk.texts(many) == [result.text for result in pipeline.generate(LINES)] * 20


def test_newcomers_are_encoded_in_portions(pipeline: Pipeline) -> None:
    desk = Desk(pipeline)
    for _ in range(40):
        desk.give(" ".join(LINES[:3]))
    desk.turn()
    (ids,) = pipeline.tokenizer.encode([" ".join(LINES[:3])])
    assert desk.figures.rows == [-(-NEWCOMER_TOKENS // len(ids))]
    assert desk.figures.rows[0] < 32


def test_the_batch_stays_within_its_tokens_over_all_lanes(pipeline: Pipeline) -> None:
    desk = Desk(pipeline, max_batch_tokens=700)
    kinds = (0, 2)
    jobs = [desk.give(line, num_draft_tokens=0, no_repeat_ngram_size=n) for line in LINES for n in kinds]
    desk.turn()
    assert {entry.job.options.no_repeat_ngram_size for entry in desk.scheduler._lanes.entries} == set(kinds)
    sizes = [lane.decoder.size for lane in desk.scheduler._lanes._lanes.values()]
    assert 500 < sum(size.tokens for size in sizes) <= 700
    desk.run()
    alone = {n: pipeline.generate(LINES, no_repeat_ngram_size=n) for n in kinds}
    expected = [alone[n][i].text for i in range(len(LINES)) for n in kinds]
    assert [desk.texts(job)[0] for job in jobs] == expected


def test_what_needs_much_room_is_not_overtaken_until_there_is_none(pipeline: Pipeline) -> None:
    desk = Desk(pipeline, max_batch_tokens=300)
    for i in range(4):
        desk.give(LINES[i], max_new_tokens=8)
    desk.turn()
    large = desk.give(f"{LINES[0]} {LINES[1]} {LINES[2]}", max_new_tokens=8)
    num_rounds = 0
    while not large.is_over:
        desk.give("a", max_new_tokens=8)  # fits beside the others, as the large one does not
        desk.turn()
        num_rounds += 1
        assert num_rounds < 40


def test_long_sources_have_batches_of_their_own(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec2seq.serving.lanes.LONG_SOURCE", 40)
    desk = Desk(pipeline)
    jobs = [desk.give(text) for text in (LINES[0], LINES[0] + LINES[1], LINES[1], LINES[2] + LINES[3], LINES[4])]
    desk.turn()
    desk.turn()
    assert sorted(desk.figures.rows) == [2, 3]
    desk.run()
    assert [desk.texts(job)[0] for job in jobs] == [pipeline.generate(job.call.texts[0])[0].text for job in jobs]


def test_a_dropped_job_leaves_at_once_and_the_others_notice_nothing(pipeline: Pipeline) -> None:
    desk = Desk(pipeline)
    gone = desk.give(*LINES, min_new_tokens=50, max_new_tokens=50)
    kept = desk.give(LINES[2], min_new_tokens=50, max_new_tokens=50)
    desk.turn()
    before = desk.scheduler.num_running
    desk.scheduler.drop(gone)
    assert desk.scheduler.num_running == before - len(LINES) == 1
    del desk.boxes[gone]
    desk.run()
    assert desk.texts(kept) == [pipeline.generate(LINES[2], min_new_tokens=50, max_new_tokens=50)[0].text]
    assert gone.results is None


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_poisoned_request_fails_alone(pipeline: Pipeline, how: Any) -> None:
    bad_text = f"It reads the text {POISON}"
    expected = {text: pipeline.generate(text, max_new_tokens=24, min_new_tokens=24)[0].text for text in LINES[:7]}
    broken = poisoned(pipeline, POISON, how)
    desk = Desk(broken)
    settings: dict[str, Any] = {"max_new_tokens": 24, "min_new_tokens": 24, "num_draft_tokens": 0}
    first = desk.give(LINES[0], telling="texts", **settings)
    watched = desk.give(LINES[1], telling="rounds", **settings)
    for _ in range(5):
        desk.turn()
    bad = desk.give(bad_text, LINES[5], **settings)
    others = [desk.give(line, **settings) for line in LINES[2:7]]
    desk.run()
    assert isinstance(bad.error, ModelFailureError)
    assert "secret" not in str(bad.error)
    assert [desk.texts(job)[0] for job in others] == [expected[line] for line in LINES[2:7]]
    assert desk.figures.num_failed == (2 if how == "raises" else 0), "the batch, then the poisoned piece by itself"

    told = [event.text for event in desk.boxes[first].events if isinstance(event, TextPart)]
    assert "".join(told) == desk.texts(first)[0] == expected[LINES[0]], "nothing is told twice"
    rounds = [event for event in desk.boxes[watched].events if isinstance(event, RoundTokens)]
    assert watched.results is not None
    assert [token_id for event in rounds for token_id in event.token_ids] == watched.results[0].token_ids
    assert desk.texts(watched) == [expected[LINES[1]]]


def test_an_unrepeatable_stream_is_not_continued_with_another_text(pipeline: Pipeline) -> None:
    desk = Desk(poisoned(pipeline, POISON, "raises"))
    settings: dict[str, Any] = {"do_sample": True, "max_new_tokens": 24, "min_new_tokens": 24}
    told, silent = desk.give(LINES[0], telling="texts", **settings), desk.give(LINES[1], **settings)
    for _ in range(4):
        desk.turn()
    desk.give(POISON, **settings)
    desk.run()
    assert isinstance(told.error, ModelFailureError)
    assert silent.results is not None, "nothing was told of it yet: any sample will do"


def test_what_is_invalid_is_refused_when_it_is_planned(pipeline: Pipeline) -> None:
    desk = Desk(pipeline)
    wrong = [
        desk.give("a", num_beams=-1),
        desk.give("a", num_beams=3, top_beta=3),
        desk.give("a", unheard_of=1),
        desk.give("a", num_beams=2, telling="texts"),
        desk.give("a", num_draft_tokens=10**6),
    ]
    desk.turn()
    assert [type(job.error) for job in wrong] == [OptionError] * 5
    assert isinstance(desk.give("\ud800").error, InputError)
    assert desk.boxes[wrong[0]].events == [wrong[0].error]


def test_warnings_reach_whoever_caused_them(pipeline: Pipeline, recwarn: pytest.WarningsRecorder) -> None:
    desk = Desk(pipeline)
    job, other = desk.give(LINES[0], temperature=0.5), desk.give(LINES[0], num_beams=2)
    desk.run()
    assert [len(desk.boxes[one].events[-1].warnings) for one in (job, other)] == [1, 0]
    assert "temperature" in desk.boxes[job].events[-1].warnings[0]
    assert not recwarn.list


def test_a_decoder_that_broke_is_not_used_again(pipeline: Pipeline) -> None:
    broken = poisoned(pipeline, POISON, "raises")
    assert isinstance(broken.verifier, PoisonedVerifier)
    desk = Desk(broken)
    for _ in range(3):
        bad, good = desk.give(POISON), desk.give(LINES[0])
        desk.run()
        assert isinstance(bad.error, ModelFailureError)
        assert desk.texts(good) == [pipeline.generate(LINES[0])[0].text]
