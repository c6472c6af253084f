"""Debian's package index with its descriptions in several languages, fetched into a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from spec2seq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CAT_FILE = ("/usr/lib/apt/apt-helper", "cat-file")
REMEDY = "give pairs of your own with --tsv FILE instead"
Stanza = dict[str, str]


class PackageIndex:
    """An index in a private folder: nothing of the system's own lists is read or changed, and no root is needed.

    Args:
        folder: for apt's state; made where it is missing.
        languages: of the descriptions.
        sources: a file in the form of sources.list; None for the system's own list.
    """

    def __init__(self, folder: Path, languages: Sequence[str], sources: Path | None = None) -> None:
        self.folder = folder.resolve()
        self._settings = self.folder / "apt.conf"
        for name in ("state/lists/partial", "cache/archives/partial", "log"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._settings.write_text(_settings(self.folder, languages, sources), encoding="utf-8")

    def update(self) -> None:
        """Fetch what is new.

        Raises:
            InputError: there is no apt here, or the index cannot be had.
        """
        self._run("update", "-qq")

    def packages(self) -> Iterator[Stanza]:
        """What is known of every package."""
        return self._stanzas("Packages")

    def descriptions(self, language: str) -> Iterator[Stanza]:
        """The descriptions in a language; their fields are Package, Description-md5 and Description-LANGUAGE."""
        return self._stanzas("Translations", f"Language: {language}")

    def _stanzas(self, *conditions: str) -> Iterator[Stanza]:
        told = self._run("indextargets", "--format", "$(FILENAME)", f"Created-By: {conditions[0]}", *conditions[1:])
        for file in told.splitlines():
            yield from read_stanzas(_run([*CAT_FILE, file], self._settings))

    def _run(self, *arguments: str) -> str:
        return _run(["apt-get", "-c", str(self._settings), *arguments], self._settings)


def read_stanzas(text: str) -> Iterator[Stanza]:
    """The paragraphs of a Debian control file, each as field: value; continuation lines keep their first space."""
    for block in re.split(r"\n{2,}", text.strip("\n")):
        fields = re.findall(r"^([^\s:]+):[ \t]*(.*(?:\n[ \t].*)*)", block, flags=re.MULTILINE)
        if fields:
            yield dict(fields)


def _settings(folder: Path, languages: Sequence[str], sources: Path | None) -> str:
    """An apt.conf. What is cleared first would be added to otherwise, or run by apt after an update."""
    names = " ".join(f'"{language}";' for language in languages)
    lines = [
        f'Dir::State "{folder}/state";',
        f'Dir::State::lists "{folder}/state/lists";',
        f'Dir::Cache "{folder}/cache";',
        f'Dir::Log "{folder}/log";',
        "#clear Acquire::Languages;",
        f"Acquire::Languages {{ {names} }};",
        'Acquire::GzipIndexes "false";',
        'APT::Update::Error-Mode "any";',  # else what cannot be fetched is left out, with a warning
        "#clear APT::Update::Pre-Invoke;",
        "#clear APT::Update::Post-Invoke;",
        "#clear APT::Update::Post-Invoke-Success;",
    ]
    if os.geteuid() == 0:
        lines.append('APT::Sandbox::User "root";')  # apt's own user may not enter a folder of root's
    if sources:
        lines += [f'Dir::Etc::sourcelist "{sources.resolve()}";', 'Dir::Etc::sourceparts "/dev/null";']
    return "\n".join(lines) + "\n"


def _run(command: Sequence[str], settings: Path) -> str:
    """The command's output."""
    if shutil.which(command[0]) is None:
        raise InputError(f"{command[0]} is not here, so there is no package index; {REMEDY}")
    environment = {**os.environ, "APT_CONFIG": str(settings), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, env=environment)
    if done.returncode:
        raise InputError(f"{' '.join(command)} failed: {' '.join(done.stderr.split())}; {REMEDY}")
    return done.stdout
