"""Results as tables in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec2seq.evaluation.benchmark.cost_model import CallCosts
from spec2seq.evaluation.benchmark.records import of_kind, system_from_dict
from spec2seq.evaluation.benchmark.summary import PEER_GREEDY, PLAIN, speed_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spec2seq.evaluation.benchmark.records import Record
    from spec2seq.evaluation.benchmark.summary import SpeedRow, Spread

SPEED_NOTE = (
    "Ids in, ids out, the same texts for all, by turns in one process after a pass that warms up; tokenisation is not "
    "timed. Medians and quartiles over the rounds. A ratio above 1 is faster, on the same texts in the same round. "
    "Agreement: of the places of fp32 greedy outputs, the share at which the engine chooses the same token. Memory: "
    "the peak of a process that does nothing else."
)
PROJECTION_NOTE = (
    "A projection, not a measurement: costs of single calls with random weights of that size, and the acceptance that "
    "was measured elsewhere."
)


def report(records: Sequence[Record]) -> str:
    """All there is to tell, as a page."""
    parts = [
        "# Benchmark",
        *_run_lines(records),
        *_section("Speed", SPEED_NOTE, speed_table(records)),
        *_section("Which engine was fastest on a few texts", "", choice_table(records)),
        *_section("Choices along fp32 greedy outputs", "", agreement_table(records)),
        *_section("Speed and tokens per round by block size", "", blocks_table(records)),
        *_section("Costs of single calls, one text at a time", "", costs_table(records)),
        *_section("Projection", PROJECTION_NOTE, projection_table(records)),
        *_section("Left out", "", _skipped(records)),
    ]
    return "\n\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; none where it would have no row."""
    body = ["| " + " | ".join(row) + " |" for row in rows]
    return ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header), *body] if body else []


def speed_table(records: Sequence[Record]) -> list[str]:
    """One line per system and batch size."""
    rows = speed_rows(records)
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    has_batches = len({row.batch_size for row in rows}) > 1
    header = [
        *(["batch"] if has_batches else []),
        *("system", "engine", "threads", "tokens/s", "quartiles", "ms per text"),
        *("times plain greedy", "times CTranslate2 greedy", "tokens per round", *names, "agreement", "memory, MB"),
    ]
    return table(header, [_speed_cells(row, names, has_batches) for row in rows])


def _speed_cells(row: SpeedRow, names: Sequence[str], has_batches: bool) -> list[str]:
    engine = row.system.engine
    return [
        *([str(row.batch_size)] if has_batches else []),
        f"{engine.maker} {row.system.method}",
        engine.precision,
        str(engine.threads),
        f"{row.tokens_per_second.middle:.0f}",
        f"{row.tokens_per_second.low:.0f} to {row.tokens_per_second.high:.0f}",
        f"{1000 * row.text_seconds.middle:.1f}",
        _ratio(row.ratios.get(PLAIN)),
        _ratio(row.ratios.get(PEER_GREEDY)),
        "" if row.tokens_per_round is None else f"{row.tokens_per_round:.2f}",
        *(f"{row.scores[name][0]:.1f}" if name in row.scores else "" for name in names),
        "" if row.agreement is None else f"{row.agreement:.2%}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}",
    ]


def _ratio(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.middle:.2f}"


def choice_table(records: Sequence[Record]) -> list[str]:
    """Every candidate of every contest, in seconds for the same few texts, the chosen one first."""
    rows = []
    for record in of_kind(records, "choice"):
        tried = sorted(record["candidates"], key=lambda candidate: candidate["seconds"])
        told = [f"{system_from_dict(one).engine.label} {one['seconds']:.2f} s" for one in tried]
        rows.append([str(record["batch_size"]), record["contest"], "; ".join(told)])
    return table(["batch", "system", "engines, fastest first"], rows)


def agreement_table(records: Sequence[Record]) -> list[str]:
    """Every engine that was compared with fp32."""
    rows = [
        [
            f"{record['maker']} {record['engine']}",
            str(record["positions"]),
            f"{record['share']:.2%}",
            "yes" if record["competes"] else "no",
        ]
        for record in of_kind(records, "agreement")
    ]
    return table(["engine", "places", "same choice", "competes"], rows)


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
