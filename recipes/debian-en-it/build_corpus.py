#!/usr/bin/env python3
"""Build the English-Italian corpus: the descriptions of Debian's packages and their translations.

    python recipes/debian-en-it/build_corpus.py --output corpus

runs `apt-get update` for both languages in a folder of its own (no root needed; the system's lists stay as they are)
and joins the descriptions by their Description-md5. Where there is no package index, the pairs come from files:

    python recipes/debian-en-it/build_corpus.py --tsv pairs.tsv more.tsv.gz --output corpus

Written are train.tsv.gz, valid.tsv.gz and test.tsv.gz (source, target, kind, source package), train.en (the sources of
train, each once) and counts.json. A folder that holds them already is left as it is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from alignment import align, is_usable
from command_line import run_main
from corpus_files import read_pairs, split_by_package, write_corpus
from package_index import REMEDY, PackageIndex

from spec2seq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from alignment import Pair

SOURCE_LANGUAGE, TARGET_LANGUAGE = "en", "it"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="DIR", help="where the corpus goes")
    parser.add_argument("--tsv", type=Path, nargs="+", metavar="FILE", help="take the pairs from these files")
    parser.add_argument(
        "--sources-list", type=Path, metavar="FILE", help="take the package index from here, not from the system's list"
    )
    parser.add_argument(
        "--test",
        type=Path,
        metavar="FILE",
        help="the test part is this file, and its source packages are in no other part: for training on from a model "
        "that was trained on another split",
    )
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="only one source package in N, for a trial (default: 1, all)"
    )
    parser.add_argument("--titles-only", action="store_true", help="no sentences and paragraphs, for a trial")
    return parser.parse_args()


def read_index(index: PackageIndex) -> Iterator[Pair]:
    """The pairs of all packages that have both descriptions.

    Raises:
        InputError: the index cannot be had, or has no descriptions in the target language.
    """
    index.update()
    source_packages = {
        stanza["Package"]: stanza.get("Source", stanza["Package"]).split()[0] for stanza in index.packages()
    }
    targets = {
        stanza["Description-md5"]: stanza[f"Description-{TARGET_LANGUAGE}"]
        for stanza in index.descriptions(TARGET_LANGUAGE)
    }
    if not targets:
        raise InputError(
            f"the package index in {index.folder} has no descriptions in {TARGET_LANGUAGE!r}; name another with "
            f"--sources-list, or {REMEDY}"
        )
    for stanza in index.descriptions(SOURCE_LANGUAGE):
        target = targets.get(stanza["Description-md5"])
        if target is not None:
            package = source_packages.get(stanza["Package"], stanza["Package"])
            yield from align(stanza[f"Description-{SOURCE_LANGUAGE}"], target, package)


def chosen(pairs: Iterable[Pair], every: int, titles_only: bool) -> Iterator[Pair]:
    """The usable pairs of one source package in `every`, in the order of the packages."""
    packages: dict[str, int] = {}
    for pair in pairs:
        number = packages.setdefault(pair.package, len(packages))
        if number % every == 0 and is_usable(pair) and (pair.kind == "synopsis" or not titles_only):
            yield pair


def main() -> None:
    arguments = parse_arguments()
    folder: Path = arguments.output
    if (folder / "counts.json").exists():
        print(f"{folder} is complete")
        return
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.tsv:
        pairs = (pair for file in arguments.tsv for pair in read_pairs(file))
    else:
        languages = (SOURCE_LANGUAGE, TARGET_LANGUAGE)
        pairs = read_index(PackageIndex(folder / "apt", languages, arguments.sources_list))
    test = list(read_pairs(arguments.test)) if arguments.test else []
    splits = split_by_package(chosen(pairs, arguments.every, arguments.titles_only), test)
    print(json.dumps(write_corpus(folder, splits)))


if __name__ == "__main__":
    run_main(main)
