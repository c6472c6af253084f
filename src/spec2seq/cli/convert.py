"""`spec2seq convert`: checkpoints of other programs become folders of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Turn checkpoints of other programs into model folders.", rich_markup_mode=None)


@app.callback()
def _common() -> None:
    pass


@app.command()
def fairseq(
    verifier: Annotated[
        Path, typer.Option("--verifier", metavar="FILE", help="Checkpoint (.pt) of a Transformer or of BART.")
    ],
    dictionaries: Annotated[
        Path, typer.Option("--dict", metavar="DIR", help="Folder with the model's dict.SOURCE.txt and dict.TARGET.txt.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the model goes; the drafter in it.")
    ],
    drafter: Annotated[
        Path | None,
        typer.Option("--drafter", metavar="FILE", help="Checkpoint (.pt) of the paper's drafter (architecture block)."),
    ] = None,
    codes: Annotated[
        Path | None,
        typer.Option(
            "--bpe-codes",
            metavar="FILE",
            help="Codes of subword-nmt, for BART GPT-2's vocab.bpe: the model then takes plain text.",
        ),
    ] = None,
    is_tokenised: Annotated[
        bool,
        typer.Option(
            "--input-is-tokenised",
            help="The model takes dictionary tokens with spaces between them; always so without --bpe-codes.",
        ),
    ] = False,
) -> None:
    """Convert fairseq checkpoints, those of the paper's release among them.

    Reads them without fairseq and without running anything they hold. Writes FOLDER and, with --drafter,
    FOLDER/drafter; use them with --model FOLDER --drafter FOLDER/drafter like any others.
    """
    from spec2seq.weights.fairseq import DRAFTER_FOLDER, FairseqSources, convert_fairseq

    is_tokenised = is_tokenised or codes is None
    convert_fairseq(FairseqSources(verifier, drafter, dictionaries, codes), output, is_tokenised=is_tokenised)
    typer.echo(f"model: {output}")
    if drafter is not None:
        typer.echo(f"drafter: {output / DRAFTER_FOLDER}")
    typer.echo(f"input: {'dictionary tokens with spaces between them' if is_tokenised else 'plain text'}")
