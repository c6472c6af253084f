"""`spec2seq reproduce`: a converted pair run by the rules of the paper's released script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# typer evaluates the annotations
from spec2seq.cli.options import DeviceOption, DtypeOption, ModelOption, RequiredInputOption  # noqa: TC001
from spec2seq.evaluation.release_rules import ReleaseRules, accepted_counts, decode_as_released


def reproduce(
    model: ModelOption,
    input_path: RequiredInputOption,
    drafter: Annotated[
        Path | None, typer.Option("--drafter", metavar="DIR", help="Drafter folder. Default: drafter in the model's.")
    ] = None,
    output_path: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where the outputs go. Default: stdout.")
    ] = None,
    num_draft_tokens: Annotated[
        int | None,
        typer.Option("--num-draft-tokens", metavar="N", min=0, help="Slots per round; 0 is greedy. Default: its own."),
    ] = None,
    top_beta: Annotated[
        int, typer.Option("--top-beta", metavar="N", min=1, help="1 is exact.")
    ] = ReleaseRules.top_beta,
    tau: Annotated[float, typer.Option("--tau", metavar="X", min=0.0, help="Tolerance in nats.")] = ReleaseRules.tau,
    max_length: Annotated[
        int, typer.Option("--max-length", metavar="N", min=1, help="Most tokens of an output.")
    ] = ReleaseRules.max_length,
    num_rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=1, help="Lines per batch; the released script has one.")
    ] = 1,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Decode a file as the paper's released script does, and print its mean accepted tokens.

    Differs from `generate` in small rules only: see the page on the SpecDec release.
    """
    from spec2seq.cli.lines import open_lines
    from spec2seq.pipelines import Pipeline
    from spec2seq.weights.fairseq import DRAFTER_FOLDER

    drafter = Path(model) / DRAFTER_FOLDER if drafter is None else drafter
    lines = [line.text for line in open_lines(input_path, is_resumable=True).lines()]
    chosen = None if num_draft_tokens == 0 else drafter
    pipeline = Pipeline.from_pretrained(model, chosen, backend="torch", device=device, dtype=dtype)
    if num_draft_tokens is None and pipeline.make_drafter is not None:
        num_draft_tokens = pipeline.make_drafter().default_num_draft_tokens
    rules = ReleaseRules(num_draft_tokens or 0, top_beta, tau, max_length)
    outputs = decode_as_released(pipeline, pipeline.tokenizer.encode(lines), rules, num_rows)
    text = "".join(f"{pipeline.tokenizer.decode(output.token_ids)}\n" for output in outputs)
    if output_path is None:
        typer.echo(text, nl=False)
    else:
        output_path.write_text(text, encoding="utf-8")
    num_tokens, num_rounds = accepted_counts(outputs)
    mean = num_tokens / num_rounds if num_rounds else 0.0
    typer.echo(f"mean accepted tokens: {mean:.3f} ({num_tokens} tokens in {num_rounds} rounds)", err=True)
