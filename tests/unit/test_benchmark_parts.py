"""The parts of the benchmark that need no model: the timed region, the cost model, lines, profiles, agreement."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from spec2seq.errors import InputError, OptionError
from spec2seq.evaluation.benchmark.agreement import agreement
from spec2seq.evaluation.benchmark.cost_model import (
    CallCosts,
    decoding_speedup,
    needed_tokens_per_round,
    predicted_speedup,
    project,
    tokens_per_round,
    whole_speedup,
)
from spec2seq.evaluation.benchmark.lines import read_lines
from spec2seq.evaluation.benchmark.profiles import AcceptanceProfile, profile_of
from spec2seq.evaluation.benchmark.records import RecordFile, read_records
from spec2seq.evaluation.benchmark.systems import Engine, System, catalogue, missing_package, select
from spec2seq.evaluation.benchmark.timing import batches_of, by_turns, in_order, timed_pass
from spec2seq.training.model_card import CARD_SLOTS, _row
from spec2seq.types import RequestStats

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass
class FakeTime:
    """A clock that moves only when somebody works."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeRunner:
    """Takes 2 seconds per text, and 100 for anything that is none of the timed region's business."""

    time: FakeTime
    taken: list[RequestStats] = field(default_factory=list)

    def run(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        self.time.now += 2.0 * len(sources)
        return [[*source, 0] for source in sources]

    def take_stats(self) -> list[RequestStats]:
        self.time.now += 100.0
        return self.taken


def test_only_ids_in_ids_out_is_timed() -> None:
    time = FakeTime()
    batches = [[[1], [2]], [[3]]]
    timed = timed_pass(FakeRunner(time), batches, time)
    assert timed.seconds == 6.0
    assert timed.outputs == [[1, 0], [2, 0], [3, 0]]
    assert time.now == 106.0


def test_systems_take_turns_and_another_one_begins_each_round() -> None:
    assert list(by_turns("abc", 2)) == [(1, "a"), (1, "b"), (1, "c"), (2, "b"), (2, "c"), (2, "a")]
    assert list(by_turns("", 2)) == []


def test_batches_are_the_same_for_all_and_can_be_undone() -> None:
    sources = [[1, 1, 1], [2], [3, 3]]
    batches, order = batches_of(sources, 2)
    assert batches == [[[2], [3, 3]], [[1, 1, 1]]]
    assert in_order([source for batch in batches for source in batch], order) == sources
    assert batches_of(sources, 1) == ([[source] for source in sources], [0, 1, 2])


COSTS = CallCosts(encode=4.0, start=2.0, verify={0: 1.0, 4: 1.5, 8: 2.0}, draft={4: 0.5, 8: 1.0}, host=0.25)


def test_the_cost_model_by_hand() -> None:
    assert tokens_per_round([0.75, 0.5, 0.25]) == 2.5
    assert decoding_speedup(3.0, 1.25, 0.25) == 2.0
    # encoders of 4 and 2 steps, 20 tokens: 24 steps against 4 + 2 + 10
    assert whole_speedup(2.0, 4.0, 2.0, 20.0) == 1.5
    # a step takes 2 s: c = 0.75, d = 0.25, e_v = 2, e_d = 1; 3 tokens per round: (2 + 12) / (2 + 1 + 4)
    assert predicted_speedup(COSTS, 2.0, 12.0, 3.0, 4) == 2.0


def test_costs_of_rounds_and_texts_by_hand() -> None:
    assert COSTS.block_sizes == [4, 8]
    assert COSTS.round_seconds(0) == 1.25
    assert COSTS.round_seconds(8) == 3.25
    assert COSTS.text_seconds(10, 1.0, 0) == 4 + 12.5
    assert COSTS.text_seconds(10, 2.5, 4) == 4 + 2 + 4 * 2.25
    assert CallCosts.from_dict(json.loads(json.dumps(COSTS.as_dict()))) == COSTS


def test_tokens_per_round_that_a_wish_needs() -> None:
    # 10 tokens in 15 s: 9 s remain for rounds of 2.25 s, so 4 rounds
    assert needed_tokens_per_round(COSTS, 15.0, 10.0, 4) == 2.5
    assert needed_tokens_per_round(COSTS, 6.0, 10.0, 4) is None
    # 10 rounds' worth in 1 s would need more than 5 tokens per round
    assert needed_tokens_per_round(COSTS, 7.0, 10.0, 4) is None


def test_a_projection_takes_the_best_block() -> None:
    found = project(COSTS, {4: 2.5, 8: 5.0, 16: 9.0}, 10.0, {"peer": 50.0})
    assert found is not None
    # k = 4: 6 + 4 x 2.25 = 15; k = 8: 6 + 2 x 3.25 = 12.5; no costs are known for 16
    assert (found.num_draft_tokens, found.tokens_per_round, found.text_seconds) == (8, 5.0, 12.5)
    assert found.speedups == {"peer": 4.0}
    assert project(COSTS, {3: 2.0}, 10.0, {}) is None


def test_agreement_by_hand() -> None:
    found = agreement([[1, 2, 3], [4, 9]], [[1, 2, 8], [4, 5]])
    assert (found.num_positions, found.num_same, found.share) == (5, 3, 0.6)
    without_first = agreement([[1, 2, 3], [4, 9]], [[1, 2, 8], [4, 5]], num_forced=1)
    assert (without_first.num_positions, without_first.num_same) == (3, 1)
    assert agreement([], []).share == 1.0


def test_lines_of_text_and_tables(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\n\ntwo\r\nthree\n", encoding="utf-8")
    (tmp_path / "out.txt").write_text("uno\nx\ndue\ntre\n", encoding="utf-8")
    found = read_lines(tmp_path / "in.txt", tmp_path / "out.txt", 2)
    assert (found.sources, found.references, found.num_blank) == (["one", "two"], ["uno", "due"], 1)
    assert read_lines(tmp_path / "in.txt").references is None
    with gzip.open(tmp_path / "pairs.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("one\tuno\tmore\ntwo\tdue\tmore\n")
    table = read_lines(tmp_path / "pairs.tsv.gz")
    assert (table.sources, table.references) == (["one", "two"], ["uno", "due"])


def test_lines_and_references_of_different_length(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\n", encoding="utf-8")
    (tmp_path / "out.txt").write_text("uno\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"has 2 lines and .* has 1"):
        read_lines(tmp_path / "in.txt", tmp_path / "out.txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "there is no such file"),
        ("blank.txt", b"\n \n", "no line with text"),
        ("latin.txt", b"caf\xe9\n", "not UTF-8"),
        ("cut.txt.gz", b"\x1f\x8b\x08\x00", "no complete gzip file"),
    ],
)
def test_lines_that_cannot_be_read(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_lines(tmp_path / name)


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    profile = AcceptanceProfile("here", {2: 1.7}, {2: (0.5, 0.25)})
    (tmp_path / "profile.json").write_text(json.dumps(profile.as_dict()))
    found = profile_of(tmp_path / "profile.json")
    assert (found.tokens_per_round, found.survival) == ({2: 1.7}, {2: (0.5, 0.25)})
    (tmp_path / "bare.json").write_text('{"survival": {"2": [0.5, 0.25]}}')
    assert profile_of(tmp_path / "bare.json").tokens_per_round == {2: 1.75}


def test_a_profile_from_a_drafters_card(tmp_path: Path) -> None:
    figures = {k: {"num_tokens": 30, "num_rounds": 20, "kept": [5] * k, "reached": [10] * k} for k in CARD_SLOTS}
    rows = "".join(_row(k, figures[k]) for k in CARD_SLOTS)
    (tmp_path / "README.md").write_text(f"# Drafter\n\n| slots | tokens per round | survival |\n{rows}\n")
    found = profile_of(tmp_path)
    assert found.tokens_per_round == dict.fromkeys(CARD_SLOTS, 1.5)
    assert found.survival == {k: (0.5,) * k for k in CARD_SLOTS}


@pytest.mark.parametrize("content", ["{}", "[1]", "no json", '{"survival": {"2": [2.0]}}', '{"survival": {}}'])
def test_what_is_no_profile(content: str, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(content)
    with pytest.raises(InputError, match="profile"):
        profile_of(tmp_path / "profile.json")
    with pytest.raises(InputError, match="no such file"):
        profile_of(tmp_path / "missing.json")
    with pytest.raises(InputError, match="tells no acceptance"):
        profile_of(tmp_path)


def test_every_system_with_every_engine() -> None:
    systems = catalogue((1, 2))
    assert len(systems) == len(set(systems)) == 2 * (5 * 5 + 3 * 1 + 2 * 2)
    ours = select(systems, ["spec2seq-exact"], ["openvino-int8"])
    assert ours == [System("exact", Engine("spec2seq", "openvino", "int8", threads)) for threads in (1, 2)]
    assert {system.engine.maker for system in select(systems, ["ctranslate2"])} == {"ctranslate2"}
    assert {system.engine.backend for system in catalogue((2, 1), "cuda")} == {"torch", "transformers"}
    assert {system.engine.threads for system in catalogue((2, 1), "cuda")} == {2}
    assert [system.takes(2) for system in systems if system.method == "assisted"] == [False, False]
    with pytest.raises(OptionError, match="'speculation' does not exist"):
        select(systems, ["speculation"])
    with pytest.raises(OptionError, match="no system is left"):
        select(systems, ["ctranslate2"], ["torch-float32"])


def test_a_missing_package_has_its_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec2seq.evaluation.benchmark.systems.find_spec", lambda name: None)
    assert missing_package(Engine("ctranslate2", "ctranslate2", "int8", 1)) == (
        "ctranslate2 is not installed: pip install 'spec2seq[bench]'"
    )
    assert missing_package(Engine("spec2seq", "openvino", "int8", 1)) == (
        "openvino is not installed: pip install 'spec2seq[openvino]'"
    )
    assert missing_package(Engine("spec2seq", "torch", "float32", 1)) is None


def test_records_are_written_as_they_come(tmp_path: Path) -> None:
    records = RecordFile(tmp_path / "out")
    records.add("pass", {"seconds": 1.0})
    assert read_records(records.path) == [{"record": "pass", "seconds": 1.0}]
    records.add("pass", {"seconds": 2.0})
    assert read_records(records.path) == records.records
    with pytest.raises(OptionError, match="holds the results of another run"):
        RecordFile(tmp_path / "out")
    with pytest.raises(InputError, match="no such file"):
        read_records(tmp_path / "other.jsonl")
    for content in ("{", "3\n"):
        (tmp_path / "bad.jsonl").write_text(content)
        with pytest.raises(InputError, match="restore it"):
            read_records(tmp_path / "bad.jsonl")
