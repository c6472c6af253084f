#!/usr/bin/env python3
"""How long `spec2seq translate` takes for one sentence, process start included, beside `import torch, openvino`.

    python benchmarks/cold_start.py --out benchmarks/results/cold_start.jsonl

One run of each before the clock starts: it converts the model, unless that was done before, and reads the files once.
Then both by turns. Prints the medians and their ratio, and appends one JSON line per system to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

SENTENCE = "This package contains the documentation."
BARE = "import torch, openvino"


def commands(dtype: str, drafter: str) -> dict[str, list[str]]:
    """What is compared, by name."""
    call = "import sys; from spec2seq.cli.main import main; sys.argv[0] = 'spec2seq'; main()"  # what the script does
    flags = ["--backend", "openvino", "--dtype", dtype, "--drafter", drafter]
    return {
        "imports": [sys.executable, "-c", BARE],
        "translate": [sys.executable, "-c", call, "translate", *flags, SENTENCE],
    }


def seconds(command: list[str]) -> float:
    """How long a process takes; it must succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(compared: dict[str, list[str]], repeats: int) -> dict[str, list[float]]:
    """The times of each system, by turns."""
    times: dict[str, list[float]] = {name: [] for name in compared}
    for command in compared.values():
        seconds(command)
    for _ in range(repeats):
        for name, command in compared.items():
            times[name].append(seconds(command))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "int8"))
    parser.add_argument("--drafter", default="prompt_lookup", help="as for `spec2seq translate`")
    parser.add_argument("--label", default="", help="what to call this version in --out")
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    arguments = parser.parse_args()
    times = measure(commands(arguments.dtype, arguments.drafter), arguments.repeats)
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        print(f"{name}: {medians[name]:.2f} s ({min(found):.2f} to {max(found):.2f})")
    print(f"ratio: {medians['translate'] / medians['imports']:.2f}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("a", encoding="utf-8") as file:
            for name, found in times.items():
                record = {
                    "label": arguments.label,
                    "system": name,
                    "dtype": arguments.dtype,
                    "drafter": arguments.drafter,
                    "seconds": found,
                    "median": medians[name],
                    "ratio": medians[name] / medians["imports"],
                    "load_average": os.getloadavg()[0],
                    "cores": len(os.sched_getaffinity(0)),
                    "torch": version("torch"),
                    "openvino": version("openvino"),
                }
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
