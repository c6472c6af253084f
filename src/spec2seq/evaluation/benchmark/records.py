"""Results as lines of JSON, written as they come: an interrupted run keeps what it has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spec2seq.errors import InputError, OptionError
from spec2seq.evaluation.benchmark.systems import Engine, System

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

RESULTS = "results.jsonl"
Record = dict[str, Any]


class RecordFile:
    """Appends records to `results.jsonl` in a folder, and remembers them.

    Raises:
        OptionError: the folder holds the results of another run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RESULTS
        if self.path.exists():
            raise OptionError(f"{self.path} holds the results of another run; name another folder, or delete it")
        folder.mkdir(parents=True, exist_ok=True)
        self.records: list[Record] = []

    def add(self, kind: str, values: Record) -> None:
        """Write one record: {"record": kind, ...}."""
        record = {"record": kind, **values}
        self.records.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def read_records(path: Path) -> list[Record]:
    """The records of a file.

    Raises:
        InputError: it is missing or holds something else.
    """
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file; run `spec2seq bench` first") from None
    except ValueError as error:
        raise InputError(f"{path} is not a file of JSON lines ({error}); restore it") from error
    if not all(isinstance(record, dict) and "record" in record for record in records):
        raise InputError(f"{path} holds lines that are no records of a benchmark; restore it")
    return records


def of_kind(records: Iterable[Record], kind: str) -> Iterator[Record]:
    """Those records that are of a kind."""
    return (record for record in records if record["record"] == kind)


def system_as_dict(system: System) -> Record:
    """For JSON."""
    engine = system.engine
    return {
        "maker": engine.maker,
        "method": system.method,
        "backend": engine.backend,
        "dtype": engine.dtype,
        "threads": engine.threads,
    }


def system_from_dict(values: Record) -> System:
    """What `system_as_dict` made."""
    engine = Engine(values["maker"], values["backend"], values["dtype"], values["threads"])
    return System(values["method"], engine)
