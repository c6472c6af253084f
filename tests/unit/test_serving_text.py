"""HTML around text, and languages under the codes that clients write."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from spec2seq import Pipeline
from spec2seq.errors import OptionError
from spec2seq.serving.html_text import HtmlText
from spec2seq.serving.languages import Direction, ServedLanguages
from spec2seq.serving.refusals import InvalidRequestError
from tests.text_models import make_text_model

if TYPE_CHECKING:
    from pathlib import Path

    from spec2seq.tokenization import TextTokenizer


def upper(source: str) -> str:
    """The HTML with every text that would be translated in capitals."""
    document = HtmlText.parse(source)
    return document.join([text.upper() for text in document.texts])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", ""),
        ("plain", "PLAIN"),
        ("  <p>a</p>\n", "  <p>A</p>\n"),
        ("<p> a  <b>b</b>\n c</p>", "<p> A  <b>B</b>\n C</p>"),
        ("<p>two\n  lines</p>", "<p>TWO LINES</p>"),
        ("a &amp; b &lt; c &#233;", "A &amp; B &lt; C É"),
        ("&nbsp;a&nbsp;", "\xa0A\xa0"),
        ("a < b > c", "A &lt; B &gt; C"),
        ("<a", "&lt;A"),
        ("<1>a", "&lt;1&gt;A"),
        ("10 + 5 = 15<br>—", "10 + 5 = 15<br>—"),
        ('<a href="x>y" title=\'"\'>a</a>', '<a href="x>y" title=\'"\'>A</a>'),
        ("<!-- a --><p>b<!-- c", "<!-- a --><p>B<!-- c"),
        ("<!doctype html><p>a", "<!doctype html><p>A"),
        ("<pre>a\n b</pre>c<CODE>d</CODE>", "<pre>a\n b</pre>C<CODE>d</CODE>"),
        ("<script>if (a < b) c()</script>d", "<script>if (a < b) c()</script>D"),
        ('<span translate="no">a<i>b</i></span>c', '<span translate="no">a<i>b</i></span>C'),
        ("<span translate=no>a<span>b</span>c</span>d", "<span translate=no>a<span>b</span>c</span>D"),
        ('<span translate="yes">a</span>', '<span translate="yes">A</span>'),
        ('<p class="x notranslate y">a</p>b', '<p class="x notranslate y">a</p>B'),
        ('<p class="notes">a</p>', '<p class="notes">A</p>'),
        ('<a class="mention">@<span>a</span></a> b', '<a class="mention">@<span>a</span></a> B'),
        ('<a class="hashtag">#<span>a</span></a><br>b', '<a class="hashtag">#<span>a</span></a><br>B'),
        ("<svg><path d='m'/><text>a</text></svg>b", "<svg><path d='m'/><text>a</text></svg>B"),
        ('<script>"<!--"</script>a', '<script>"<!--"</script>A'),
        ("<STYLE>/* <!-- */ a</Style >b", "<STYLE>/* <!-- */ a</Style >B"),
        ("<script>a</scripts><b>", "<script>a</scripts><b>"),
        (
            '<p TRANSLATE="no">a</p><p Class="notranslate">b</p>c',
            '<p TRANSLATE="no">a</p><p Class="notranslate">b</p>C',
        ),
        ("</p>a</b>", "</p>A</b>"),
        ("<kbd>a<br>b</kbd>c", "<kbd>a<br>b</kbd>C"),
    ],
)
def test_text_is_translated_and_markup_stays(source: str, expected: str) -> None:
    assert upper(source) == expected


def test_what_the_model_says_cannot_become_markup() -> None:
    document = HtmlText.parse("<p>a</p>")
    assert document.join(["<script>alert(1)</script> & more"]) == (
        "<p>&lt;script&gt;alert(1)&lt;/script&gt; &amp; more</p>"
    )


@pytest.mark.parametrize(
    "unit",
    [
        "<a",
        '<a "',
        "<",
        "<!--",
        "<!",
        "<a '",
        "class=",
        "<pre>",
        "</pre>",
        '<a class="',
        "&amp",
        "<a b=",
        "<p><i>",
        "<script>",
        "<script></script>",
    ],
)
def test_hostile_markup_takes_no_long_time(unit: str) -> None:
    start = time.monotonic()
    for source in (unit * (40_000 // len(unit)), "<pre>" + unit * (40_000 // len(unit)) + "</div>" * 4000):
        document = HtmlText.parse(source)
        document.join(document.texts)
    assert time.monotonic() - start < 5


# ---------------------------------------------------------------- languages


def tokenizer(name: str, folder: Path) -> TextTokenizer:
    make_text_model(name, folder / name)
    return Pipeline.from_pretrained(folder / name).tokenizer


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return tokenizer("nllb", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def mbart(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return tokenizer("mbart_50", tmp_path_factory.mktemp("models"))


def test_many_languages_have_short_codes_and_names(nllb: TextTokenizer, mbart: TextTokenizer) -> None:
    listing = ServedLanguages.of(nllb).listing()
    assert [(one.code, one.name, one.targets) for one in listing] == [
        ("de", "German", ["en", "it"]),
        ("en", "English", ["de", "it"]),
        ("it", "Italian", ["de", "en"]),
    ]
    names = {one.code: one.name for one in ServedLanguages.of(mbart).listing()}
    assert len(names) > 45
    assert (names["ar"], names["zh"], names["my"]) == ("Arabic", "Chinese", "Burmese")
    assert [code for code, name in names.items() if name == code] == [], "every language has a name"


def test_short_and_own_codes_mean_the_same(nllb: TextTokenizer) -> None:
    languages = ServedLanguages.of(nllb)
    expected = Direction("eng_Latn", "ita_Latn", "en")
    assert languages.direction("en", "it") == languages.direction("eng_Latn", "ita_Latn") == expected


def test_forms_of_one_language_are_told_apart() -> None:
    known = SimpleNamespace(languages={"zho_Hans": 1, "zho_Hant": 2, "eng_Latn": 3})
    languages = ServedLanguages.of(known)  # type: ignore[arg-type]
    assert [(one.code, one.name) for one in languages.listing()] == [
        ("en", "English"),
        ("zh", "Chinese"),
        ("zho_Hant", "Chinese (zho_Hant)"),
    ]
    assert languages.direction("zh", "zho_Hant") == Direction("zho_Hans", "zho_Hant", "zh")


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("auto", "it", "auto is not supported"),
        ("fr", "it", "fr is not supported"),
        ("en", "fr", "fr is not supported"),
        ("en", "eng_Latn", "English (en) is not available as a target language from English (en)"),
        ("en", None, "several languages are served"),
    ],
)
def test_refused_directions(nllb: TextTokenizer, source: str, target: str | None, error: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ServedLanguages.of(nllb).direction(source, target)
    assert error in str(caught.value)


def test_a_service_may_be_for_some_languages_only(nllb: TextTokenizer) -> None:
    languages = ServedLanguages.of(nllb, "eng_Latn", "it")
    assert [one.model_dump() for one in languages.listing()] == [{"code": "en", "name": "English", "targets": ["it"]}]
    assert languages.direction("auto", None) == Direction("eng_Latn", "ita_Latn", "en")
    with pytest.raises(OptionError, match="--target-lang xx is not a language of this model; known are de, en, it"):
        ServedLanguages.of(nllb, None, "xx")
