"""Folders of distilled text: a manifest, and shards that exist only when they are complete."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from spec2seq.errors import CheckpointError, ModelNotFoundError, OptionError
from spec2seq.training.records import DistilledPair, from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from spec2seq.training.records import Record

MANIFEST = "manifest.json"
FORMAT = 1
DEFAULT_SHARD_LINES = 2000


class ShardWriter:
    """The folder of one job. A killed run leaves whole shards only; the same job goes on behind them.

    Args:
        folder: made if it is not there.
        job: all that decides what the shards hold.
        origin: names for people, which may change between two runs of a job.

    Raises:
        OptionError: the folder holds another job.
        CheckpointError: its manifest is damaged.
        OSError: it cannot be written to.
    """

    def __init__(self, folder: Path, job: Mapping[str, object], origin: Mapping[str, object]) -> None:
        self.folder = folder
        self._manifest: dict[str, Any] = {"format": FORMAT, "origin": dict(origin), "job": dict(job), "totals": None}
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / MANIFEST).exists():
            self._check_job()
        else:
            self._check_empty()
            self._write_manifest()

    def is_done(self, index: int) -> bool:
        """Whether the shard with this index, from 0, was written."""
        return shard_path(self.folder, index).exists()

    def missing(self, num_shards: int) -> Iterator[int]:
        """The shards that are not written and in no other process's hands; each in this one's until the next is asked
        for."""
        for index in range(num_shards):
            # a lock ends with its process, however that ends
            with suppress(Timeout), FileLock(self.folder / f"shard-{index:05d}.lock", timeout=0):
                if not self.is_done(index):
                    yield index

    def write(self, index: int, records: Iterable[Record]) -> None:
        """Write a shard as a whole or not at all."""
        text = "".join(to_json(record) + "\n" for record in records)
        _replace(shard_path(self.folder, index), text)

    def finish(self, totals: Mapping[str, object]) -> None:
        """Say in the manifest that all shards are there, and what they add up to."""
        self._manifest["totals"] = dict(totals)
        self._write_manifest()
        for rest in (*self.folder.glob("*.part"), *self.folder.glob("*.lock")):  # of runs killed while they wrote, too
            rest.unlink(missing_ok=True)

    def _write_manifest(self) -> None:
        _replace(self.folder / MANIFEST, json.dumps(self._manifest, indent=2, ensure_ascii=False) + "\n")

    def _check_job(self) -> None:
        # compared as JSON, which knows no tuples
        mine = json.loads(json.dumps(self._manifest["job"]))
        other = _read_manifest(self.folder)["job"]
        differing = sorted(name for name in {*mine, *other} if mine.get(name) != other.get(name))
        if differing:
            raise OptionError(
                f"{self.folder} holds another distillation ({', '.join(differing)} differ); choose another --output, "
                "or delete the folder to start anew"
            )

    def _check_empty(self) -> None:
        if shard_path(self.folder, 0).exists():
            raise CheckpointError(f"{self.folder} holds shards without {MANIFEST}; choose another --output")


def shard_path(folder: Path, index: int) -> Path:
    """Where the shard with this index, from 0, is."""
    return folder / f"shard-{index:05d}.jsonl"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a complete distillation: `job`, `origin`, `totals`.

    Raises:
        ModelNotFoundError: this is no folder of a distillation.
        CheckpointError: it is damaged, or not complete.
    """
    if not (folder / MANIFEST).is_file():
        raise ModelNotFoundError(f"{folder} has no {MANIFEST}: make it with `spec2seq distill ... --output {folder}`")
    manifest = _read_manifest(folder)
    if manifest["totals"] is None:
        raise CheckpointError(f"the distillation in {folder} is not complete: run the same `spec2seq distill` again")
    return manifest


def read_pairs(folder: Path) -> Iterator[DistilledPair]:
    """All pairs of a complete distillation, in the order of the source.

    Raises:
        ModelNotFoundError, CheckpointError: as `read_manifest`; also for a shard that is missing or damaged.
    """
    for index in range(read_manifest(folder)["totals"]["num_shards"]):
        for record in read_shard(shard_path(folder, index)):
            if isinstance(record, DistilledPair):
                yield record


def read_shard(file: Path) -> Iterator[Record]:
    """The records of a shard: one for every line of its part of the source, in order.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: run the same `spec2seq distill` again")
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            yield from_json(line)
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{file}, line {number} is damaged: delete the file and run the same `spec2seq distill` again"
            ) from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Raises CheckpointError for a file that is not whole, or of another format."""
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        is_known = manifest["format"] == FORMAT and isinstance(manifest["job"], dict) and "totals" in manifest
    except (ValueError, KeyError, TypeError):
        is_known = False
    if not is_known:
        raise CheckpointError(f"{file} is not a manifest of format {FORMAT}: delete {folder} and distil anew")
    return manifest  # type: ignore[no-any-return]


def _replace(file: Path, text: str) -> None:
    """Write a file so that it is there as a whole or not at all, whenever the power goes."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    with part.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(file)
