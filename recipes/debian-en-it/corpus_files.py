"""The corpus on disk, and which of its three parts a pair belongs to."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING, get_args

from alignment import Kind, Pair

from spec2seq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

HELD_OUT_SHARE = 0.015  # of the source packages, for validation and for the test each
MAX_TEST_PAIRS = 1000
SPLITS = ("train", "valid", "test")
Splits = dict[str, list[Pair]]


def read_pairs(file: Path) -> Iterator[Pair]:
    """The pairs of a tab-separated file, plain or .gz: source, target, then kind and package where they are known.

    A pair without a package is one of its own.

    Raises:
        InputError: the file cannot be read, or holds a line without a tab or of an unknown kind.
    """
    open_text = gzip.open if file.suffix == ".gz" else open
    try:
        with open_text(file, "rt", encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                yield _pair(line.rstrip("\r\n").split("\t"), f"{file}, line {number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({error}); give a UTF-8 file of tab-separated pairs") from error


def _pair(columns: list[str], where: str) -> Pair:
    if len(columns) < 2:
        raise InputError(f"{where} has no tab: a line is source, tab, target")
    source, target, kind, package = [*columns, "", ""][:4]
    if kind not in ("", *get_args(Kind)):
        raise InputError(f"{where} is of kind {kind!r}; use {', '.join(get_args(Kind))}, or leave the column out")
    return Pair(source, target, kind or "sentence", package or source)


def write_pairs(file: Path, pairs: Iterable[Pair]) -> None:
    """Write a .tsv.gz; the same pairs give the same bytes."""
    text = "".join("\t".join((pair.source, pair.target, pair.kind, pair.package)) + "\n" for pair in pairs)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def split_by_package(pairs: Iterable[Pair], test: Sequence[Pair] = ()) -> Splits:
    """Train, valid and test: all of a source package in one of them, and no source of the other two in train.

    Texts that are there twice count once. The order within valid and test is arbitrary, but always the same.

    Args:
        pairs: of all packages.
        test: what the test part is to be, where that is settled already; its packages are in no other part.
    """
    settled = {pair.package for pair in test}
    parts: Splits = {name: [] for name in SPLITS}
    for pair in pairs:
        if pair.package not in settled:
            parts[_split_of(pair.package)].append(pair)
    held_out = {name: sorted(_by_text(parts[name]), key=_order) for name in ("valid", "test")}
    if test:
        held_out["test"] = list(test)
    del held_out["test"][MAX_TEST_PAIRS:]
    seen = {pair.source for part in held_out.values() for pair in part}
    return {"train": [pair for pair in _by_text(parts["train"]) if pair.source not in seen], **held_out}


def _order(pair: Pair) -> float:
    return _share(f"{pair.source}\t{pair.target}")


def _by_text(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs without those whose texts were there before."""
    first: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        first.setdefault((pair.source, pair.target), pair)
    return list(first.values())


def _split_of(package: str) -> str:
    share = _share(package)
    if share < HELD_OUT_SHARE:
        return "test"
    return "valid" if share < 2 * HELD_OUT_SHARE else "train"


def _share(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64


def write_corpus(folder: Path, splits: Splits) -> dict[str, dict[str, int]]:
    """Write the three parts, the distinct sources of train as plain text, and how much there is of everything.

    Returns:
        Pairs, source packages and source words of each part.
    """
    counts = {}
    for name, pairs in splits.items():
        write_pairs(folder / f"{name}.tsv.gz", pairs)
        counts[name] = {
            "pairs": len(pairs),
            "packages": len({pair.package for pair in pairs}),
            "words": sum(len(pair.source.split()) for pair in pairs),
        }
    sources = dict.fromkeys(pair.source for pair in splits["train"])
    (folder / "train.en").write_text("".join(f"{source}\n" for source in sources), encoding="utf-8")
    (folder / "counts.json").write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")  # last: all is there
    return counts
