"""`spec2seq exactness`: does speculative search say what plain search says?"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from spec2seq.cli.options import (
    BackendOption,
    BatchTokensOption,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    LongInputOption,
    ModelOption,
    RequiredInputOption,
    SourceLangOption,
    SourcePrefixOption,
    TargetLangOption,
    ThreadsOption,
    chosen_drafter,
    tell,
    with_generation_options,
)
from spec2seq.errors import InputError
from spec2seq.evaluation.near_ties import FP32_TOLERANCE
from spec2seq.pipelines.arguments import DEFAULT_BATCH_TOKENS

if TYPE_CHECKING:
    from spec2seq.evaluation.exactness import ExactnessReport
    from spec2seq.pipelines.arguments import GenerationArguments


@with_generation_options
def exactness(
    model: ModelOption,
    input_path: RequiredInputOption,
    generation: dict[str, Any],
    drafter: DrafterOption = "auto",
    num_lines: Annotated[
        int | None, typer.Option("--num-lines", metavar="N", min=1, help="Only the first N lines. Default: all.")
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            metavar="X",
            min=0.0,
            help="Differences where the two best scores are no further apart than this are near ties, in nats; the "
            "default is for float32.",
        ),
    ] = FP32_TOLERANCE,
    source_lang: SourceLangOption = None,
    target_lang: TargetLangOption = None,
    source_prefix: SourcePrefixOption = "",
    long_input: LongInputOption = None,
    batch_tokens: BatchTokensOption = DEFAULT_BATCH_TOKENS,
    threads: ThreadsOption = None,
    backend: BackendOption = "auto",
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Compare plain and speculative search on a file.

    Lists every line whose outputs differ, with the first differing position and how far the verifier's two best scores
    are apart there. Exit code 1 when one of them is no near tie. --num-beams is 1 here unless it is given.
    """
    from spec2seq.cli.lines import open_lines
    from spec2seq.evaluation.exactness import compare_with_plain
    from spec2seq.pipelines import Pipeline
    from spec2seq.pipelines.plans import TextOptions

    source = open_lines(input_path, is_resumable=True)
    texts = [line.text for line in islice(source.lines(), num_lines)]
    if not texts:
        raise InputError(f"{input_path} has no line, so there is nothing to compare; name a file with text")
    pipeline = Pipeline.from_pretrained(model, chosen_drafter(drafter, model), backend, device, dtype, threads, tell)
    options = pipeline.options(**cast("GenerationArguments", {"num_beams": 1, **generation}))
    text_options = TextOptions(source_lang, target_lang, source_prefix, long_input, lambda index: f"line {index + 1}")
    report = compare_with_plain(pipeline, texts, options, text_options, tolerance=tolerance, batch_tokens=batch_tokens)
    _print(report)
    if report.mistakes:
        raise typer.Exit(1)


def _print(report: ExactnessReport) -> None:
    typer.echo(
        f"{report.num_lines} lines, {report.num_identical} identical, {len(report.differences)} near ties or mistakes; "
        f"{report.stats.tokens_per_round:.2f} tokens per round"
    )
    for difference in report.differences:
        typer.echo(
            f"line {difference.line + 1}: differs from token {difference.position + 1} on, plain "
            f"{_token(difference.plain)}, speculative {_token(difference.speculative)}, margin {difference.margin:.2e}"
        )
    if report.mistakes:
        typer.echo(f"not exact: {len(report.mistakes)} differences have a margin above {report.tolerance:g}")
    elif report.differences:
        typer.echo(f"exact up to near ties: every margin is at most {report.tolerance:g}")
    else:
        typer.echo("exact: the outputs are identical")


def _token(token_id: int | None) -> str:
    return "(ended)" if token_id is None else str(token_id)
