"""Cutting a text into pieces that a model can take, so that the pieces and what lies between them make up the text."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NEWLINE = re.compile(r"(\r\n|\n|\r)")
# Chinese and Japanese full stops, and the marks that may follow them, need no white space behind them
_WIDE_STOPS = "\u3002\uff01\uff1f"
_WIDE_CLOSERS = "\u300d\u300f\u201d\u2019\uff09"
_CLOSERS = "\"'\u201d\u2019\u00bb)\\]"
_SENTENCE_END = re.compile(
    rf"[.!?\u2026][{_CLOSERS}]*(?P<space>\s+)(?=\S)|[{_WIDE_STOPS}][{_WIDE_CLOSERS}]*(?P<none>\s*)(?=\S)"
)
_INITIAL = re.compile(r"(?:^|[\s(\"'.])\w$")

# A token rarely stands for more characters than this: a piece is looked for in a window of so many per token, which
# keeps the time for a text without any space linear in its length.
_WINDOW_CHARACTERS = 8
_JOINERS = "\u200d\ufe0e\ufe0f"


def is_blank(text: str) -> bool:
    """Whether nothing of a text shows: white space, control and format characters such as a zero-width space.

    Tokenizers drop such characters, and models invent sentences where nothing is left.
    """
    return all(character.isspace() or unicodedata.category(character) in ("Cc", "Cf") for character in text)


@dataclass
class SplitText:
    """`separators[0] + pieces[0] + separators[1] + ... + separators[-1]` is the text; no piece is blank."""

    pieces: list[str] = field(default_factory=list)
    separators: list[str] = field(default_factory=lambda: [""])

    def add(self, piece: str, separator: str = "") -> None:
        """Append a piece and what follows it; a blank piece counts as separator."""
        if not is_blank(piece):
            self.pieces.append(piece)
            self.separators.append(separator)
        else:
            self.separators[-1] += piece + separator

    def join(self, outputs: Sequence[str]) -> str:
        """The separators with `outputs` in place of the pieces."""
        return self.separators[0] + "".join(
            output + separator for output, separator in zip(outputs, self.separators[1:], strict=True)
        )


def num_breaks(text: str) -> int:
    """How many ends of lines and sentences a text has. Cut there, and nowhere within, it comes to one piece more."""
    return len(_NEWLINE.findall(text)) + sum(1 for _ in _SENTENCE_END.finditer(text))


def whole_text(text: str) -> SplitText:
    """The text as one piece, or none where it is blank."""
    split = SplitText()
    split.add(text)
    return split


def split_lines(text: str) -> SplitText:
    """One piece per line that is not blank; newlines and blank lines are separators."""
    split = SplitText()
    parts = _NEWLINE.split(text)
    for line, newline in zip(parts[::2], [*parts[1::2], ""], strict=True):
        split.add(line, newline)
    return split


def split_long(text: str, limit: int, count: Callable[[str], int]) -> SplitText:
    """Pieces of at most `limit` tokens: sentences, and where one of them is too long words, and parts of words.

    Args:
        text: one line that does not fit.
        limit: most tokens of a piece. A single character that takes more is kept as a piece of its own.
        count: number of tokens of a piece, with all that is added to it.
    """
    split = SplitText()
    for sentence, space in _sentences(text):
        window = limit * _WINDOW_CHARACTERS
        if len(sentence) <= window and count(sentence) <= limit:
            split.add(sentence, space)
        else:
            _add_parts(split, sentence, space, limit, count)
    return split


def _sentences(text: str) -> list[tuple[str, str]]:
    """Sentences and the white space after each. No end is seen before a small letter or after an initial."""
    sentences, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        group = "space" if match.group("space") is not None else "none"
        is_abbreviation = text[match.end()].islower() or _INITIAL.search(text, max(0, match.start() - 2), match.start())
        if group == "space" and is_abbreviation:
            continue
        sentences.append((text[start : match.start(group)], match.group(group)))
        start = match.end()
    return [*sentences, (text[start:], "")]


def _add_parts(split: SplitText, sentence: str, space: str, limit: int, count: Callable[[str], int]) -> None:
    rest = sentence
    while rest:
        size = _break_before(rest, _fitting_size(rest, limit, count))
        part = rest[:size].rstrip() or rest[:size]
        stripped = rest[len(part) :].lstrip()
        split.add(part, rest[len(part) : len(rest) - len(stripped)])
        rest = stripped
    split.separators[-1] += space


def _fitting_size(text: str, limit: int, count: Callable[[str], int]) -> int:
    """How many leading characters surely fit; shrinks in proportion, so that a few counts are enough."""
    size = min(len(text), limit * _WINDOW_CHARACTERS)
    while size > 1 and (num_tokens := count(text[:size])) > limit:
        size = max(1, size * limit // num_tokens)
    return size


def _break_before(text: str, size: int) -> int:
    """The last place up to `size` where the text may be cut: at white space, else between two whole characters."""
    if size >= len(text) or text[size].isspace():
        return size
    space = next((place for place in range(size - 1, 0, -1) if text[place].isspace()), 0)
    if space:
        return space
    place = size
    while place > 1 and (unicodedata.combining(text[place]) or text[place] in _JOINERS or text[place - 1] == "\u200d"):
        place -= 1
    return place
