"""The recipe's figures as Markdown and as a picture. What goes in is what evaluate.py wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from compared_systems import BEAMS, GREEDY

from spec2seq.evaluation.benchmark.plots import save_plot
from spec2seq.evaluation.benchmark.tables import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FIGURES_FILE, TABLE_FILE, PLOT_FILE = "figures.jsonl", "figures.md", "tokens_per_round.png"
Record = dict[str, Any]

NOTE = (
    "One line at a time, the systems by turns on every line. Left out of all rows are the lines on which a greedy, "
    "beam or speculative output runs in circles to the limit; `loops` counts each row's own, and the drafter alone "
    "leaves out its own too. k: draft tokens per round. Acceptance: accepted per judged draft token. In brackets the "
    f"95 % interval of the difference to {BEAMS}, by paired bootstrap over lines. `other`: lines whose tokens are not "
    f"those of {GREEDY} search."
)
SLOTS_NOTE = "Tokens per round of exact search, by the number of slots that are laid per round."


def read_records(file: Path) -> list[Record]:
    """What `write_lines` wrote."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_lines(file: Path, records: Iterable[Record]) -> None:
    """Write records as JSON lines."""
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    file.write_text("".join(lines), encoding="utf-8")


def write_records(folder: Path, records: Iterable[Record]) -> None:
    """Write the figures down, and the tables and the plot made from them."""
    write_lines(folder / FIGURES_FILE, records)
    written = read_records(folder / FIGURES_FILE)
    (folder / TABLE_FILE).write_text(f"{report(written)}\n", encoding="utf-8")
    save_plot(folder / PLOT_FILE, lambda axes: draw_slots(axes, written))


def report(records: Sequence[Record]) -> str:
    """All the figures in Markdown."""
    run = next(record for record in records if record["record"] == "run")
    parts = [NOTE, "\n".join(system_table(records)), *_signatures(records), where_run(run)]
    slots = slots_table(records)
    if slots:
        parts += [SLOTS_NOTE, "\n".join(slots)]
    return "\n\n".join(parts)


def where_run(run: Record) -> str:
    """What was decoded, by what and where."""
    machine = run["machine"]
    return (
        f"{run['lines']} lines of `{run['input']}`; model weights {run['weights']}, {run['backend']}, "
        f"{run['threads']} of {machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}; {run['date']}, "
        f"commit {run['commit']}."
    )


def system_table(records: Sequence[Record]) -> list[str]:
    """One line per system."""
    rows = [record for record in records if record["record"] == "system"]
    greedy = next(row["seconds_per_line"] for row in rows if row["system"] == GREEDY)
    names = [score["name"] for score in rows[0]["scores"]]
    header = ["system", "k", "tokens per round", "acceptance", "ms per line", "times greedy"]
    header += [title for name in names for title in (name, f"to {BEAMS}")]
    cells = [
        [
            row["system"],
            str(row["num_draft_tokens"] or ""),
            *_rate_cells(row, greedy),
            *(cell for i in range(len(names)) for cell in _score_cells(row, i)),
            str(row["num_different"]),
            str(row["num_loops"]),
        ]
        for row in rows
    ]
    num_lines = max(row["num_lines"] for row in rows)
    return [f"{num_lines} lines count.", "", *table([*header, "other", "loops"], cells)]


def _rate_cells(row: Record, greedy_seconds: float) -> list[str]:
    """Tokens per round, acceptance, ms per line and times greedy; empty where there is no such thing."""
    seconds = row["seconds_per_line"]
    return [
        "" if row["tokens_per_round"] is None else f"{row['tokens_per_round']:.2f}",
        "" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.3f}",
        *(["", ""] if seconds is None else [f"{1000 * seconds:.1f}", f"{greedy_seconds / seconds:.2f}"]),
    ]


def _score_cells(row: Record, index: int) -> tuple[str, str]:
    """A score, and its difference to the baseline's."""
    value = f"{row['scores'][index]['value']:.1f}"
    if not row["differences"]:
        return value, ""
    difference = row["differences"][index]
    return value, f"{difference['value']:+.1f} [{difference['low']:+.1f}, {difference['high']:+.1f}]"


def _signatures(records: Sequence[Record]) -> list[str]:
    scores = next(record["scores"] for record in records if record["record"] == "system")
    return [", ".join(f"{score['name']}: `{score['signature']}`" for score in scores)] if scores else []


def slots_table(records: Sequence[Record]) -> list[str]:
    """A line per drafter, a column per number of slots."""
    rates = slot_rates(records)
    counts = sorted({count for rate in rates.values() for count in rate})
    rows = [
        [name, *(f"{rate[count]:.2f}" if count in rate else "" for count in counts)] for name, rate in rates.items()
    ]
    return table(["drafter", *(f"{count} slots" for count in counts)], rows)


def slot_rates(records: Sequence[Record]) -> dict[str, dict[int, float]]:
    """Tokens per round by drafter and number of slots."""
    rates: dict[str, dict[int, float]] = {}
    for record in records:
        if record["record"] == "slots":
            rates.setdefault(record["drafter"], {})[record["slots"]] = record["tokens_per_round"]
    return rates


def draw_slots(axes: Any, records: Sequence[Record]) -> bool:
    """Tokens per round over the number of slots, a line per drafter."""
    rates = slot_rates(records)
    for name, rate in rates.items():
        axes.plot(sorted(rate), [rate[count] for count in sorted(rate)], marker="o", label=name)
    axes.set_xlabel("slots laid per round")
    axes.set_ylabel("tokens per round, exact search")
    axes.grid(alpha=0.3)
    if rates:
        axes.set_ylim(0.0, 1.1 * max(max(rate.values()) for rate in rates.values()))
        axes.legend(fontsize="small")
    return bool(rates)
