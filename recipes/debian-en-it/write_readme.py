#!/usr/bin/env python3
"""Put the figures into the recipe's README: generated, never typed.

    python recipes/debian-en-it/write_readme.py --results work/results --stages work/stages.jsonl
    python recipes/debian-en-it/write_readme.py

The first keeps what evaluate.py and run.py wrote in recipes/debian-en-it/results; both write the README from there.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from command_line import run_main
from figures import FIGURES_FILE, PLOT_FILE, read_records, report
from run import STAGES_FILE

from spec2seq.errors import InputError
from spec2seq.evaluation.benchmark.tables import table

FOLDER = Path(__file__).parent
PAGE, KEPT = FOLDER / "README.md", FOLDER / "results"
BEGIN, END = "<!-- figures: write_readme.py -->", "<!-- end of figures -->"
NOTHING = "Not measured yet."


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, metavar="DIR", help="what evaluate.py wrote")
    parser.add_argument("--stages", type=Path, metavar="FILE", help="what run.py noted")
    return parser.parse_args()


def keep(files: dict[str, Path]) -> None:
    """Copy results into the recipe's folder.

    Raises:
        InputError: a file is missing.
    """
    for name, file in files.items():
        if not file.is_file():
            raise InputError(f"{file}: there is no such file; run evaluate.py or run.py first")
        KEPT.mkdir(exist_ok=True)
        shutil.copyfile(file, KEPT / name)


def figures_text(folder: Path) -> str:
    """What stands between the marks."""
    parts = []
    if (folder / FIGURES_FILE).exists():
        parts.append(report(read_records(folder)))
    if (folder / PLOT_FILE).exists():
        parts.append(f"![Tokens per round by the number of slots]({KEPT.name}/{PLOT_FILE})")
    if (folder / STAGES_FILE).exists():
        parts += ["### What the stages cost", "\n".join(stage_table(folder / STAGES_FILE))]
    return "\n\n".join(parts) or NOTHING


def stage_table(file: Path) -> list[str]:
    """Minutes of every stage; those of interrupted runs add up."""
    seconds: dict[str, float] = {}
    processes: dict[str, int] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        note = json.loads(line)
        seconds[note["stage"]] = seconds.get(note["stage"], 0.0) + note["seconds"]
        processes[note["stage"]] = note["processes"]
    rows = [[stage, str(processes[stage]), f"{total / 60:.1f}"] for stage, total in seconds.items()]
    return table(["stage", "processes", "minutes"], rows)


def fill(page: str, text: str) -> str:
    """Put a text between the page's marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    arguments = parse_arguments()
    files: dict[str, Path] = {}
    if arguments.results:
        files[FIGURES_FILE] = arguments.results / FIGURES_FILE
        if (arguments.results / PLOT_FILE).exists():
            files[PLOT_FILE] = arguments.results / PLOT_FILE
    if arguments.stages:
        files[STAGES_FILE] = arguments.stages
    keep(files)
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), figures_text(KEPT)), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
