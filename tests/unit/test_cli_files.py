"""Input lines and resumable output, without a model."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import pytest

from spec2seq.cli import speed_up
from spec2seq.cli.lines import Line, LineSource, in_chunks, open_lines
from spec2seq.cli.output import DeviceOutput, ResumableOutput, StreamOutput, is_resumable, open_output
from spec2seq.cli.progress import line_progress
from spec2seq.cli.summary import Summary
from spec2seq.cli.writing import LineWriter
from spec2seq.errors import InputError, OptionError
from spec2seq.pipelines import GenerationResult
from spec2seq.types import RequestStats

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

JOB = {"input": "abc", "num_beams": 2}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a\nb", [("a", "\n"), ("b", "")]),
        (b"a\r\n\r\n\n", [("a", "\r\n"), ("", "\r\n"), ("", "\n")]),
        ("é\u2028x\x0b\ry\n".encode(), [("é\u2028x\x0b\ry", "\n")]),
        (b"\xef\xbb\xbfa\n", [("a", "\n")]),
        (b"a\r", [("a\r", "")]),
    ],
)
def test_lines_of_a_file_and_of_a_stream(data: bytes, expected: list[tuple[str, str]], tmp_path: Path) -> None:
    lines = [Line(i, *pair) for i, pair in enumerate(expected, start=1)]
    (tmp_path / "in").write_bytes(data)
    source = open_lines(tmp_path / "in", is_resumable=False)
    assert list(source.lines()) == lines
    assert source.num_lines == len(lines)
    assert list(LineSource("stdin", stream=io.BytesIO(data)).lines()) == lines


def test_a_file_that_is_not_utf8_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"fine\nca\xe9\n")
    with pytest.raises(InputError, match=r"in, line 2: byte 3 \(0xe9\) is not UTF-8"):
        open_lines(tmp_path / "in", is_resumable=False)


def test_a_stream_gives_the_lines_before_a_broken_one() -> None:
    chunks = in_chunks(LineSource("stdin", stream=io.BytesIO(b"1\n2\n3\n\xff\n5\n")).lines(), 2)
    assert [line.text for line in next(chunks)] == ["1", "2"]
    assert [line.text for line in next(chunks)] == ["3"]
    with pytest.raises(InputError, match="stdin, line 4: byte 1"):
        next(chunks)


def test_a_finished_run_leaves_only_its_output(tmp_path: Path) -> None:
    output = open_output(tmp_path / "out", JOB)
    assert isinstance(output, ResumableOutput)
    output.write(b"one\n")
    assert (tmp_path / "out.part").read_bytes() == b"one\n"
    assert json.loads((tmp_path / "out.part.json").read_text()) == JOB
    output.finish()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"out": b"one\n"}


def test_a_part_of_the_same_job_is_continued_after_its_last_whole_line(tmp_path: Path) -> None:
    open_output(tmp_path / "out", JOB).write(b"one\ntwo\nthr")
    output = open_output(tmp_path / "out", dict(reversed(JOB.items())))
    assert output.num_done == 2
    output.write(b"three")
    output.finish()
    assert (tmp_path / "out").read_bytes() == b"one\ntwo\nthree"


def test_a_part_of_another_job_is_refused_and_left_alone(tmp_path: Path) -> None:
    open_output(tmp_path / "out", JOB).write(b"one\n")
    with pytest.raises(OptionError, match=r"out\.part belongs to another job \(num_beams differ\); delete it and"):
        open_output(tmp_path / "out", {**JOB, "num_beams": 3})
    assert (tmp_path / "out.part").read_bytes() == b"one\n"
    (tmp_path / "out.part.json").unlink()
    with pytest.raises(OptionError, match="input, num_beams differ"):
        open_output(tmp_path / "out", JOB)


def test_a_part_without_a_whole_line_is_nobodys(tmp_path: Path) -> None:
    open_output(tmp_path / "out", JOB).write(b"on")
    output = open_output(tmp_path / "out", {"input": "other"})
    assert output.num_done == 0
    assert (tmp_path / "out.part").read_bytes() == b""
    assert json.loads((tmp_path / "out.part.json").read_text()) == {"input": "other"}


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"there is no folder .*nowhere; make it first"):
        open_output(tmp_path / "nowhere" / "out", JOB)


def test_devices_are_written_directly_and_never_renamed_over(tmp_path: Path) -> None:
    assert not is_resumable(None)
    assert is_resumable(tmp_path / "new")
    (tmp_path / "link").symlink_to("/dev/null")
    assert not is_resumable(tmp_path / "link")
    output = open_output(tmp_path / "link", JOB)
    assert isinstance(output, DeviceOutput)
    output.write(b"x")
    output.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
    assert isinstance(open_output(None, JOB), StreamOutput)


class MemoryOutput:
    num_done = 0

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def finish(self) -> None:
        pass


def result(text: str, *, num_tokens: int = 0, num_rounds: int = 1, is_degenerate: bool = False) -> GenerationResult:
    stats = RequestStats(num_tokens=num_tokens, num_rounds=num_rounds, is_degenerate=is_degenerate)
    return GenerationResult(text, [], None, [], "eos", stats)


def test_results_are_written_in_order_as_soon_as_possible() -> None:
    lines = [Line(1, "a", "\n"), Line(2, "b", "\r\n"), Line(3, "c", "\n"), Line(4, "d", "")]
    output = MemoryOutput()
    writer = LineWriter(output, lines, is_jsonl=False, summary=Summary())
    writer.take(2, result("C"))
    assert output.writes == []
    writer.take(0, result("A\nA"))
    writer.take(1, result("B"))
    writer.take(3, result("D"))
    assert output.writes == [b"A A\n", b"B\r\nC\n", b"D"]


def test_json_lines() -> None:
    output = MemoryOutput()
    writer = LineWriter(output, [Line(1, "a", "")], is_jsonl=True, summary=Summary())
    writer.take(0, result("è\n", num_tokens=3, num_rounds=2))
    (record,) = output.writes
    assert record.endswith(b"\n")
    assert "è".encode() in record
    expected = {"text": "è\n", "num_tokens": 3, "num_rounds": 2, "num_drafted": 0, "num_accepted": 0, "seconds": 0.0}
    assert json.loads(record) == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_to_somebody_who_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with line_progress(num_lines=3, num_done=1) as advance:
            advance()
            advance()
        assert ("3/3" in stream.getvalue()) == shown
        assert bool(stream.getvalue()) == shown


def test_the_speed_up_is_that_of_pairs_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], []

    def takes(name: str, *seconds: float) -> Callable[[], None]:
        left = list(seconds)

        def decode() -> None:
            calls.append(name)
            now[0] += left.pop(0)

        return decode

    monkeypatch.setattr(speed_up, "perf_counter", lambda: now[0])
    text = speed_up.speed_up_text(takes("drafted", 1.0, 1.0, 1.0), takes("plain", 9.0, 1.5, 2.0, 1.0), 16)
    assert text == ("speed-up over plain search on the first 16 lines: 1.50, 1.00 to 2.00 in 3 pairs by turns")
    assert calls == ["plain", "plain", "drafted", "plain", "drafted", "plain", "drafted"]
    text = speed_up.speed_up_text(takes("drafted", 8.0), takes("plain", 9.0, 6.0), 1)  # slow: no second pair
    assert text == "speed-up over plain search on the first line: 0.75"


def test_the_summary_leaves_loops_out() -> None:
    summary = Summary()
    summary.add(result("a", num_tokens=6, num_rounds=2))
    summary.add(result("b", num_tokens=256, num_rounds=2, is_degenerate=True))
    text = summary.text()
    assert "2 lines in" in text
    assert "6 tokens in 2 rounds: 3.00 tokens per round" in text
    assert "left out of these figures: 1 outputs that repeat" in text


def test_reading_all_of_stdin_for_a_resumable_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    source = open_lines(None, is_resumable=True)
    assert (source.num_lines, source.stream) == (2, None)
    assert source.digest is not None
