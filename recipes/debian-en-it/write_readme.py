#!/usr/bin/env python3
"""Put the figures into the recipe's README: generated, never typed.

    python recipes/debian-en-it/write_readme.py --results work/results --stages work/stages.jsonl
    python recipes/debian-en-it/write_readme.py --ablations work/ablations
    python recipes/debian-en-it/write_readme.py

The first two keep what evaluate.py, run.py and ablate.py wrote in recipes/debian-en-it/results; all of them write the
README from there.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import ablation_figures
from command_line import run_main
from figures import FIGURES_FILE, PLOT_FILE, read_records, report
from run import STAGES_FILE, read_notes

from spec2seq.errors import InputError
from spec2seq.evaluation.benchmark.tables import table

FOLDER = Path(__file__).parent
PAGE, KEPT = FOLDER / "README.md", FOLDER / "results"
NOTHING = "Not measured yet."


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, metavar="DIR", help="what evaluate.py wrote")
    parser.add_argument("--stages", type=Path, metavar="FILE", help="what run.py noted")
    parser.add_argument("--ablations", type=Path, metavar="DIR", help="what ablate.py wrote")
    return parser.parse_args()


def keep(files: dict[str, Path]) -> None:
    """Copy results into the recipe's folder.

    Raises:
        InputError: a file is missing.
    """
    for name, file in files.items():
        if not file.is_file():
            raise InputError(f"{file}: there is no such file; run evaluate.py, run.py or ablate.py first")
        KEPT.mkdir(exist_ok=True)
        shutil.copyfile(file, KEPT / name)


def figures_text(folder: Path) -> str:
    """What stands between the marks of the figures."""
    parts = []
    if (folder / FIGURES_FILE).exists():
        parts.append(report(read_records(folder / FIGURES_FILE)))
    if (folder / PLOT_FILE).exists():
        parts.append(f"![Tokens per round by the number of slots]({KEPT.name}/{PLOT_FILE})")
    if (folder / STAGES_FILE).exists():
        parts += ["### What the stages cost", "\n".join(stage_table(folder / STAGES_FILE))]
    return "\n\n".join(parts) or NOTHING


def ablations_text(folder: Path) -> str:
    """What stands between the marks of the ablations."""
    file = folder / ablation_figures.FIGURES_FILE
    if not file.exists():
        return NOTHING
    picture = f"![How many rounds keep each drafted token]({KEPT.name}/{ablation_figures.PLOT_FILE})"
    return f"{ablation_figures.report(read_records(file))}\n\n{picture}"


def stage_table(file: Path) -> list[str]:
    """Minutes of every stage; those of interrupted runs add up."""
    rows = [[stage, str(processes), f"{seconds / 60:.1f}"] for stage, (seconds, processes) in read_notes(file).items()]
    return table(["stage", "processes", "minutes"], rows)


def fill(page: str, section: str, text: str) -> str:
    """Put a text between the page's marks of a section."""
    begin, end = f"<!-- {section}: write_readme.py -->", f"<!-- end of {section} -->"
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"


def main() -> None:
    arguments = parse_arguments()
    files: dict[str, Path] = {}
    if arguments.results:
        files[FIGURES_FILE] = arguments.results / FIGURES_FILE
        if (arguments.results / PLOT_FILE).exists():
            files[PLOT_FILE] = arguments.results / PLOT_FILE
    if arguments.stages:
        files[STAGES_FILE] = arguments.stages
    if arguments.ablations:
        for name in (ablation_figures.FIGURES_FILE, ablation_figures.PLOT_FILE):
            files[name] = arguments.ablations / name
    keep(files)
    page = fill(PAGE.read_text(encoding="utf-8"), "figures", figures_text(KEPT))
    PAGE.write_text(fill(page, "ablations", ablations_text(KEPT)), encoding="utf-8")


if __name__ == "__main__":
    run_main(main)
