"""How much memory a system needs: the peak of a process of its own that loads it and decodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec2seq.errors import Spec2SeqError
from spec2seq.evaluation.benchmark.records import system_as_dict, system_from_dict
from spec2seq.evaluation.benchmark.timing import batches_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.evaluation.benchmark.loading import EngineLoader
    from spec2seq.evaluation.benchmark.setup import BenchmarkSetup
    from spec2seq.evaluation.benchmark.systems import System
    from spec2seq.evaluation.benchmark.timing import IdLists

_STATUS = Path("/proc/self/status")
_TIMEOUT_SECONDS = 1800


def note_memory(setup: BenchmarkSetup, systems: Sequence[System]) -> None:
    """Measure and record the memory of systems at the first batch size, if that is wanted."""
    if not setup.settings.measures_memory:
        return
    batch_size = setup.settings.batch_sizes[0]
    batches, _ = batches_of(setup.typical(max(setup.settings.num_cost_texts, batch_size)), batch_size)
    for system in systems:
        setup.tell(f"memory: {system.label}")
        values = {"batch_size": batch_size, "peak_bytes": peak_memory(setup.loader, system, batches)}
        setup.records.add("memory", {"system": system_as_dict(system), **values})


def peak_memory(loader: EngineLoader, system: System, batches: Sequence[IdLists]) -> int:
    """Bytes of memory, at most at one time, of a new process that loads the system and runs it over batches of ids.

    Raises:
        Spec2SeqError: the process failed.
    """
    order = {
        "loader": loader.as_dict(),
        "system": system_as_dict(system),
        "batches": [[list(source) for source in batch] for batch in batches],
    }
    command = [sys.executable, "-m", "spec2seq.evaluation.benchmark.memory"]
    child = subprocess.run(
        command, input=json.dumps(order), capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise Spec2SeqError(f"the memory of {system.label} could not be measured: {reason}")
    peak: int = json.loads(child.stdout.splitlines()[-1])["peak_bytes"]
    return peak


def _own_peak() -> int:
    """Of this process. `getrusage` would count what the parent held before it became this program."""
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _run_order(order: dict[str, Any]) -> None:
    from spec2seq.evaluation.benchmark.engines import LoadedSystem
    from spec2seq.evaluation.benchmark.loading import EngineLoader

    system = system_from_dict(order["system"])
    loaded = LoadedSystem(system, EngineLoader.from_dict(order["loader"]).load(system.engine))
    for batch in order["batches"]:
        loaded.run(batch)


if __name__ == "__main__":
    _run_order(json.load(sys.stdin))
    print(json.dumps({"peak_bytes": _own_peak()}))
