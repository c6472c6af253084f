"""How texts are cut, and that nothing between the pieces is lost."""

from __future__ import annotations

import random
from time import perf_counter

import pytest

from spec2seq.pipelines.splitting import SplitText, split_lines, split_long, whole_text


def rebuilt(split: SplitText) -> str:
    return split.join(split.pieces)


@pytest.mark.parametrize(
    ("text", "pieces", "separators"),
    [
        ("one", ["one"], ["", ""]),
        ("", [], [""]),
        (" \t", [], [" \t"]),
        ("\n", [], ["\n"]),
        ("a\nb", ["a", "b"], ["", "\n", ""]),
        ("a\r\nb\r\n", ["a", "b"], ["", "\r\n", "\r\n"]),
        ("\n\na\n \nb\n\n", ["a", "b"], ["\n\n", "\n \n", "\n\n"]),
        ("  indented\rold mac", ["  indented", "old mac"], ["", "\r", ""]),
    ],
)
def test_lines(text: str, pieces: list[str], separators: list[str]) -> None:
    split = split_lines(text)
    assert (split.pieces, split.separators) == (pieces, separators)
    assert rebuilt(split) == text


def test_outputs_take_the_places_of_pieces() -> None:
    assert split_lines("\none\r\n\r\ntwo\n").join(["A", "B"]) == "\nA\r\n\r\nB\n"
    assert whole_text("a\nb").pieces == ["a\nb"]
    assert whole_text("\n ").join([]) == "\n "


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One two. Three four!  Five?", ["One two.", "Three four!", "Five?"]),
        ('He said "go." Then he left.', ['He said "go."', "Then he left."]),
        ("Version 1.2 is out. 3 files.", ["Version 1.2 is out.", "3 files."]),
        ("See e.g. the manual. J. Smith wrote it.", ["See e.g. the manual.", "J. Smith wrote it."]),
        ("これは文です。次の文です！終わり", ["これは文です。", "次の文です！", "終わり"]),
    ],
)
def test_sentences(text: str, pieces: list[str]) -> None:
    split = split_long(text, 24, len)
    assert split.pieces == pieces
    assert rebuilt(split) == text


def test_words_where_a_sentence_is_too_long() -> None:
    split = split_long("aaa bb  cccc dd eeeeeee", 8, len)
    assert split.pieces == ["aaa bb", "cccc dd", "eeeeeee"]
    assert split.separators == ["", "  ", " ", ""]


def test_characters_where_there_is_no_space() -> None:
    assert split_long("abcdefghij", 4, len).pieces == ["abcd", "efgh", "ij"]
    accents = "e\u0301" * 5
    split = split_long(accents, 3, len)
    assert split.pieces == ["e\u0301"] * 5, "an accent stays with its letter"
    assert split_long("xyz", 1, lambda piece: 9 * len(piece)).pieces == ["x", "y", "z"]


@pytest.mark.parametrize("seed", range(20))
def test_any_text_is_rebuilt_and_every_piece_fits(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice('ab. !?\t\n\r。"e\u0301\u200d ') for _ in range(300))
    lines = split_lines(text)
    assert rebuilt(lines) == text
    for line in lines.pieces:
        split = split_long(line, 7, len)
        assert rebuilt(split) == line
        assert all(piece.strip() for piece in split.pieces)
        assert all(len(piece) <= 7 for piece in split.pieces)


@pytest.mark.parametrize("text", ["x" * 20_000, "." * 20_000, " ." * 10_000, 'x."' * 7_000, " " * 19_999 + "x"])
def test_time_is_bounded(text: str) -> None:
    counted = 0

    def count(piece: str) -> int:
        nonlocal counted
        counted += len(piece)
        return len(piece)

    start = perf_counter()
    split = split_long(text, 100, count)
    assert perf_counter() - start < 2.0
    assert counted < 40 * len(text)
    assert rebuilt(split) == text
    assert all(len(piece) <= 100 for piece in split.pieces)
