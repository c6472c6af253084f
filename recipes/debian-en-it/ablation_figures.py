"""What ablate.py measured, as Markdown and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from figures import Record, read_records, where_run, write_lines

from spec2seq.evaluation.benchmark.plots import save_plot
from spec2seq.evaluation.benchmark.tables import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

FIGURES_FILE, TABLE_FILE, PLOT_FILE = "ablations.jsonl", "ablations.md", "survival.png"

NOTE = (
    "One line at a time, the runs by turns on every line. Left out of all rows are the lines on which an output runs "
    "in circles to the limit. Drafting: all that the drafter does in a round, in plain steps of the verifier; "
    "verifying: a call of it for a whole block, in the same unit. Greedy: how many times as fast as greedy search. "
    "Other: lines whose tokens are not those of greedy search."
)
SURVIVAL_NOTE = "Of all rounds of exact search, the share that keeps draft token i, and with it all before it:"


def write_records(folder: Path, records: Iterable[Record]) -> None:
    """Write the figures down, and the tables and the plot made from them."""
    write_lines(folder / FIGURES_FILE, records)
    written = read_records(folder / FIGURES_FILE)
    (folder / TABLE_FILE).write_text(f"{report(written)}\n", encoding="utf-8")
    save_plot(folder / PLOT_FILE, lambda axes: draw_survival(axes, written))


def report(records: Sequence[Record]) -> str:
    """All the figures in Markdown."""
    run, greedy = (next(one for one in records if one["record"] == kind) for kind in ("run", "greedy"))
    runs = [one for one in records if one["record"] == "variant"]
    tables = ["\n".join(run_table(greedy, runs)), SURVIVAL_NOTE, "\n".join(survival_table(runs))]
    count = f"{runs[0]['num_draft_tokens']} draft tokens in every round; {greedy_text(greedy)}"
    return "\n\n".join([NOTE, count, *tables, where_run(run)])


def greedy_text(greedy: Record) -> str:
    """What the runs are compared with."""
    lines = f"{greedy['num_lines']} lines count; greedy search takes {1000 * greedy['seconds_per_line']:.1f} ms a line"
    quality = "".join(f", {score['name']} {score['value']:.1f} (`{score['signature']}`)" for score in greedy["scores"])
    return f"{lines}{quality}."


def run_table(greedy: Record, runs: Sequence[Record]) -> list[str]:
    """One line per run."""
    top_beta, tau = runs[0]["tolerance"]
    relaxed = f"relaxed ({top_beta}, {tau})"
    header = [
        "run",
        "updates",
        "minutes",
        "tokens per round",
        "drafting",
        "verifying",
        "ms per line",
        "greedy",
        "other",
    ]
    header += [f"{relaxed}: tokens per round", "ms per line", *(score["name"] for score in greedy["scores"])]
    return table(header, [_cells(one, greedy["seconds_per_line"]) for one in runs])


def _cells(run: Record, greedy_seconds: float) -> list[str]:
    exact, relaxed = run["exact"], run["relaxed"]
    return [
        run["label"],
        str(run["steps"]),
        f"{run['minutes']:.1f}",
        f"{exact['tokens_per_round']:.2f}",
        f"{run['draft_cost']:.2f}",
        f"{run['verify_cost']:.2f}",
        f"{1000 * exact['seconds_per_line']:.1f}",
        f"{greedy_seconds / exact['seconds_per_line']:.2f}",
        str(exact["num_different"]),
        f"{relaxed['tokens_per_round']:.2f}",
        f"{1000 * relaxed['seconds_per_line']:.1f}",
        *(f"{score['value']:.1f}" for score in relaxed["scores"]),
    ]


def survival_table(runs: Sequence[Record]) -> list[str]:
    """One line per run, a column for every draft token."""
    count = max(run["num_draft_tokens"] for run in runs)
    rows = [[run["label"], *(f"{chance:.3f}" for chance in survival(run))] for run in runs]
    return table(["run", *map(str, range(1, count + 1))], rows)


def survival(run: Record) -> list[float]:
    """The chances of all the tokens of a block, those that none survived included."""
    found: list[float] = run["exact"]["survival"]
    return found + [0.0] * (run["num_draft_tokens"] - len(found))


def draw_survival(axes: Any, records: Sequence[Record]) -> bool:
    """The chances over the number of the token, a line per run."""
    for run in records:
        if run["record"] == "variant":
            chances = survival(run)
            axes.plot(range(1, len(chances) + 1), chances, marker="o", markersize=3, label=run["label"])
    axes.set_xlabel("draft token of a block")
    axes.set_ylabel("share of the rounds that keep it")
    axes.set_ylim(0.0, 1.0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return True
