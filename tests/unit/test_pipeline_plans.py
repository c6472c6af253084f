"""From texts to requests: lines, languages, prefixes, and what is too long."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from spec2seq.errors import InputError, OptionError
from spec2seq.pipelines.plans import TextOptions, TextPlanner
from spec2seq.tokenization import TargetStart, TextTokenizer
from tests.unit.test_tokenization import model_config

if TYPE_CHECKING:
    from collections.abc import Sequence


class CharacterTokenizer:
    """Stands in for a transformers tokenizer: one id per character, 2 at the end, the language first."""

    all_special_tokens = ("</s>", "en_XX", "ro_RO", "it_IT")

    def __init__(self) -> None:
        self.src_lang = "en_XX"
        self.num_calls = 0

    def convert_tokens_to_ids(self, token: str) -> int:
        return 100 + self.all_special_tokens.index(token)

    def __call__(
        self, texts: Sequence[str], *, truncation: bool, max_length: int | None, verbose: bool
    ) -> dict[str, Any]:
        self.num_calls += 1
        head = self.convert_tokens_to_ids(self.src_lang)
        rows = [[head, *(ord(character) for character in text)] for text in texts]
        return {"input_ids": [[*(row[: max_length - 1] if truncation and max_length else row), 2] for row in rows]}


def plan(
    texts: list[str],
    *,
    family: str = "marian",
    limit: int | None = None,
    forced: list[int | None] | None = None,
    is_start_said: bool = False,
    tokenizer: CharacterTokenizer | None = None,
    **said: Any,
) -> list[tuple[list[str], list[list[int]], list[TargetStart]]]:
    """(piece texts, source ids, starts) of every text."""
    config = replace(model_config(family), max_source_positions=limit)
    text_tokenizer = TextTokenizer(tokenizer or CharacterTokenizer(), config)
    planner = TextPlanner(
        text_tokenizer, config, TextOptions(**said), forced or [None] * len(texts), is_start_said=is_start_said
    )
    return [
        (made.split.pieces, [piece.source_ids for piece in made.pieces], [piece.start for piece in made.pieces])
        for made in planner.plan(texts)
    ]


def ids(text: str, language: int = 101) -> list[int]:
    return [language, *(ord(character) for character in text), 2]


def test_one_piece_per_line_and_one_tokenizer_call() -> None:
    tokenizer = CharacterTokenizer()
    plans = plan(["ab", "c\n\nd\n", " ", ""], tokenizer=tokenizer)
    assert [pieces for pieces, _, _ in plans] == [["ab"], ["c", "d"], [], []]
    assert [rows for _, rows, _ in plans] == [[ids("ab")], [ids("c"), ids("d")], [], []]
    assert tokenizer.num_calls == 1


def test_summarizing_families_keep_their_newlines() -> None:
    assert plan(["c\n\nd\n"], family="t5")[0][0] == ["c\n\nd\n"]
    assert plan(["c\n\nd\n"], family="t5", long_input="split")[0][0] == ["c", "d"]
    assert plan(["c\n\nd\n"], family="marian", long_input="error")[0][0] == ["c\n\nd\n"]


def test_prefixes_and_language_codes_go_in_front_of_every_piece() -> None:
    (pieces, rows, _), *_ = plan([">>fra<< ab\ncd"], source_prefix="x: ")
    assert pieces == ["ab", "cd"]
    assert rows == [ids(">>fra<< x: ab"), ids(">>fra<< x: cd")]
    (pieces, rows, _), *_ = plan([">>fra<< a\n>>ita<< b\nc"])
    assert rows == [ids(">>fra<< a"), ids(">>ita<< b"), ids(">>ita<< c")]
    assert plan([">>fra<< "])[0][1] == []


def test_languages_of_texts_one_by_one() -> None:
    plans = plan(
        ["a", "b", "c"], family="mbart", source_lang=["it_IT", None, "it_IT"], target_lang=["ro_RO", "en_XX", "it_IT"]
    )
    assert [rows for _, rows, _ in plans] == [[ids("a", 103)], [ids("b", 101)], [ids("c", 103)]]
    assert [starts[0].forced_first for _, _, starts in plans] == [102, 101, 103]
    with pytest.raises(OptionError, match="source_lang has 2 codes for 3 texts"):
        plan(["a", "b", "c"], family="mbart", source_lang=["it_IT", "it_IT"], target_lang="ro_RO")


def test_forced_tokens_of_the_options_hold_where_no_language_is_named() -> None:
    assert [starts for _, _, starts in plan(["a", "b"], family="mbart", forced=[7, 8])] == [
        [TargetStart(None, 7)],
        [TargetStart(None, 8)],
    ]
    assert plan(["a"], family="mbart", forced=[7], target_lang="ro_RO")[0][2] == [TargetStart(None, 102)]
    with pytest.raises(OptionError, match="target_lang and forced_bos_token_id"):
        plan(["a"], family="mbart", forced=[7], target_lang="ro_RO", is_start_said=True)


def test_long_lines_are_split_and_nothing_else() -> None:
    (pieces, rows, _), *_ = plan(["  One two. Three four.\nshort\nabcdefghijklmno"], limit=12)
    assert pieces == ["  One two.", "Three", "four.", "short", "abcdefghij", "klmno"]
    assert rows == [ids(piece) for piece in pieces]
    assert max(map(len, rows)) == 12


def test_separators_of_split_lines_come_back() -> None:
    config = replace(model_config("marian"), max_source_positions=12)
    planner = TextPlanner(TextTokenizer(CharacterTokenizer(), config), config, TextOptions(), [None])
    text = "\n One two.  Three four.\r\n" + " " * 200 + "abcdefghijklmno\n"
    (made,) = planner.plan([text])
    assert made.split.join(made.split.pieces) == text
    assert made.split.join([piece.upper() for piece in made.split.pieces]) == text.upper()


def test_a_prefix_longer_than_the_model_is_an_error() -> None:
    with pytest.raises(InputError, match=r"text 1: the 14 tokens of source_prefix 'x+' leave no room in the 12"):
        plan(["One two. Three four."], limit=12, source_prefix="x" * 12)


def test_truncating_warns_once() -> None:
    with pytest.warns(
        UserWarning, match=r"2 texts are longer than the model's 5 tokens \(the first is text 2\)"
    ) as caught:
        plans = plan(["a", "abcdef", "bcdefg"], family="t5", limit=5)
    assert len(caught) == 1
    assert [rows for _, rows, _ in plans] == [[ids("a")], [ids("abc")], [ids("bcd")]]
    with pytest.warns(UserWarning, match="text 1 is longer than the model's 5 tokens and was truncated"):
        plan(["abcdef"], family="t5", limit=5)


def test_errors_name_the_text_and_both_numbers() -> None:
    with pytest.raises(InputError, match=r"line 8 has 10 tokens, but the model takes at most 5; .*long_input='split'"):
        plan(["a", "abcdefgh"], limit=5, long_input="error", label=lambda index: f"line {index + 7}")
    with pytest.raises(
        OptionError, match=re.escape("long_input='cut' is not allowed: use one of split, truncate, error")
    ):
        plan(["a"], long_input="cut")
