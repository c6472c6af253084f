"""`spec2seq translate`: the same on the bundled model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from spec2seq.cli.options import (
    BackendOption,
    BatchTokensOption,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    InputOption,
    JsonlOption,
    LongInputOption,
    OutputOption,
    StatsOption,
    ThreadsOption,
    chosen_drafter,
    with_generation_options,
)
from spec2seq.errors import ModelNotFoundError, OptionError
from spec2seq.pipelines.arguments import DEFAULT_BATCH_TOKENS

if TYPE_CHECKING:
    from spec2seq.pipelines.arguments import GenerationArguments

BUNDLED_MODEL = "debian-en-it"
MODELS_VARIABLE = "SPEC2SEQ_MODELS"


@with_generation_options
def translate(
    generation: dict[str, Any],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="English texts. Default: the lines of the input.")
    ] = None,
    drafter: DrafterOption = "auto",
    input_path: InputOption = None,
    output_path: OutputOption = None,
    long_input: LongInputOption = None,
    jsonl: JsonlOption = False,
    stats: StatsOption = False,
    batch_tokens: BatchTokensOption = DEFAULT_BATCH_TOKENS,
    threads: ThreadsOption = None,
    backend: BackendOption = "auto",
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Translate English to Italian with the bundled model.

    It was trained on descriptions of software packages. It is looked for in $SPEC2SEQ_MODELS and in the checkout.
    """
    if texts and (input_path or output_path):
        raise OptionError("texts were given as arguments: --input and --output are for files of lines; use one of both")
    model = str(bundled_model())
    from spec2seq.cli.run import EngineFlags, Run, TextFlags

    text = TextFlags(long_input=long_input, jsonl=jsonl)
    engine = EngineFlags(threads, backend, dtype, device, batch_tokens)
    said = cast("GenerationArguments", generation)
    run = Run(model, chosen_drafter(drafter, model), text, engine, said, stats)
    if texts:
        run.over_texts(texts)
    else:
        run.over_file(input_path, output_path)


def bundled_model() -> Path:
    """The folder of the bundled model, as seen from the working directory where it lies below that.

    Raises:
        ModelNotFoundError: it is in neither place.
    """
    checkout = Path(__file__).resolve().parents[3] / "models"
    variable = os.environ.get(MODELS_VARIABLE)
    places = [*([Path(variable)] if variable else []), checkout]
    for place in places:
        if (place / BUNDLED_MODEL / "config.json").is_file():
            return from_here(place / BUNDLED_MODEL)
    tried = f"${MODELS_VARIABLE} ({variable or 'not set'}) and {checkout}"
    raise ModelNotFoundError(
        f"the bundled model {BUNDLED_MODEL} is neither in {tried}; set {MODELS_VARIABLE} to the models folder of a "
        "source checkout, or run `spec2seq generate --model` with a model of your own"
    )


def from_here(path: Path) -> Path:
    """A path as seen from the working directory where it lies below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
