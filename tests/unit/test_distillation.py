"""Distilled pairs are what the model says, once per line and in order, however often the run is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from spec2seq import Pipeline
from spec2seq.cli.main import run
from spec2seq.errors import CheckpointError, InputError, ModelNotFoundError, OptionError
from spec2seq.training.distillation import Distillation, DistillationSettings
from spec2seq.training.records import DistilledPair, SkippedLine, from_json, to_json
from spec2seq.training.shards import read_manifest, read_pairs, read_shard
from spec2seq.training.source_lines import SourceLines
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from pathlib import Path

    from spec2seq.training.distillation import DistillationReport

OPTIONS: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "marian"
    make_text_model("marian", folder)
    return folder


@pytest.fixture(scope="module")
def pipeline(model: Path) -> Pipeline:
    return Pipeline.from_pretrained(model, None)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "source.txt"
    file.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return file


def prepared(pipeline: Pipeline, source: Path, folder: Path, **changes: Any) -> Distillation:
    """In shards of three lines, so that eight lines make three shards."""
    options = pipeline.options(**{**OPTIONS, **changes.pop("options", {})})
    settings = DistillationSettings(options, **{"shard_lines": 3, **changes})
    return Distillation(pipeline, SourceLines.read(source), folder, settings)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("num_beams", [1, 3])
def test_pairs_are_what_the_model_says(pipeline: Pipeline, source: Path, tmp_path: Path, num_beams: int) -> None:
    report = prepared(pipeline, source, tmp_path / "out", options={"num_beams": num_beams}).run()
    results = pipeline.generate(LINES, **{**OPTIONS, "num_beams": num_beams})
    pairs = list(read_pairs(tmp_path / "out"))
    assert [(pair.line, pair.source) for pair in pairs] == list(enumerate(LINES, start=1))
    assert [(pair.target, pair.target_ids) for pair in pairs] == [(result.text, result.token_ids) for result in results]
    assert [pair.source_ids for pair in pairs] == pipeline.tokenizer.encode(LINES)
    assert [pair.finish_reason for pair in pairs] == [result.finish_reason for result in results]
    assert report.num_target_tokens == sum(len(result.token_ids) for result in results)
    assert sorted(contents(tmp_path / "out")) == ["manifest.json", *(f"shard-0000{i}.jsonl" for i in range(3))]


def test_bad_lines_are_skipped_and_every_line_has_one_record(pipeline: Pipeline, tmp_path: Path) -> None:
    long = "package " * 200
    lines = [b"\xef\xbb\xbfThe package.\r", b"", b" \t", b"caf\xe9", b"one\rtwo", long.encode(), b"The library."]
    (tmp_path / "in").write_bytes(b"\n".join(lines))
    report = prepared(pipeline, tmp_path / "in", tmp_path / "out").run()
    records = [record for i in range(3) for record in read_shard(tmp_path / "out" / f"shard-0000{i}.jsonl")]
    assert [record.line for record in records] == [1, 2, 3, 4, 5, 6, 7]
    assert records[1:6] == [
        SkippedLine(2, "blank"),
        SkippedLine(3, "blank"),
        SkippedLine(4, "not UTF-8", "byte 4 (0xe9)"),
        SkippedLine(5, "carriage return inside"),
        SkippedLine(6, "too long"),
    ]
    assert [pair.source for pair in read_pairs(tmp_path / "out")] == ["The package.", "The library."]
    skipped = {"blank": [2, 3], "not UTF-8": [4], "carriage return inside": [5], "too long": [6]}
    assert (report.num_pairs, report.skipped) == (2, skipped)
    totals = read_manifest(tmp_path / "out")["totals"]
    assert (totals["num_pairs"], totals["skipped"]) == (2, {reason: len(rows) for reason, rows in skipped.items()})


def test_long_lines_lose_their_end_where_that_is_asked_for(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("The library.\n" + "package " * 200)
    distillation = prepared(pipeline, tmp_path / "in", tmp_path / "out", truncates=True)
    with pytest.warns(UserWarning, match="line 2 is longer than the model's"):
        distillation.run()
    limit = pipeline.model.config.max_source_positions
    assert [len(pair.source_ids) == limit for pair in read_pairs(tmp_path / "out")] == [False, True]


def test_a_line_that_the_model_fails_on_costs_no_other(
    pipeline: Pipeline, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Pipeline.decode

    def failing(self: Pipeline, pieces: Any, resolved: Any, take: Any, batch_tokens: int) -> None:
        def take_failed(index: int, outcome: Any) -> None:
            take(index, replace(outcome, finish_reason="error", error="NaN scores") if index == 1 else outcome)

        decode(self, pieces, resolved, take_failed, batch_tokens)

    monkeypatch.setattr(Pipeline, "decode", failing)
    report = prepared(pipeline, source, tmp_path / "out").run()
    assert report.skipped == {"model failed": [2, 5, 8]}
    assert [pair.line for pair in read_pairs(tmp_path / "out")] == [1, 3, 4, 6, 7]
    assert list(read_shard(tmp_path / "out" / "shard-00000.jsonl"))[1] == SkippedLine(2, "model failed", "NaN scores")


@pytest.mark.parametrize("num_calls", [0, 1, 2])
def test_a_run_killed_while_decoding_goes_on(
    pipeline: Pipeline, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_calls: int
) -> None:
    prepared(pipeline, source, tmp_path / "whole").run()
    decode, calls = Pipeline.decode, []

    def killed(self: Pipeline, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > num_calls:
            raise KeyboardInterrupt
        decode(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "decode", killed)
        with pytest.raises(KeyboardInterrupt):
            prepared(pipeline, source, tmp_path / "out").run()
    with pytest.raises(CheckpointError, match="not complete"):
        next(read_pairs(tmp_path / "out"))
    again = prepared(pipeline, source, tmp_path / "out")
    assert again.num_done == 3 * num_calls
    ticks: list[None] = []
    assert again.run(lambda: ticks.append(None)).run_lines == len(ticks) == 8 - 3 * num_calls
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_run_killed_while_writing_leaves_no_half_shard(
    pipeline: Pipeline, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(pipeline, source, tmp_path / "whole").run()
    distillation = prepared(pipeline, source, tmp_path / "out")

    def killed(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            distillation.run()
    names = sorted(contents(tmp_path / "out"))
    assert names == ["manifest.json", f"shard-00000.jsonl.{os.getpid()}.part", "shard-00000.lock"]
    prepared(pipeline, source, tmp_path / "out").run()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_two_at_once_share_the_shards_and_the_last_completes(pipeline: Pipeline, source: Path, tmp_path: Path) -> None:
    prepared(pipeline, source, tmp_path / "alone").run()
    first, second = (prepared(pipeline, source, tmp_path / "out") for _ in range(2))
    reports: list[DistillationReport] = []

    def while_first_is_at_its_first_shard() -> None:
        if not reports:
            reports.append(second.run())

    last = first.run(while_first_is_at_its_first_shard)
    assert (reports[0].run_lines, reports[0].num_elsewhere) == (5, 1)
    assert (last.run_lines, last.num_elsewhere, last.num_pairs) == (3, 0, 8)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_a_shard_in_other_hands_leaves_the_folder_incomplete(pipeline: Pipeline, source: Path, tmp_path: Path) -> None:
    distillation = prepared(pipeline, source, tmp_path / "out")
    with FileLock(tmp_path / "out" / "shard-00001.lock"):
        assert distillation.run().num_elsewhere == 1
    with pytest.raises(CheckpointError, match="not complete: run the same"):
        read_manifest(tmp_path / "out")
    assert distillation.run().num_pairs == 8


def test_a_finished_distillation_is_not_done_again(
    pipeline: Pipeline, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(pipeline, source, tmp_path / "out").run()
    before = contents(tmp_path / "out")
    monkeypatch.delattr(Pipeline, "decode")
    second = prepared(pipeline, source, tmp_path / "out").run()
    assert (second.num_pairs, second.num_target_tokens, second.run_lines) == (8, first.num_target_tokens, 0)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"options": {"max_new_tokens": 5}}, "options"),
        ({"source_prefix": "x "}, "source_prefix"),
        ({"shard_lines": 4}, "shard_lines"),
        ({"truncates": True}, "truncates"),
    ],
)
def test_another_job_is_refused_and_nothing_is_touched(
    pipeline: Pipeline, source: Path, tmp_path: Path, changes: dict[str, Any], differing: str
) -> None:
    prepared(pipeline, source, tmp_path / "out").run()
    before = contents(tmp_path / "out")
    with pytest.raises(OptionError, match=rf"another distillation \({differing} differ\)"):
        prepared(pipeline, source, tmp_path / "out", **changes)
    assert contents(tmp_path / "out") == before


def test_another_text_and_other_weights_are_another_job(pipeline: Pipeline, source: Path, tmp_path: Path) -> None:
    prepared(pipeline, source, tmp_path / "out")
    other_text = tmp_path / "other.txt"
    other_text.write_text("\n".join(reversed(LINES)) + "\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"\(source_sha256 differ\)"):
        prepared(pipeline, other_text, tmp_path / "out")
    make_text_model("marian", tmp_path / "other", seed=3)
    other_model = Pipeline.from_pretrained(tmp_path / "other", None)
    with pytest.raises(OptionError, match=r"\(model differ\)"):
        prepared(other_model, source, tmp_path / "out")


def test_what_only_changes_the_speed_is_the_same_job(model: Path, source: Path, tmp_path: Path) -> None:
    plain = Pipeline.from_pretrained(model, None)
    prepared(plain, source, tmp_path / "out").run()
    before = contents(tmp_path / "out")
    (tmp_path / "out" / "shard-00001.jsonl").unlink()
    drafting = Pipeline.from_pretrained(model, "prompt_lookup")
    changes = {"options": {"num_draft_tokens": 3}, "batch_tokens": 50}
    assert prepared(drafting, source, tmp_path / "out", **changes).run().run_lines == 3
    assert contents(tmp_path / "out") == before


def test_a_forced_first_token_is_counted(tmp_path: Path, source: Path) -> None:
    make_text_model("nllb", tmp_path / "nllb")
    pipeline = Pipeline.from_pretrained(tmp_path / "nllb", None)
    prepared(pipeline, source, tmp_path / "out", source_lang="eng_Latn", target_lang="ita_Latn").run()
    results = pipeline.generate(LINES, source_lang="eng_Latn", target_lang="ita_Latn", **OPTIONS)
    pairs = list(read_pairs(tmp_path / "out"))
    assert [(pair.num_forced, pair.target_ids) for pair in pairs] == [(1, result.token_ids) for result in results]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"do_sample": True}, "do_sample=True"),
        ({"num_beams": 2, "num_return_sequences": 2}, "num_return_sequences=2"),
        ({"top_beta": 3}, "top_beta=3"),
        ({"output_scores": True}, "output_scores=True"),
    ],
)
def test_options_without_a_place(pipeline: Pipeline, options: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionError, match=f"{word} has no place in distillation"):
        DistillationSettings(pipeline.options(**{**OPTIONS, **options}))


def test_damaged_folders_are_named(pipeline: Pipeline, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no manifest\.json"):
        next(read_pairs(tmp_path / "out"))
    prepared(pipeline, source, tmp_path / "out").run()
    shard = tmp_path / "out" / "shard-00001.jsonl"
    shard.write_text(shard.read_text()[:-20] + "\n")
    with pytest.raises(CheckpointError, match=r"shard-00001\.jsonl, line 3 is damaged"):
        list(read_pairs(tmp_path / "out"))
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"shard-00001\.jsonl is missing"):
        list(read_pairs(tmp_path / "out"))
    (tmp_path / "out" / "manifest.json").write_text('{"format": 2}')
    with pytest.raises(CheckpointError, match="not a manifest of format 1"):
        prepared(pipeline, source, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="shards without manifest"):
        prepared(pipeline, source, tmp_path / "out")


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        SourceLines.read(tmp_path / "in")
    (tmp_path / "in").write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        SourceLines.read(tmp_path / "in")


def test_records_survive_their_json() -> None:
    pair = DistilledPair(3, "a\u2028é", "b", [1, 2], [3], 0, "eos", False)
    assert "\n" not in to_json(pair)
    assert from_json(to_json(pair)) == pair
    assert from_json(to_json(SkippedLine(1, "blank"))) == SkippedLine(1, "blank")


def test_help_loads_no_torch() -> None:
    script = "import sys; from spec2seq.cli.main import run; code = run(['distill', '--help']); "
    script += "sys.exit(code or 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "--shard-lines" in shown
    assert "--num-beams" in shown


def test_command(model: Path, pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").write_text(f"{LINES[0]}\n\n{LINES[1]}\n")
    arguments = ["distill", str(model), "--source", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    assert run([*arguments, "--shard-lines", "2", "--max-new-tokens", "6"]) == 0
    pairs = list(read_pairs(tmp_path / "out"))
    expected = [result.token_ids for result in pipeline.generate(LINES[:2], **OPTIONS)]
    assert [pair.target_ids for pair in pairs] == expected
    job = json.loads((tmp_path / "out" / "manifest.json").read_text())["job"]
    assert (job["options"]["num_beams"], job["num_lines"], job["shard_lines"]) == (1, 3, 2)
    error = capsys.readouterr().err
    assert "2 of 3 lines" in error
    assert "3 of 3 lines" in error
    assert f"2 pairs with {sum(map(len, expected))} target tokens\nthis run: 3 lines in " in error
    assert "skipped, blank: 1, the first is line 2\n" in error
    assert run([*arguments, "--shard-lines", "1", "--max-new-tokens", "6"]) == 2
    assert run([*arguments, "--shard-lines", "2", "--do-sample"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert ["another distillation (shard_lines differ)" in errors[0], "do_sample=True" in errors[1]] == [True, True]
