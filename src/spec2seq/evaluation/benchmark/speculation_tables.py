"""What speculation costs and gains, as tables in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec2seq.evaluation.benchmark.cost_model import CallCosts
from spec2seq.evaluation.benchmark.records import of_kind, system_from_dict
from spec2seq.evaluation.benchmark.summary import PEER_GREEDY
from spec2seq.evaluation.benchmark.tables import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.evaluation.benchmark.records import Record

PROJECTION_NOTE = (
    "A projection, not a measurement: costs of single calls with random weights of that size, and the acceptance that "
    "was measured elsewhere."
)


def blocks_table(records: Sequence[Record]) -> list[str]:
    """Every block size: acceptance, speed, what the cost model says, what a wish would need."""
    rows = []
    for record in of_kind(records, "cost_model"):
        wishes = record["needed_tokens_per_round"].get(PEER_GREEDY, {})
        rows.append(
            [
                str(record["num_draft_tokens"]),
                f"{record['tokens_per_round']:.2f}",
                f"{record['verify_cost']:.2f}",
                f"{record['draft_cost']:.2f}",
                f"{record['measured_speedup']:.2f}",
                f"{record['predicted_speedup']:.2f}",
                f"{record['share']:.0%}",
                *(_needed(wishes, wish) for wish in ("1.3", "1.5")),
            ]
        )
    header = [
        *("draft tokens", "tokens per round", "verify, steps", "draft, steps", "times plain greedy", "cost model"),
        *("share", "needed for 1.3 x CTranslate2", "needed for 1.5 x CTranslate2"),
    ]
    return table(header, rows)


def _needed(wishes: Record, wish: str) -> str:
    if wish not in wishes:
        return ""
    return "out of reach" if wishes[wish] is None else f"{wishes[wish]:.2f}"


def costs_table(records: Sequence[Record]) -> list[str]:
    """Milliseconds of single calls by the number of draft tokens; 0 is a plain step."""
    rows = [
        [
            system_from_dict(record["system"]).engine.label,
            str(size),
            f"{1000 * costs.verify[size]:.2f}",
            f"{1000 * costs.draft[size]:.2f}" if size in costs.draft else "",
            f"{1000 * costs.host:.2f}",
            f"{1000 * costs.encode:.2f}",
            f"{1000 * costs.start:.2f}",
        ]
        for record in of_kind(records, "costs")
        for costs in [CallCosts.from_dict(record)]
        for size in sorted(costs.verify)
    ]
    header = [
        "engine",
        "draft tokens",
        "verify, ms",
        "draft, ms",
        "rest of a round, ms",
        "encode, ms",
        "drafter start, ms",
    ]
    return table(header, rows)


def projection_table(records: Sequence[Record]) -> list[str]:
    """Every projection."""
    rows = [
        [
            record["size"],
            record["profile"],
            str(record["num_draft_tokens"]),
            f"{record['tokens_per_round']:.2f}",
            f"{1000 * record['text_seconds']:.1f}",
            "; ".join(f"{ratio:.2f} x {contest}" for contest, ratio in record["speedups"].items()),
        ]
        for record in of_kind(records, "projection")
    ]
    return table(["size", "acceptance from", "draft tokens", "tokens per round", "ms per text", "speed"], rows)
