"""What distillation says about a line of the source: a pair to train on, or why there is none."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

SkipReason = Literal["blank", "not UTF-8", "carriage return inside", "too long", "model failed"]


@dataclass(frozen=True)
class DistilledPair:
    """One line and what the verifier says to it.

    Attributes:
        line: its number in the source, from 1.
        source, target: the texts.
        source_ids: what the verifier was given.
        target_ids: what followed the decoder start token, end of sequence included.
        num_forced: how many of the first target ids were forced and never need a draft: 0 or 1.
        finish_reason: "eos", or "length" where the limit cut the output.
        is_degenerate: whether it ran in circles up to the limit.
        decoder_start: what stood before the target ids, where that is not the model's own start token.
    """

    line: int
    source: str
    target: str
    source_ids: list[int]
    target_ids: list[int]
    num_forced: int
    finish_reason: str
    is_degenerate: bool
    decoder_start: int | None = None


@dataclass(frozen=True)
class SkippedLine:
    """A line that gave no pair. `line` counts from 1; `detail` says more than the reason where there is more."""

    line: int
    skipped: SkipReason
    detail: str = ""


Record = DistilledPair | SkippedLine


def to_json(record: Record) -> str:
    """One line of a shard, without its newline."""
    return json.dumps(asdict(record), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str) -> Record:
    """A record from a line of a shard.

    Raises:
        ValueError, TypeError: the line holds no record.
    """
    values = json.loads(text)
    return SkippedLine(**values) if "skipped" in values else DistilledPair(**values)
