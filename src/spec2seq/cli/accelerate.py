"""`spec2seq accelerate`: a drafter for a model from a text file, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spec2seq.cli.options import (
    BackendOption,
    SourceLangOption,
    SourcePrefixOption,
    TargetLangOption,
    ThreadsOption,
    tell,
)
from spec2seq.training.accelerate.request import DEFAULT_BUDGET, AccelerationRequest, seconds_of
from spec2seq.training.shapes import Kind  # noqa: TC001  typer reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping


def accelerate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder (Hugging Face layout) or Hub id.")],
    source: Annotated[
        Path, typer.Option("--source", metavar="FILE", help="UTF-8 text like what the model will get, a line each.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The drafter's folder. The same command continues a killed run."
        ),
    ],
    time: Annotated[
        str,
        typer.Option("--budget", metavar="TIME", help="About how long it may take: 2h, 45m, 1h30m. Sets all sizes."),
    ] = DEFAULT_BUDGET,
    kind: Annotated[
        Kind | None,
        typer.Option(
            "--kind", help="Of the drafter. Default: feature; from 1h on, spec is tried too and the faster one kept."
        ),
    ] = None,
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Also choose --top-beta and --tau for search that is not exact.")
    ] = False,
    source_lang: SourceLangOption = None,
    target_lang: TargetLangOption = None,
    source_prefix: SourcePrefixOption = "",
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", metavar="N", help="Limit of every output.")
    ] = None,
    lines: Annotated[
        int | None, typer.Option("--lines", metavar="N", help="Lines to distil, instead of what the budget allows.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", help="Updates, instead of what the budget allows.")
    ] = None,
    num_measured: Annotated[
        int | None,
        typer.Option("--num-measured", metavar="N", help="Lines to measure on, instead of what the budget allows."),
    ] = None,
    threads: ThreadsOption = None,
    backend: BackendOption = "auto",
    device: Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="What to train and measure on.")] = "cpu",
) -> None:
    """Make a drafter for a model and measure what it gains: distil, train, choose, measure, write.

    Nothing is trained on the lines that are measured on. Figures are printed whether there is a gain or not, and are
    in DIR/README.md with two pictures.
    """
    request = AccelerationRequest(
        source,
        output,
        seconds_of(time),
        kind,
        relaxed,
        source_lang,
        target_lang,
        source_prefix,
        max_new_tokens,
        lines,
        steps,
        num_measured,
    )
    import torch

    from spec2seq.training.accelerate.run import Place
    from spec2seq.training.accelerate.run import accelerate as run

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        measured = run(model, request, Place(backend, device, threads), tell)
    except KeyboardInterrupt:
        typer.echo(f"what is done is kept in {output}: the same command continues there", err=True)
        raise
    _print(measured, model, output)


def _print(measured: Mapping[str, Any], model: str, output: Path) -> None:
    from spec2seq.training.accelerate.report import figures_table, gain_sentence
    from spec2seq.training.accelerate.systems import EXACT, RELAXED

    typer.echo("\n".join(figures_table(measured)))
    for system in (EXACT, RELAXED):
        if system in measured["speedups"]:
            typer.echo(gain_sentence(measured, system))
    if measured["speedups"][EXACT]["high"] < 1:
        return
    settings = measured["settings"]
    flags = f" --top-beta {settings['top_beta']} --tau {settings['tau']}" if settings["top_beta"] > 1 else ""
    typer.echo(f"use it: spec2seq generate --model {model} --drafter {output} --num-beams 1{flags} --input FILE")
