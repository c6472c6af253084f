"""From two descriptions of one package to pairs of titles, sentences and paragraphs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["synopsis", "sentence", "paragraph"]

MIN_CHARACTERS, MAX_CHARACTERS = 3, 1200
MIN_RATIO, MAX_RATIO = 0.45, 2.2  # of the lengths, target to source
MAX_EQUAL_WORDS = 4  # longer texts that are the same in both languages were not translated

_LIST_ITEM = re.compile(r"[-*+o] ")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-ZÀÈÉÌÒÙ\"(])")
_URL = re.compile(r"https?://")


@dataclass(frozen=True)
class Pair:
    """A text and its translation.

    Attributes:
        kind: "synopsis" is a title, "sentence" a sentence or a paragraph of one, "paragraph" one of several.
        package: the source package that the text is about.
    """

    source: str
    target: str
    kind: Kind
    package: str


def align(source: str, target: str, package: str) -> Iterator[Pair]:
    """The pairs of two descriptions; where the two differ in paragraphs, nothing but their titles.

    Args:
        source, target: as in the package index: the title, then lines that begin with a space.
        package: goes into the pairs.
    """
    (source_title, *source_lines), (target_title, *target_lines) = source.split("\n"), target.split("\n")
    yield Pair(source_title.strip(), target_title.strip(), "synopsis", package)
    paragraphs = split_paragraphs(source_lines), split_paragraphs(target_lines)
    if len(paragraphs[0]) != len(paragraphs[1]):
        return
    for one, other in zip(*paragraphs, strict=True):
        sentences = _SENTENCE_END.split(one), _SENTENCE_END.split(other)
        is_aligned = len(sentences[0]) == len(sentences[1])
        if is_aligned:
            yield from (Pair(*both, "sentence", package) for both in zip(*sentences, strict=True))
        if not is_aligned or len(sentences[0]) > 1:
            yield Pair(one, other, "paragraph", package)


def split_paragraphs(lines: list[str]) -> list[str]:
    """The paragraphs of a description's body: a lone dot ends one, a list item begins one, and a line that begins with
    two spaces is to be shown as it is (Debian policy, section 5.6.13) and is one of its own."""
    paragraphs: list[list[str]] = [[]]
    for line in (line[1:] for line in lines):
        text = line.strip()
        if text == ".":
            paragraphs.append([])
        elif line.startswith(" ") or _LIST_ITEM.match(text):
            paragraphs.append([text])
        else:
            paragraphs[-1].append(text)
    return [" ".join(" ".join(paragraph).split()) for paragraph in paragraphs if any(paragraph)]


def is_usable(pair: Pair) -> bool:
    """Whether a pair is neither too short nor too long, and likely to be a translation."""
    lengths = len(pair.source), len(pair.target)
    if not (min(lengths) >= MIN_CHARACTERS and max(lengths) <= MAX_CHARACTERS):
        return False
    if not MIN_RATIO <= lengths[1] / lengths[0] <= MAX_RATIO or _URL.search(pair.source):
        return False
    return pair.source != pair.target or len(pair.source.split()) <= MAX_EQUAL_WORDS
