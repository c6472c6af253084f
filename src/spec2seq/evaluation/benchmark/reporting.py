"""The files that a run leaves: the table, the plots, the acceptance profile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spec2seq.errors import MissingExtraError
from spec2seq.evaluation.benchmark.plots import write_plots
from spec2seq.evaluation.benchmark.records import of_kind
from spec2seq.evaluation.benchmark.tables import report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from spec2seq.evaluation.benchmark.profiles import AcceptanceProfile
    from spec2seq.evaluation.benchmark.records import Record

REPORT = "report.md"
PROFILE = "profile.json"


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
