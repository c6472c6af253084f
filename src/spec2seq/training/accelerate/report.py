"""What an acceleration came to, for people: a table, a sentence, a section of the model card, two pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spec2seq.evaluation.benchmark.plots import save_plot
from spec2seq.evaluation.benchmark.tables import table
from spec2seq.training.accelerate.stages import write_whole
from spec2seq.training.accelerate.systems import EXACT, GREEDY, RELAXED
from spec2seq.weights.drafter_folder import CARD

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ROUNDS_PLOT, SPLIT_PLOT = "tokens_per_round.png", "time_split.png"
_HEADING = "## Measured"


def write_report(output: Path, choice: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Draw the pictures, and put the figures into the card; those of an earlier attempt are replaced.

    Args:
        output: the drafter's folder.
        choice: what the stage "choice" came to.
        measured: what the stage "measure" came to.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    save_plot(output / ROUNDS_PLOT, lambda axes: _draw_rounds(axes, choice))
    save_plot(output / SPLIT_PLOT, lambda axes: _draw_split(axes, measured["split"]))
    card = (output / CARD).read_text(encoding="utf-8").split(f"\n{_HEADING}")[0].rstrip("\n")
    write_whole(output / CARD, f"{card}\n\n{_section(measured)}")


def gain_sentence(measured: Mapping[str, Any], system: str = EXACT) -> str:
    """Whether, and by how much, it is faster than greedy search."""
    ratio = measured["speedups"][system]
    interval = f"{ratio['low']:.2f} to {ratio['high']:.2f} with 95 % confidence"
    told = f"{ratio['value']:.2f} times as fast as greedy search ({interval}, {measured['num_lines']} held-out lines)"
    if ratio["low"] > 1:
        return f"{system} search is {told}"
    if ratio["high"] < 1:
        return f"no gain: {system} search is only {told}; use plain search, or accelerate with more lines and time"
    return f"no certain gain: {system} search is {told}"


def figures_table(measured: Mapping[str, Any]) -> list[str]:
    """The lines of a table with every system."""
    header = ["system", "draft tokens", "tokens per round", "acceptance", "ms per line", "times greedy", "other"]
    systems = measured["systems"]
    return table(header, [_cells(one, measured["speedups"], measured["settings"]) for one in systems])


def _cells(one: Mapping[str, Any], speedups: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    name = one["system"]
    is_drafting = name in (EXACT, RELAXED)
    ratio = 1.0 if name == GREEDY else speedups[name]["value"]
    return [
        name,
        str(settings["num_draft_tokens"]) if is_drafting else "",
        "" if one["tokens_per_round"] is None else f"{one['tokens_per_round']:.2f}",
        "" if one["acceptance_rate"] is None else f"{one['acceptance_rate']:.2f}",
        f"{1000 * one['seconds_per_line']:.1f}",
        f"{ratio:.2f}",
        str(one["num_different"]),
    ]


def _section(measured: Mapping[str, Any]) -> str:
    machine, settings = measured["machine"], measured["settings"]
    rows = "\n".join(figures_table(measured))
    sentence = gain_sentence(measured)
    sentence, relaxed = sentence[0].upper() + sentence[1:], ""
    if settings["top_beta"] > 1:
        relaxed = (
            f"Relaxed search: `--top-beta {settings['top_beta']} --tau {settings['tau']}`. Its outputs are not those "
            "of greedy search.\n\n"
        )
    return f"""\
{_HEADING}

{measured["num_lines"]} held-out lines, one at a time, the systems by turns; lines on which an output runs in circles
left out: {measured["num_loops"]}. {machine["cpu"]}, {measured["threads"]} of {machine["cores"]} cores,
torch {machine["torch"]}, {measured["date"]}. `other`: outputs that are not those of greedy search.

{rows}

{sentence}.

{relaxed}Tokens drafted per round, at most, unless `--num-draft-tokens` says otherwise: {settings["num_draft_tokens"]}.

![Tokens per round and time by the number of draft tokens]({ROUNDS_PLOT})

![Milliseconds per line by part of the work]({SPLIT_PLOT})
"""


def _draw_rounds(axes: Any, choice: Mapping[str, Any]) -> bool:
    sizes = [one["num_draft_tokens"] for one in choice["tried"]]
    axes.plot(sizes, [one["tokens_per_round"] for one in choice["tried"]], marker="o", label="tokens per round")
    speeds = [choice["greedy_seconds"] / one["seconds"] for one in choice["tried"]]
    axes.plot(sizes, speeds, marker="s", label="speed, times greedy search")
    axes.axhline(1.0, color="gray", linewidth=0.8)
    axes.axvline(choice["num_draft_tokens"], color="gray", linestyle=":", label="chosen")
    axes.set_xlabel("draft tokens")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return bool(sizes)


def _draw_split(axes: Any, split: Mapping[str, Mapping[str, float]]) -> bool:
    lefts = dict.fromkeys(split, 0.0)
    for part in next(iter(split.values())):
        widths = {name: parts[part] for name, parts in split.items()}
        axes.barh(list(widths), list(widths.values()), left=[lefts[name] for name in widths], label=part)
        lefts = {name: lefts[name] + width for name, width in widths.items()}
    axes.invert_yaxis()
    axes.set_xlabel("ms per line")
    axes.legend()
    return bool(split)
