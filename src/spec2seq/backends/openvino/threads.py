"""How many threads are fastest: measured once per machine and model."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spec2seq.backends.openvino.engine import ThreadPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.backends.openvino.engine import Engine
    from spec2seq.backends.openvino.store import GraphStore

    Work = Callable[[], None]

_GAIN = 0.95  # more threads must take at most so much of the time of fewer
_WARM_UPS, _REPEATS = 2, 5


def choose_threads(engine: Engine, few: Work, many: Work, store: GraphStore, key: str) -> ThreadPlan:
    """The fastest numbers of threads up to what torch may use; remembered beside the entry `key`.

    `few` and `many` run the engine once on few and many rows x positions.
    """
    limit = torch.get_num_threads()
    if limit == 1:
        return ThreadPlan(1, 1)
    name = f"threads of {limit} on {_machine()}"
    noted = store.noted(key, name)
    if isinstance(noted, dict) and noted.keys() == {"few", "many"}:
        return ThreadPlan(**noted)
    plan = ThreadPlan(_fastest(engine, few, limit), _fastest(engine, many, limit))
    store.note(key, name, asdict(plan))
    return plan


def _machine() -> str:
    """Processor and cores that may be used."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{names[0] if names else platform.processor()} x {cores}"


def _fastest(engine: Engine, work: Work, limit: int) -> int:
    """1, 2, 4, ... threads as long as each doubling pays."""
    best, num_threads = 1, 1
    best_seconds = _seconds(engine, work, 1)
    while num_threads < limit:
        num_threads = min(2 * num_threads, limit)
        seconds = _seconds(engine, work, num_threads)
        if seconds > _GAIN * best_seconds:
            break
        best, best_seconds = num_threads, seconds
    return best


@torch.inference_mode()
def _seconds(engine: Engine, work: Work, num_threads: int) -> float:
    """How long it takes, the shortest of some times."""
    engine.threads = ThreadPlan(num_threads, num_threads)
    times = []
    for _ in range(_WARM_UPS + _REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times[_WARM_UPS:])
