"""Results as tables in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec2seq.evaluation.benchmark.records import of_kind, system_from_dict
from spec2seq.evaluation.benchmark.summary import PEER_GREEDY, PLAIN, speed_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spec2seq.evaluation.benchmark.records import Record
    from spec2seq.evaluation.benchmark.summary import SpeedRow, Spread
    from spec2seq.evaluation.quality import Score

SPEED_NOTE = (
    "Ids in, ids out, the same texts for all, by turns in one process after a pass that warms up; tokenisation is not "
    "timed. Medians and quartiles over the rounds. A ratio above 1 is faster, on the same texts in the same round. "
    "Agreement: of the places of fp32 greedy outputs, the share at which the engine chooses the same token. Memory: "
    "the peak of a process that does nothing else."
)
SPLIT_NOTE = (
    "Milliseconds per text. Outside: what a call takes beside decoding. Acceptance: of the draft tokens that were "
    "judged."
)
QUALITY_NOTE = (
    "With 95 % intervals over resampled texts, and p-values of the paired bootstrap test against plain greedy search. "
    "Identical: outputs that are those of greedy search in fp32."
)


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
    return [
        *([str(row.batch_size)] if has_batches else []),
        *_names(row),
        f"{row.tokens_per_second.middle:.0f}",
        f"{row.tokens_per_second.low:.0f} to {row.tokens_per_second.high:.0f}",
        f"{1000 * row.text_seconds.middle:.1f}",
        _ratio(row.ratios.get(PLAIN)),
        _ratio(row.ratios.get(PEER_GREEDY)),
        "" if row.tokens_per_round is None else f"{row.tokens_per_round:.2f}",
        *(f"{row.scores[name].value:.1f}" if name in row.scores else "" for name in names),
        "" if row.agreement is None else f"{row.agreement:.2%}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}",
    ]


def _ratio(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.middle:.2f}"


def split_table(records: Sequence[Record]) -> list[str]:
    """Time by part and acceptance, of the systems that tell."""
    rows = [row for row in speed_rows(records) if row.seconds_by_part]
    parts = list(rows[0].seconds_by_part) if rows else []
    return table(
        ["batch", "system", "engine", "threads", *parts, "tokens per round", "acceptance"],
        [
            [
                str(row.batch_size),
                *_names(row),
                *(f"{1000 * row.seconds_by_part[part]:.1f}" for part in parts),
                "" if row.tokens_per_round is None else f"{row.tokens_per_round:.2f}",
                "" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}",
            ]
            for row in rows
        ],
    )


def quality_table(records: Sequence[Record]) -> list[str]:
    """Every score with its interval, of the systems whose outputs were looked at."""
    rows = [row for row in speed_rows(records) if row.num_identical is not None]
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    return table(
        ["batch", "system", "engine", "threads", *names, "identical", "in circles"],
        [
            [
                str(row.batch_size),
                *_names(row),
                *(_interval(row.scores.get(name)) for name in names),
                f"{row.num_identical} of {row.num_texts}",
                str(row.num_in_circles),
            ]
            for row in rows
        ],
    )


def _names(row: SpeedRow) -> list[str]:
    engine = row.system.engine
    return [f"{engine.maker} {row.system.method}", engine.precision, str(engine.threads)]


def _interval(score: Score | None) -> str:
    if score is None:
        return ""
    interval = "" if score.low is None else f" ({score.low:.1f} to {score.high:.1f})"
    return f"{score.value:.1f}{interval}" + ("" if score.p_value is None else f", p = {score.p_value:.2f}")


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
            str(record["texts"]),
            str(record["positions"]),
            f"{record['share']:.2%}",
            "yes" if record["competes"] else "no",
        ]
        for record in of_kind(records, "agreement")
    ]
    return table(["engine", "texts", "places", "same choice", "competes"], rows)
