#!/usr/bin/env python3
"""Write benchmarks/README.md, its plots and the figures in README.md from benchmarks/results: generated, never typed.

python benchmarks/write_readme.py

results/bench holds the results.jsonl of runs of `spec2seq bench`, each under the name of what it was about.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spec2seq.evaluation.benchmark.plots import write_plots
from spec2seq.evaluation.benchmark.records import of_kind, read_records
from spec2seq.evaluation.benchmark.reporting import machine_line, report
from spec2seq.evaluation.benchmark.speculation_tables import PROJECTION_NOTE, projection_table
from spec2seq.evaluation.benchmark.tables import SPEED_NOTE, speed_table

FOLDER = Path(__file__).parent
HEADLINE = "debian-en-it"  # the run whose table and plot are in the main README
PLOT = "speed_and_quality.png"
EXACT = (
    "The lines of `recipes/debian-en-it/test.tsv.gz`, each system against our greedy search at batch 1 on the same "
    "engine, one thread. A near tie is a first difference where the model's two best scores are closer than the "
    "engine's tolerance in nats: 1e-4 in fp32; 0.1 in bfloat16, where a batch of another size rounds otherwise; none "
    "in int8 on steps of our own. A mistake is a difference at a wider margin."
)
AUTO = (
    'Drafting as much as pays (`num_draft_tokens="auto"`, the default) beside plain greedy search of the same engine: '
    "the same lines in at least 20 pairs, by turns; a ratio above 1 means that auto is faster."
)
COMMANDS = """```
spec2seq bench --out bench && cp bench/results.jsonl benchmarks/results/bench/debian-en-it.jsonl
spec2seq bench --synthetic base --profile bench/profile.json --out base && \\
    cp base/results.jsonl benchmarks/results/bench/base.jsonl
python benchmarks/exactness_on_real_text.py --engine openvino:float32 --drafter prompt_lookup=prompt_lookup \\
    --drafter feature=models/debian-en-it-drafter --out benchmarks/results/exactness.jsonl
python benchmarks/auto_vs_greedy.py --drafter models/debian-en-it-drafter --backend openvino --dtype bfloat16 \\
    --out benchmarks/results/auto_vs_greedy.jsonl
python benchmarks/write_readme.py
```"""
BEGIN, END = "<!-- figures: benchmarks/write_readme.py -->", "<!-- end of figures -->"


def runs() -> dict[str, list[dict[str, Any]]]:
    """Records of every run of `spec2seq bench`, the headline first."""
    files = sorted((FOLDER / "results" / "bench").glob("*.jsonl"), key=lambda file: (file.stem != HEADLINE, file.stem))
    return {file.stem: read_records(file) for file in files}


def json_lines(name: str) -> list[dict[str, Any]]:
    path = FOLDER / "results" / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def auto_part() -> list[str]:
    """How drafting as much as pays compares with plain search; nothing where that was not measured."""
    if not (FOLDER / "results" / "auto_vs_greedy.jsonl").exists():
        return []
    lines = [
        "| engine | drafter | threads | batch | auto, token/s | plain, token/s | ratio | 95 % interval | differ |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for record in json_lines("auto_vs_greedy.jsonl"):
        speeds, (low, high) = record["tokens_per_second"], record["interval"]
        lines.append(
            f"| {record['backend']} {record['dtype']} | {record['drafter']} | {record['threads']} "
            f"| {record['batch_size']} | {speeds['auto']:.0f} | {speeds['plain']:.0f} | {record['ratio']:.2f} "
            f"| {low:.2f} to {high:.2f} | {record['lines_different']} of {record['lines']} |"
        )
    return ["## As much as pays", AUTO, "\n".join(lines)]


def exactness_table() -> list[str]:
    lines = ["| engine | system | lines | identical | near ties | mistakes | tokens per round | left out: loops |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for record in json_lines("exactness.jsonl"):
        margins = [difference["margin"] for difference in record["differences"]]
        ties = [margin for margin in margins if margin <= record["tolerance"]]
        told = f"{len(ties)}, at most {max(ties):.1e}" if ties else "none"
        per_round = f"{record['tokens_per_round']:.3f}" if "tokens_per_round" in record else ""
        loops = record.get("degenerate_lines", "")
        lines.append(
            f"| {record['engine'].replace(':', ' ')} | {record['system']} | {record['lines']} "
            f"| {record['lines'] - len(margins)} | {told} | {len(margins) - len(ties)} | {per_round} | {loops} |"
        )
    return lines


def projections() -> list[str]:
    """One table of all projections, with what they are; nothing where there is none."""
    found = [record for records in runs().values() for record in of_kind(records, "projection")]
    return [PROJECTION_NOTE, "\n".join(projection_table(found))] if found else []


def bench_part() -> list[str]:
    """The headline's table and plot, and all projections."""
    headline = runs()[HEADLINE]
    run = next(of_kind(headline, "run"))
    about = f"`{run['command']}`: {run['texts']} lines, drafter {run['drafter']}. {SPEED_NOTE}"
    plot = f"![Speed and quality](benchmarks/{HEADLINE}/{PLOT})"
    return [about, "\n".join(speed_table(headline)), machine_line(headline), plot, *projections()]


def in_main_readme() -> str:
    """The part of the README in the root that holds figures."""
    return "\n\n".join([*bench_part(), EXACT, "\n".join(exactness_table())])


def in_benchmarks_readme() -> str:
    """The page with all that was measured."""
    parts = ["# Measurements", "This page is written by `benchmarks/write_readme.py` from `benchmarks/results`."]
    for name, records in runs().items():
        plots = [f"![{path.stem}]({name}/{path.name})" for path in sorted((FOLDER / name).glob("*.png"))]
        page = report(records).strip().replace("\n#", "\n##").replace("# Benchmark", f"## {name}", 1)
        parts += [page, *plots]
    parts += auto_part()
    parts += ["## Is the output the same?", EXACT, "\n".join(exactness_table()), "## Commands", COMMANDS]
    return "\n\n".join(parts) + "\n"


def fill(page: str, text: str) -> str:
    """Put `text` between the page's two marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    for name, records in runs().items():
        (FOLDER / name).mkdir(exist_ok=True)
        write_plots(records, FOLDER / name)
    (FOLDER / "README.md").write_text(in_benchmarks_readme(), encoding="utf-8")
    readme = FOLDER.parent / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8"), in_main_readme()), encoding="utf-8")


if __name__ == "__main__":
    main()
