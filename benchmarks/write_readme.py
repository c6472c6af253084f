#!/usr/bin/env python3
"""Write benchmarks/README.md from the JSON lines in benchmarks/results. Figures are generated, never typed.

python benchmarks/write_readme.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
COMMANDS = """```
python benchmarks/greedy_vs_transformers.py --out benchmarks/results/greedy.jsonl
python benchmarks/greedy_vs_transformers.py --synthetic base --lines 32 --repeats 5 \\
    --out benchmarks/results/greedy.jsonl
python recipes/debian-en-it/train_small_model.py TRAIN.tsv.gz --model models/debian-en-it --out small --minutes 25
python benchmarks/exactness_on_real_text.py --small-model small/hf --out benchmarks/results/exactness.jsonl
python benchmarks/write_readme.py
```"""


def records(name: str) -> list[dict[str, Any]]:
    path = FOLDER / "results" / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def speed_table() -> list[str]:
    lines = [
        "| model | threads | batch | ours, tokens/s | transformers, tokens/s | ratio | quartiles | lines that differ |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for record in records("greedy.jsonl"):
        ours, theirs = (
            record["tokens"] / statistics.median(record[f"seconds_{who}"]) for who in ("ours", "transformers")
        )
        low, high = record["ratio_quartiles"]
        size = "base size, random weights" if record["size"] == "base" else record["size"]
        lines.append(
            f"| {size} | {record['threads']} | {record['batch_size']} | {ours:.0f} | {theirs:.0f} "
            f"| {record['ratio_median']:.2f} | {low:.2f} to {high:.2f} "
            f"| {record['lines_different']} of {record['lines']} |"
        )
    return lines


def exactness_table() -> list[str]:
    lines = ["| system | lines | identical | near ties (margin) | tokens per round | left out: loops |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for record in records("exactness.jsonl"):
        found = record["differences"]
        ties = ", ".join(f"{difference['margin']:.1e}" for difference in found) or "none"
        per_round = f"{record['tokens_per_round']:.3f}" if "tokens_per_round" in record else ""
        loops = record.get("degenerate_lines", "")
        lines.append(
            f"| {record['system']} | {record['lines']} | {record['lines'] - len(found)} | {ties} "
            f"| {per_round} | {loops} |"
        )
    return lines


def machine_lines() -> list[str]:
    seen = {
        f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, transformers {machine['transformers']}"
        for machine in (record["machine"] for record in records("greedy.jsonl"))
    }
    return [f"Machine: {line}." for line in sorted(seen)]


def main() -> None:
    parts = [
        "# Measurements",
        "This page is written by `benchmarks/write_readme.py` from `benchmarks/results`. All figures are fp32.",
        "\n".join(machine_lines()),
        "## Plain greedy search beside transformers",
        "No speculation: the engine alone. Padded ids in, ids out, both systems on the same batches in one process, by "
        "turns. Speeds and ratio are medians; a ratio above 1 means that ours is faster.",
        "\n".join(speed_table()),
        "## Is the output the same?",
        "The lines of `recipes/debian-en-it/test.tsv.gz`, each system against our greedy search at batch 1. A near tie "
        "is a first difference where the model's two best scores are closer than 1e-4.",
        "\n".join(exactness_table()),
        "## Commands",
        COMMANDS,
    ]
    (FOLDER / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
