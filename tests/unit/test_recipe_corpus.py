"""The recipe's corpus: from a package index, or files of pairs, to three parts that share no package."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import build_corpus
import package_index
import pytest
from alignment import Pair, align, is_usable, split_paragraphs
from corpus_files import SPLITS, read_pairs, split_by_package
from package_index import PackageIndex, read_stanzas

from spec2seq.errors import InputError

ENGLISH = """reads the news aloud
 It speaks every line. It stops at the end! Really.
 So it does.
 .
 Voices:
  * a high
    one
  - a low one"""
ITALIAN = """legge le notizie ad alta voce
 Pronuncia ogni riga. Si ferma alla fine! Davvero.
 Fa così.
 .
 Voci:
  * una
    alta
  - una bassa"""


def build(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["build_corpus.py", *map(str, arguments)])
    build_corpus.main()


def test_stanzas_keep_their_continuation_lines() -> None:
    text = "Package: one\nDescription-en: title\n first\n .\n   second: part\n\n\nPackage:  two\nEmpty:\n"
    assert list(read_stanzas(text)) == [
        {"Package": "one", "Description-en": "title\n first\n .\n   second: part"},
        {"Package": "two", "Empty": ""},
    ]


def test_paragraphs_end_at_dots_and_lines_shown_as_they_are_stand_alone() -> None:
    assert split_paragraphs(ENGLISH.split("\n")[1:]) == [
        "It speaks every line. It stops at the end! Really. So it does.",
        "Voices:",
        "* a high",
        "one",
        "- a low one",
    ]


def test_aligned_descriptions_give_titles_sentences_and_paragraphs() -> None:
    pairs = list(align(ENGLISH, ITALIAN, "reader"))
    assert [(pair.source, pair.target, pair.kind) for pair in pairs] == [
        ("reads the news aloud", "legge le notizie ad alta voce", "synopsis"),
        ("It speaks every line.", "Pronuncia ogni riga.", "sentence"),
        ("It stops at the end!", "Si ferma alla fine!", "sentence"),
        ("Really.", "Davvero.", "sentence"),
        ("So it does.", "Fa così.", "sentence"),
        (
            "It speaks every line. It stops at the end! Really. So it does.",
            "Pronuncia ogni riga. Si ferma alla fine! Davvero. Fa così.",
            "paragraph",
        ),
        ("Voices:", "Voci:", "sentence"),
        ("* a high", "* una", "sentence"),
        ("one", "alta", "sentence"),
        ("- a low one", "- una bassa", "sentence"),
    ]
    assert {pair.package for pair in pairs} == {"reader"}


def test_sentences_of_different_number_stay_a_paragraph() -> None:
    pairs = list(align("title\n One. Two.", "titolo\n Uno e due.", "x"))
    assert [(pair.source, pair.kind) for pair in pairs] == [("title", "synopsis"), ("One. Two.", "paragraph")]


def test_descriptions_of_different_structure_give_their_titles() -> None:
    assert [pair.source for pair in align("title\n One.\n .\n Two.", "titolo\n Uno.", "x")] == ["title"]


@pytest.mark.parametrize(
    ("source", "target", "usable"),
    [
        ("abc", "abc", True),
        ("ab", "abc", False),
        ("a" * 1200, "b" * 1200, True),
        ("a" * 1201, "b" * 1200, False),
        ("a" * 100, "b" * 45, True),
        ("a" * 100, "b" * 44, False),
        ("a" * 10, "b" * 22, True),
        ("a" * 10, "b" * 23, False),
        ("see https://x.org", "vedere https://x.org", False),
        ("one two three four", "one two three four", True),
        ("one two three four five", "one two three four five", False),
    ],
)
def test_what_is_usable(source: str, target: str, usable: bool) -> None:
    assert is_usable(Pair(source, target, "sentence", "x")) is usable


def many_pairs() -> list[Pair]:
    """400 packages with a text of their own, one that all share, and every text twice."""
    own = [Pair(f"text {i}", f"testo {i}", "sentence", f"package{i}") for i in range(400)]
    shared = [Pair("shared", "comune", "sentence", f"package{i}") for i in range(400)]
    return [*own, *shared, *own]


def test_no_package_is_in_two_parts_and_no_held_out_text_in_train() -> None:
    parts = split_by_package(many_pairs())
    packages = [{pair.package for pair in parts[name]} for name in SPLITS]
    assert [len(found) > 0 for found in packages] == [True] * 3
    assert not packages[0] & packages[1]
    assert not packages[0] & packages[2]
    assert not packages[1] & packages[2]
    held_out = {pair.source for name in ("valid", "test") for pair in parts[name]}
    assert "shared" in held_out
    assert not held_out & {pair.source for pair in parts["train"]}
    assert all(len(parts[name]) == len({pair.source for pair in parts[name]}) for name in SPLITS)


def test_parts_do_not_depend_on_what_else_there_is() -> None:
    pairs = many_pairs()
    some = [pair for pair in pairs if int(pair.package[7:]) % 3]
    whole, part = split_by_package(pairs), split_by_package(some)
    for name in SPLITS:
        assert {pair for pair in part[name] if pair.source != "shared"} <= set(whole[name])


def test_a_settled_test_part_is_kept_and_its_packages_are_nowhere_else() -> None:
    settled = [Pair("kept", "tenuto", "synopsis", "package7"), Pair("text 9", "testo 9", "sentence", "elsewhere")]
    parts = split_by_package(many_pairs(), settled)
    assert parts["test"] == settled
    others = [pair for name in ("train", "valid") for pair in parts[name]]
    assert "package7" not in {pair.package for pair in others}
    assert "text 9" not in {pair.source for pair in parts["train"]}


def test_corpus_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [replace(pair, package="") for pair in many_pairs()]
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)
    plain, packed = tmp_path / "a.tsv", tmp_path / "b.tsv.gz"
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(b"one further line\tuna riga\tsynopsis\tpackage\n" + text.encode()))
    for name in ("one", "two"):
        build(monkeypatch, "--tsv", plain, packed, "-o", tmp_path / name)
    counts = json.loads((tmp_path / "one" / "counts.json").read_text())
    assert {name: count["pairs"] for name, count in counts.items()} == {
        name: len(list(read_pairs(tmp_path / "one" / f"{name}.tsv.gz"))) for name in SPLITS
    }
    assert sum(count["pairs"] for count in counts.values()) == 402
    for file in ("train.tsv.gz", "valid.tsv.gz", "test.tsv.gz", "train.en"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    sources = (tmp_path / "one" / "train.en").read_text().splitlines()
    assert len(sources) == counts["train"]["pairs"]
    capsys.readouterr()
    build(monkeypatch, "--tsv", tmp_path / "missing", "-o", tmp_path / "one")
    assert "is complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [("no tab\n", "line 1 has no tab"), ("a\tb\n\nc\td", "line 2 has no tab"), ("a\tb\tpoem\n", "of kind 'poem'")],
)
def test_wrong_files_of_pairs(content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        build(monkeypatch, "--tsv", file, "-o", tmp_path / "corpus")
    with pytest.raises(InputError, match="cannot be read"):
        build(monkeypatch, "--tsv", tmp_path / "missing.tsv", "-o", tmp_path / "corpus")


def test_without_apt_the_way_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"apt-get is not here.*--tsv FILE"):
        build(monkeypatch, "-o", tmp_path)


def write_repository(folder: Path, descriptions: dict[str, dict[str, str]]) -> None:
    """An unsigned package repository: descriptions by package and language."""
    files = {"main/binary-all/Packages": ""}
    for language in ("en", "it"):
        files[f"main/i18n/Translation-{language}"] = ""
    for package, texts in descriptions.items():
        digest = hashlib.md5(texts["en"].encode()).hexdigest()
        files["main/binary-all/Packages"] += (
            f"Package: {package}\nSource: src-{package} (1.0)\nVersion: 1\nArchitecture: all\nMaintainer: x\n"
            f"Filename: x\nSize: 1\nSHA256: {'0' * 64}\nDescription: {texts['en'].splitlines()[0]}\n"
            f"Description-md5: {digest}\n\n"
        )
        for language, text in texts.items():
            files[f"main/i18n/Translation-{language}"] += (
                f"Package: {package}\nDescription-md5: {digest}\nDescription-{language}: {text}\n\n"
            )
    root = folder / "dists" / "stable"
    release = "Origin: test\nSuite: stable\nCodename: stable\nArchitectures: all\nComponents: main\nSHA256:\n"
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        release += f" {hashlib.sha256(text.encode()).hexdigest()} {len(text.encode())} {name}\n"
    (root / "Release").write_text(release)


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="there is no apt-get here")
def test_corpus_from_a_package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptions = {
        "reader": {"en": ENGLISH, "it": ITALIAN},
        "alone": {"en": "never translated\n Nobody did it."},
        "writer": {"en": "writes the news down", "it": "scrive le notizie"},
    }
    write_repository(tmp_path / "repository", descriptions)
    sources = tmp_path / "sources.list"
    sources.write_text(f"deb [trusted=yes arch=all] file:{tmp_path / 'repository'} stable main\n")
    pairs = list(build_corpus.read_index(PackageIndex(tmp_path / "apt", ("en", "it"), sources)))
    assert pairs == [
        *align(ENGLISH, ITALIAN, "src-reader"),
        Pair("writes the news down", "scrive le notizie", "synopsis", "src-writer"),
    ]
    write_repository(tmp_path / "repository", {})
    with pytest.raises(InputError, match="has no descriptions in 'it'"):
        list(build_corpus.read_index(PackageIndex(tmp_path / "empty", ("en", "it"), sources)))
    shutil.rmtree(tmp_path / "repository")
    with pytest.raises(InputError, match=r"apt-get .* failed: .*--tsv FILE"):
        PackageIndex(tmp_path / "other", ("en",), sources).update()
