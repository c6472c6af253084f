"""`spec2seq distill`: what a model says to a text file, to train a drafter on."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from spec2seq.cli.options import (
    BackendOption,
    BatchTokensOption,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    SourceLangOption,
    SourcePrefixOption,
    TargetLangOption,
    ThreadsOption,
    chosen_drafter,
    tell,
    with_generation_options,
)
from spec2seq.pipelines.arguments import DEFAULT_BATCH_TOKENS
from spec2seq.training.shards import DEFAULT_SHARD_LINES

if TYPE_CHECKING:
    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.training.distillation import Distillation, DistillationReport


@with_generation_options
def distill(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder (Hugging Face layout) or Hub id.")],
    source_path: Annotated[Path, typer.Option("--source", metavar="FILE", help="UTF-8 text, one input per line.")],
    output_path: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where the pairs go. The same command continues an interrupted run.",
        ),
    ],
    generation: dict[str, Any],
    drafter: DrafterOption = "none",
    source_lang: SourceLangOption = None,
    target_lang: TargetLangOption = None,
    source_prefix: SourcePrefixOption = "",
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate", help="Cut the end off lines longer than the model's positions, or they are skipped."
        ),
    ] = False,
    shard_lines: Annotated[
        int,
        typer.Option("--shard-lines", metavar="N", min=1, help="Lines per file; an interrupted run loses fewer."),
    ] = DEFAULT_SHARD_LINES,
    batch_tokens: BatchTokensOption = DEFAULT_BATCH_TOKENS,
    threads: ThreadsOption = None,
    backend: BackendOption = "auto",
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Write down what a model says to each line of a text: the pairs that a drafter is trained on.

    Greedy search unless --num-beams is given: for exact greedy decoding its outputs hold every prefix that is met
    there. Blank lines, lines that are not UTF-8, too long ones and those that the model fails on are skipped and
    counted. The same command run several times at once shares the work.
    """
    from spec2seq.pipelines import Pipeline
    from spec2seq.training.distillation import Distillation, DistillationSettings
    from spec2seq.training.source_lines import SourceLines

    source = SourceLines.read(source_path)
    pipeline = Pipeline.from_pretrained(model, chosen_drafter(drafter, model), backend, device, dtype, threads, tell)
    pipeline.load_tokenizer()
    options = pipeline.options(**cast("GenerationArguments", {"num_beams": 1, **generation}))
    settings = DistillationSettings(
        options, source_lang, target_lang, source_prefix, truncate, shard_lines, batch_tokens
    )
    report = _run(Distillation(pipeline, source, output_path, settings))
    typer.echo(_summary(report), err=True)


def _run(distillation: Distillation) -> DistillationReport:
    """With a progress bar where somebody watches, and a line per shard where nobody does."""
    from spec2seq.cli.progress import line_progress

    num_before = distillation.num_done
    on_shard = None if sys.stderr.isatty() else partial(_tell_shard, distillation, num_before)
    with line_progress(distillation.num_lines, num_before) as advance:
        return distillation.run(advance, on_shard)


def _tell_shard(distillation: Distillation, num_before: int, report: DistillationReport) -> None:
    """How far all processes at this job are."""
    num_lines, num_done = distillation.num_lines, distillation.num_done
    rate = (num_done - num_before) / report.run_seconds
    minutes_left = (num_lines - num_done) / rate / 60
    typer.echo(f"{num_done} of {num_lines} lines, {rate:.1f} lines/s, {minutes_left:.1f} min left", err=True)


def _summary(report: DistillationReport) -> str:
    lines = [f"{report.num_pairs} pairs with {report.num_target_tokens} target tokens"]
    if report.run_lines:
        rates = report.run_lines / report.run_seconds, report.run_tokens / report.run_seconds
        lines.append(
            f"this run: {report.run_lines} lines in {report.run_seconds:.1f} s, {rates[0]:.1f} lines/s, "
            f"{rates[1]:.0f} tokens/s"
        )
    if report.num_cut:
        lines.append(f"cut at the limit: {report.num_cut} outputs, {report.num_degenerate} of them run in circles")
    for reason, numbers in report.skipped.items():
        lines.append(f"skipped, {reason}: {len(numbers)}, the first is line {numbers[0]}")
    if report.num_elsewhere:
        lines.append(
            f"not complete: {report.num_elsewhere} files are in other processes' hands; where none runs any more, run "
            "the same command again"
        )
    return "\n".join(lines)
