"""The files that a run leaves: the table, the plots, the acceptance profile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spec2seq.errors import MissingExtraError
from spec2seq.evaluation.benchmark.plots import write_plots
from spec2seq.evaluation.benchmark.records import of_kind
from spec2seq.evaluation.benchmark.speculation_tables import (
    PROJECTION_NOTE,
    blocks_table,
    costs_table,
    projection_table,
)
from spec2seq.evaluation.benchmark.tables import (
    QUALITY_NOTE,
    SPEED_NOTE,
    SPLIT_NOTE,
    agreement_table,
    choice_table,
    quality_table,
    speed_table,
    split_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from spec2seq.evaluation.benchmark.profiles import AcceptanceProfile
    from spec2seq.evaluation.benchmark.records import Record

REPORT = "report.md"
PROFILE = "profile.json"


def report(records: Sequence[Record]) -> str:
    """All there is to tell, as a page."""
    parts = [
        "# Benchmark",
        *_run_lines(records),
        *_section("Speed", SPEED_NOTE, speed_table(records)),
        *_section("Where the time goes, beside what is accepted", SPLIT_NOTE, split_table(records)),
        *_section("Quality", QUALITY_NOTE, quality_table(records)),
        *_section("Which engine was fastest on a few texts", "", choice_table(records)),
        *_section("Choices along fp32 greedy outputs", "", agreement_table(records)),
        *_section("Speed and tokens per round by block size", "", blocks_table(records)),
        *_section("Costs of single calls, one text at a time", "", costs_table(records)),
        *_section("Projection", PROJECTION_NOTE, projection_table(records)),
        *_section("Left out", "", _skipped(records)),
    ]
    return "\n\n".join(parts) + "\n"


def write_report(records: Sequence[Record], folder: Path, tell: Callable[[str], None]) -> None:
    """Write `report.md` and the plots from what was measured so far; nothing where no pass was."""
    if not any(of_kind(records, "pass")):
        return
    (folder / REPORT).write_text(report(records), encoding="utf-8")
    try:
        write_plots(records, folder)
    except MissingExtraError as error:
        tell(f"no plots: {error}")


def write_profile(profile: AcceptanceProfile, folder: Path) -> None:
    """Write the acceptance of a drafter, for projections."""
    (folder / PROFILE).write_text(json.dumps(profile.as_dict(), indent=2) + "\n", encoding="utf-8")


def machine_line(records: Sequence[Record]) -> str:
    """Where it was measured, in a line."""
    run = next(of_kind(records, "run"))
    machine = run["machine"]
    packages = ("torch", "transformers", "openvino", "ctranslate2")
    versions = ", ".join(f"{name} {machine[name]}" for name in packages if machine.get(name))
    loads = [record["load"] for record in of_kind(records, "pass") if record["load"] is not None]
    load = f", load {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    return f"Machine: {machine['cpu']}, {machine['cores']} cores, {versions}{load}."


def _run_lines(records: Sequence[Record]) -> list[str]:
    run = next(of_kind(records, "run"))
    reference = next(of_kind(records, "reference"), None)
    left_out = len(reference["left_out_in_circles"]) if reference else 0
    texts = f"{run['texts']} texts of {run['input']}"
    lines = [
        f"{texts}; model {run['model']} (weights {run['weights']}), drafter {run['drafter']}; {run['date']}, commit "
        f"{run['commit']}. Command: `{run['command']}`",
        machine_line(records),
    ]
    if left_out:
        lines.append(f"Left out: {left_out} texts whose fp32 greedy outputs run in circles to the limit.")
    if "tokenisation_seconds" in run:
        per_text = 1000 * run["tokenisation_seconds"] / run["texts"]
        lines.append(f"Tokenisation, which is not timed with the systems: {per_text:.2f} ms per text.")
    signatures = {score["signature"] for record in of_kind(records, "quality") for score in record["scores"]}
    lines += [f"Signature: `{signature}`" for signature in sorted(signatures)]
    return ["\n".join(f"- {line}" for line in lines)]


def _section(title: str, note: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    return [f"## {title}", *([note] if note else []), "\n".join(lines)]


def _skipped(records: Sequence[Record]) -> list[str]:
    return [f"- {record['engine']}: {record['reason']}" for record in of_kind(records, "skipped")]
