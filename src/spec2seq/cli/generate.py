"""`spec2seq generate`: run any encoder-decoder model over lines of text."""

from __future__ import annotations

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
    ModelOption,
    OutputOption,
    SourceLangOption,
    SourcePrefixOption,
    StatsOption,
    TargetLangOption,
    ThreadsOption,
    chosen_drafter,
    with_generation_options,
)
from spec2seq.pipelines.arguments import DEFAULT_BATCH_TOKENS

if TYPE_CHECKING:
    from spec2seq.pipelines.arguments import GenerationArguments


@with_generation_options
def generate(
    model: ModelOption,
    generation: dict[str, Any],
    drafter: DrafterOption = "auto",
    input_path: InputOption = None,
    output_path: OutputOption = None,
    source_lang: SourceLangOption = None,
    target_lang: TargetLangOption = None,
    source_prefix: SourcePrefixOption = "",
    long_input: LongInputOption = None,
    jsonl: JsonlOption = False,
    stats: StatsOption = False,
    print_options: Annotated[
        bool, typer.Option("--print-options", help="Print the generation options that would apply, and stop.")
    ] = False,
    batch_tokens: BatchTokensOption = DEFAULT_BATCH_TOKENS,
    threads: ThreadsOption = None,
    backend: BackendOption = "auto",
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Run a model folder of yours over lines of text.

    Line i of the output belongs to line i of the input; blank lines stay blank. The output is what the model's own
    search gives, unless --top-beta relaxes it.
    """
    if print_options:
        from spec2seq.cli.info import print_generation_options

        print_generation_options(model, generation)
        return
    from spec2seq.cli.run import EngineFlags, Run, TextFlags

    text = TextFlags(source_lang, target_lang, source_prefix, long_input, jsonl)
    engine = EngineFlags(threads, backend, dtype, device, batch_tokens)
    said = cast("GenerationArguments", generation)
    Run(model, chosen_drafter(drafter, model), text, engine, said, stats).over_file(input_path, output_path)
