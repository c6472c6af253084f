"""Results as pictures."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from spec2seq.errors import MissingExtraError
from spec2seq.evaluation.benchmark.records import of_kind, system_from_dict
from spec2seq.evaluation.benchmark.summary import speed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from spec2seq.evaluation.benchmark.records import Record
    from spec2seq.evaluation.benchmark.summary import SpeedRow

_SIZE = (9.5, 4.5)  # inches
_DPI = 110
_MARKERS = {"spec2seq": "o", "transformers": "s", "ctranslate2": "^"}


def write_plots(records: Sequence[Record], folder: Path) -> list[Path]:
    """Write a PNG of everything that the records are enough for.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    rows = speed_rows(records)
    drawings: dict[str, Callable[[Any], bool]] = {
        "speed_and_quality": lambda axes: draw_speed_and_quality(axes, rows),
        "speed_by_batch": lambda axes: draw_speed_by_batch(axes, rows),
        "time_split": lambda axes: draw_time_split(axes, rows),
        "tokens_per_round": lambda axes: draw_tokens_per_round(axes, records),
    }
    written = []
    for name, draw in drawings.items():
        path = folder / f"{name}.png"
        if save_plot(path, draw):
            written.append(path)
    return written


def save_plot(path: Path, draw: Callable[[Any], bool]) -> bool:
    """Let `draw` fill a pair of axes, and write it unless it says that there is nothing to show."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(f"plots need matplotlib ({error}): pip install 'spec2seq[bench]'") from error
    figure = Figure(figsize=_SIZE, layout="constrained")
    if not draw(figure.add_subplot()):
        return False
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
    return True


def draw_speed_and_quality(axes: Any, rows: Sequence[SpeedRow]) -> bool:
    """Tokens per second over the first score, at the first batch size."""
    shown = [row for row in rows if row.scores and row.batch_size == rows[0].batch_size]
    for row in shown:
        name, score = next(iter(row.scores.items()))
        axes.plot(score.value, row.tokens_per_second.middle, _MARKERS[row.system.engine.maker], label=row.system.label)
        axes.set_xlabel(name)
    axes.set_ylabel("tokens per second")
    axes.set_ylim(bottom=0)
    _legend(axes, shown)
    return bool(shown)


def draw_speed_by_batch(axes: Any, rows: Sequence[SpeedRow]) -> bool:
    """Tokens per second over the batch size, the best engine of each method."""
    best: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        speeds = best[row.system.contest]
        speeds[row.batch_size] = max(speeds.get(row.batch_size, 0.0), row.tokens_per_second.middle)
    sizes = sorted({row.batch_size for row in rows})
    for contest, speeds in best.items():
        marker = _MARKERS[contest.split("-")[0]]
        axes.plot(sorted(speeds), [speeds[size] for size in sorted(speeds)], marker=marker, label=contest)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("texts per call")
    axes.set_ylabel("tokens per second")
    axes.set_ylim(bottom=0)
    _legend(axes, sizes)
    return len(sizes) > 1


def draw_time_split(axes: Any, rows: Sequence[SpeedRow]) -> bool:
    """Milliseconds per text by part, of the systems that tell."""
    shown = [row for row in rows if row.seconds_by_part and row.batch_size == rows[0].batch_size]
    labels = [row.system.label.removeprefix("spec2seq ") for row in shown]
    lefts = [0.0] * len(shown)
    for part in shown[0].seconds_by_part if shown else ():
        widths = [1000 * row.seconds_by_part[part] for row in shown]
        axes.barh(labels, widths, left=lefts, label=part)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("ms per text")
    _legend(axes, shown)
    return bool(shown)


def draw_tokens_per_round(axes: Any, records: Sequence[Record]) -> bool:
    """Tokens per round and speed over plain greedy search, by the number of draft tokens."""
    shown = list(of_kind(records, "cost_model"))
    sizes = [record["num_draft_tokens"] for record in shown]
    for key, label in (
        ("tokens_per_round", "tokens per round"),
        ("measured_speedup", "speed, times plain greedy search"),
        ("predicted_speedup", "the same by the cost model"),
    ):
        axes.plot(sizes, [record[key] for record in shown], marker="o", label=label)
    axes.set_xlabel("draft tokens")
    axes.set_ylim(bottom=0)
    if shown:
        axes.set_title(system_from_dict(shown[0]["system"]).label)
    _legend(axes, shown)
    return bool(shown)


def _legend(axes: Any, shown: Sequence[object]) -> None:
    axes.grid(alpha=0.3)
    if shown:
        axes.figure.legend(loc="outside right upper", fontsize="small")
