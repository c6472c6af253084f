"""Converted graphs on disk, so that a model is converted once per precision."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec2seq.backends.openvino.library import load_core, load_openvino

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FOLDER_VARIABLE = "SPEC2SEQ_CACHE"

_MANIFEST = "manifest.json"
_FACTS = "facts.json"


class GraphStore:
    """Entries of graphs, each a folder that appears at once and is never changed but for what is noted beside."""

    def __init__(self, folder: Path | None = None) -> None:
        """In `folder`; by default $SPEC2SEQ_CACHE, or ~/.cache/spec2seq."""
        self.folder = (folder or default_folder()) / "openvino"
        self._is_warned = False

    def get(self, key: str, convert: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The graphs of an entry, as openvino.Models by name; made by `convert` where there is none.

        Warns:
            UserWarning: the entry is damaged, and made anew; or nothing can be written.
        """
        entry = self.folder / key
        if entry.exists():
            reason = _damage(entry)
            if reason is None:
                return _read(entry)
            warnings.warn(f"{entry} is damaged ({reason}) and is made anew", stacklevel=2)
        graphs = dict(convert())
        return _read(entry) if self._write(entry, graphs) else graphs

    def noted(self, key: str, name: str) -> Any:
        """What was noted beside an entry, as JSON gives it back; None where there is nothing."""
        try:
            return json.loads((self.folder / key / _FACTS).read_text(encoding="utf-8")).get(name)
        except (OSError, ValueError, AttributeError):
            return None

    def note(self, key: str, name: str, value: Any) -> None:
        """Note something beside an entry; where nothing can be written, nothing is."""
        file = self.folder / key / _FACTS
        try:
            facts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as unfinished:
                json.dump({**facts, name: value}, unfinished)
            os.replace(unfinished.name, file)
        except (OSError, ValueError) as error:
            self._warn(error)

    def _write(self, entry: Path, graphs: Mapping[str, Any]) -> bool:
        """Write an entry aside and move it to its place. Returns whether it is there."""
        openvino = load_openvino()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                dir=self.folder, prefix="unfinished-", ignore_cleanup_errors=True
            ) as aside:
                new, old = Path(aside) / "new", Path(aside) / "old"
                new.mkdir()
                for name, graph in graphs.items():
                    openvino.save_model(graph, new / f"{name}.xml", compress_to_fp16=False)
                digests = {file.name: _digest(file) for file in sorted(new.iterdir())}
                (new / _MANIFEST).write_text(json.dumps(digests), encoding="utf-8")
                if entry.exists():
                    os.rename(entry, old)
                os.rename(new, entry)
        except (OSError, RuntimeError) as error:
            # another process may have been faster
            if entry.exists() and _damage(entry) is None:
                return True
            self._warn(error)
            return False
        return True

    def _warn(self, error: Exception) -> None:
        if not self._is_warned:
            self._is_warned = True
            warnings.warn(
                f"cannot write to {self.folder} ({error}): models are converted anew each time; set {FOLDER_VARIABLE} "
                "to a folder that can be written",
                stacklevel=3,
            )


def default_folder() -> Path:
    """Where everything that can be made again is kept."""
    said = os.environ.get(FOLDER_VARIABLE)
    return Path(said) if said else Path.home() / ".cache" / "spec2seq"


def _damage(entry: Path) -> str | None:
    """What is wrong with an entry; None when it is whole."""
    try:
        digests = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
        differing = [name for name, digest in digests.items() if _digest(entry / name) != digest]
    except (OSError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{differing[0]} is not what was written" if differing else None


def _read(entry: Path) -> dict[str, Any]:
    core = load_core()
    return {file.stem: core.read_model(file) for file in sorted(entry.glob("*.xml"))}


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
