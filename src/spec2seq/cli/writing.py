"""Results that come in any order, written in the order of their lines."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.cli.lines import Line
    from spec2seq.cli.output import Output
    from spec2seq.cli.summary import Summary
    from spec2seq.pipelines import GenerationResult


class LineWriter:
    """Writes the results of some lines: each as soon as all lines before it are written.

    Args:
        output: where to.
        lines: the lines that the results belong to, by index.
        is_jsonl: one JSON object per line instead of the text.
        summary: told about every result.
    """

    def __init__(self, output: Output, lines: Sequence[Line], is_jsonl: bool, summary: Summary) -> None:
        self._output = output
        self._lines = lines
        self._is_jsonl = is_jsonl
        self._summary = summary
        self._waiting: dict[int, GenerationResult] = {}
        self._next = 0

    def take(self, index: int, result: GenerationResult) -> None:
        """Take in the result of a line and write what can be written."""
        self._summary.add(result)
        self._waiting[index] = result
        ready = bytearray()
        while self._next in self._waiting:
            ready += self._record(self._lines[self._next], self._waiting.pop(self._next)).encode("utf-8")
            self._next += 1
        if ready:
            self._output.write(bytes(ready))

    def _record(self, line: Line, result: GenerationResult) -> str:
        if self._is_jsonl:
            return _json_record(result) + "\n"
        # an output with a newline in it would shift all lines after it
        text = result.text if "\n" in line.text else result.text.replace("\n", " ")
        return text + line.ending


def _json_record(result: GenerationResult) -> str:
    stats = result.stats
    record: dict[str, object] = {
        "text": result.text,
        "num_tokens": stats.num_tokens,
        "num_rounds": stats.num_rounds,
        "num_drafted": stats.num_drafted,
        "num_accepted": stats.num_accepted,
        "seconds": round(stats.seconds, 6),
    }
    if result.min_margin is not None:
        # JSON has no infinity, which is the margin where nothing was chosen
        record["min_margin"] = result.min_margin if math.isfinite(result.min_margin) else None
    return json.dumps(record, ensure_ascii=False)
