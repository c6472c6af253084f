"""Which lines of a text are trained on, which ones decide, and which ones are measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec2seq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spec2seq.tokenization import TextTokenizer
    from spec2seq.training.source_lines import SourceLines

MIN_LINES = 60
ABOUT_MAX_HELD_OUT = 600  # lines; the stride is a whole number, and some tens more may be held out
_HELD_OUT_SHARE = 0.1
_NUM_SAMPLED = 200
MAX_UNKNOWN_SHARE = 0.15  # of the tokens; in text that a model was made for, unknown ones are rare


@dataclass(frozen=True)
class SourceSplit:
    """Lines, no two of them the same.

    Attributes:
        training: to distil.
        deciding: held out, to choose settings by.
        measuring: held out, to report figures on.
        num_left_out: lines that are blank, no UTF-8, or repeat another one.
    """

    training: list[str]
    deciding: list[str]
    measuring: list[str]
    num_left_out: int


def split_source(source: SourceLines) -> SourceSplit:
    """Every tenth line or so is held out, spread evenly; these by turns to decide and to measure.

    Raises:
        InputError: too few lines.
    """
    lines = list(dict.fromkeys(_usable(source.raw)))
    if len(lines) < MIN_LINES:
        raise InputError(
            f"{source.name} has {len(lines)} different lines of text, but {MIN_LINES} are needed at least, and tens of "
            "thousands are better; give a longer text"
        )
    stride = max(round(1 / _HELD_OUT_SHARE), len(lines) // ABOUT_MAX_HELD_OUT)
    held_out = lines[stride - 1 :: stride]
    training = [line for i, line in enumerate(lines) if i % stride != stride - 1]
    return SourceSplit(training, held_out[::2], held_out[1::2], len(source.raw) - len(lines))


def _usable(raw: Iterable[bytes]) -> Iterable[str]:
    for line in raw:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip() and "\r" not in text:
            yield text


def evenly(items: Sequence[str], count: int) -> list[str]:
    """`count` of the items, spread evenly, in their order; all where there are no more."""
    if count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def check_language(lines: Sequence[str], tokenizer: TextTokenizer, name: str) -> None:
    """Refuse text that the tokenizer has no pieces for: another script, or another language.

    Raises:
        InputError: too many of its tokens are unknown.
    """
    unknown = tokenizer.unknown_id
    if unknown is None:
        return
    ids = [token_id for row in tokenizer.encode(evenly(lines, _NUM_SAMPLED)) for token_id in row]
    share = ids.count(unknown) / max(1, len(ids))
    if share > MAX_UNKNOWN_SHARE:
        raise InputError(
            f"{share:.0%} of the tokens of {name} are unknown to the model's tokenizer; give text in the language that "
            "the model reads"
        )
