"""`spec2seq info`: what a model folder holds, without loading it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from spec2seq.cli.model_size import parameters_by_type
from spec2seq.option_resolution import resolve_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec2seq.config import ModelConfig

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def info(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder (Hugging Face layout) or Hub id.")],
) -> None:
    """Show what a model folder holds, without loading it.

    Prints the family, the sizes, the memory that the weights take, and the generation settings that apply when a call
    says nothing else.
    """
    from spec2seq.weights import read_model_config
    from spec2seq.weights.checkpoint import resolve_folder

    folder = resolve_folder(model)
    config, generation = read_model_config(folder)
    typer.echo(f"model: {folder}")
    _print_config(config)
    _print_memory(parameters_by_type(folder))
    typer.echo("generation settings:")
    for name, value in resolve_options(generation, config).as_dict().items():
        typer.echo(f"  {name}: {json.dumps(value)}")


def print_generation_options(model: str, generation: Mapping[str, object]) -> None:
    """Print the options that would apply, as JSON."""
    from spec2seq.weights import read_model_config
    from spec2seq.weights.checkpoint import resolve_folder

    config, checkpoint = read_model_config(resolve_folder(model))
    typer.echo(json.dumps(resolve_options(checkpoint, config, None, generation).as_dict(), indent=2))


def _print_config(config: ModelConfig) -> None:
    fields = asdict(config)
    typer.echo(f"family: {fields.pop('family')}")
    for name, value in fields.items():
        typer.echo(f"{name}: {json.dumps(value)}")


def _print_memory(counts: Mapping[str, int] | None) -> None:
    if counts is None:
        typer.echo("parameters: unknown without reading the weights (no safetensors file)")
        return
    total = sum(counts.values())
    stored = ", ".join(sorted(counts))
    typer.echo(f"parameters: {total:,} (stored as {stored})")
    sizes = ", ".join(f"{dtype} {total * size / 2**20:.1f} MiB" for dtype, size in _DTYPE_BYTES.items())
    typer.echo(f"memory of the weights: {sizes}")
