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
from spec2seq.types import SourceBatch, Wanted

if TYPE_CHECKING:
    from spec2seq.backends.openvino.store import GraphStore
    from spec2seq.backends.openvino.verifier import OpenVinoVerifier

_GAIN = 0.95  # more threads must take at most so much of the time of fewer
_WARM_UPS, _REPEATS = 2, 5
_FEW = ((1, 1), (1, 8))  # rows and queries of the calls that are measured
_MANY = ((8, 8),)


def choose_threads(verifier: OpenVinoVerifier, store: GraphStore, key: str) -> ThreadPlan:
    """The fastest numbers of threads for this verifier, up to what torch may use; remembered beside its entry."""
    limit = torch.get_num_threads()
    if limit == 1:
        return ThreadPlan(1, 1)
    name = f"threads of {limit} on {_machine()}"
    noted = store.noted(key, name)
    if isinstance(noted, dict) and noted.keys() == {"few", "many"}:
        return ThreadPlan(**noted)
    plan = ThreadPlan(_fastest(verifier, _FEW, limit), _fastest(verifier, _MANY, limit))
    store.note(key, name, asdict(plan))
    return plan


def _machine() -> str:
    """Processor and cores that may be used."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{names[0] if names else platform.processor()} x {cores}"


def _fastest(verifier: OpenVinoVerifier, shapes: tuple[tuple[int, int], ...], limit: int) -> int:
    """1, 2, 4, ... threads as long as each doubling pays."""
    best, num_threads = 1, 1
    best_seconds = _seconds(verifier, shapes, 1)
    while num_threads < limit:
        num_threads = min(2 * num_threads, limit)
        seconds = _seconds(verifier, shapes, num_threads)
        if seconds > _GAIN * best_seconds:
            break
        best, best_seconds = num_threads, seconds
    return best


@torch.inference_mode()
def _seconds(verifier: OpenVinoVerifier, shapes: tuple[tuple[int, int], ...], num_threads: int) -> float:
    """How long calls of these shapes take, the shortest of some each."""
    verifier.engine.threads = ThreadPlan(num_threads, num_threads)
    total = 0.0
    for num_rows, num_queries in shapes:
        pad = verifier.config.pad_token_id
        tokens = torch.full((num_rows, num_queries), pad)
        source = SourceBatch(torch.full((num_rows, 16), pad), torch.full((num_rows,), 16))
        encoded, cache = verifier.encode(source), verifier.new_cache(num_rows)
        positions = torch.arange(num_queries).repeat(num_rows, 1)
        lengths = torch.full((num_rows,), num_queries)
        times = []
        for _ in range(_WARM_UPS + _REPEATS):
            start = time.perf_counter()
            verifier.decode(tokens, positions, lengths, cache, encoded, Wanted())
            times.append(time.perf_counter() - start)
        total += min(times[_WARM_UPS:])
    return total
