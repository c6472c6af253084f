#!/usr/bin/env python3
"""Write benchmarks/README.md and the figures in README.md from benchmarks/results: generated, never typed.

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
python recipes/debian-en-it/train_verifier.py --corpus CORPUS --tokenizer models/debian-en-it --output small \\
    --width 128 --layers 1 --learning-rate 0.002 --warmup-steps 600 --flat-steps 600 --minutes 25
python benchmarks/exactness_on_real_text.py --small-model small/model --out benchmarks/results/exactness.jsonl
python benchmarks/write_readme.py
```"""

SPEED = (
    "Greedy search beside transformers' `generate`; ours is plain too where no drafter is named. Padded ids in, ids "
    "out, the same batches in one process, by turns. Medians; a ratio above 1 means that ours is faster."
)
EXACT = (
    "The lines of `recipes/debian-en-it/test.tsv.gz`, each system against our greedy search at batch 1. A near tie is "
    "a first difference where the model's two best scores are closer than 1e-4."
)
BEGIN, END = "<!-- figures: benchmarks/write_readme.py -->", "<!-- end of figures -->"


def records(name: str) -> list[dict[str, Any]]:
    path = FOLDER / "results" / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def speed_table() -> list[str]:
    lines = [
        "| model | drafter | threads | batch | ours, token/s | transformers, token/s | ratio | quartiles | differ |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for record in records("greedy.jsonl"):
        ours, theirs = (
            record["tokens"] / statistics.median(record[f"seconds_{who}"]) for who in ("ours", "transformers")
        )
        low, high = record["ratio_quartiles"]
        size = "base size, random weights" if record["size"] == "base" else Path(record["size"]).name
        setting = f"{size} | {record['drafter']} | {record['threads']} | {record['batch_size']}"
        lines.append(
            f"| {setting} | {ours:.0f} | {theirs:.0f} | {record['ratio_median']:.2f} | {low:.2f} to {high:.2f} "
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


def in_main_readme() -> str:
    """The part of the README in the root that holds figures."""
    return "\n\n".join(
        ["\n".join(part) for part in ([SPEED], speed_table(), [EXACT], exactness_table(), machine_lines())]
    )


def fill(page: str, text: str) -> str:
    """Put `text` between the page's two marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    parts = [
        "# Measurements",
        "This page is written by `benchmarks/write_readme.py` from `benchmarks/results`. All figures are fp32.",
        "\n".join(machine_lines()),
        "## Greedy search beside transformers",
        SPEED,
        "\n".join(speed_table()),
        "## Is the output the same?",
        EXACT,
        "\n".join(exactness_table()),
        "## Commands",
        COMMANDS,
    ]
    (FOLDER / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    readme = FOLDER.parent / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8"), in_main_readme()), encoding="utf-8")


if __name__ == "__main__":
    main()
