"""`spec2seq bench`: this package beside its peers, on the same lines."""

from __future__ import annotations

import datetime
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spec2seq.cli.options import DeviceOption, SourceLangOption, SourcePrefixOption, TargetLangOption, chosen_drafter
from spec2seq.cli.translate import BUNDLED_MODEL, bundled_model, from_here
from spec2seq.errors import OptionError
from spec2seq.evaluation.benchmark.settings import BenchmarkSettings
from spec2seq.evaluation.benchmark.sizes import SOURCE_LENGTH, TARGET_LENGTH, SyntheticName
from spec2seq.evaluation.benchmark.systems import CONTESTS, ENGINE_NAMES

if TYPE_CHECKING:
    from spec2seq.evaluation.benchmark.run import BenchmarkOrder

DEFAULT_LINES, DEFAULT_SYNTHETIC_LINES = 200, 16
ALL_BATCH_SIZES = (1, 4, 8, 16, 32, 64)
_SETTINGS = BenchmarkSettings()


def _listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def bench(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Model folder or Hub id. Default: the bundled model.")
    ] = None,
    drafter: Annotated[
        str,
        typer.Option(
            "--drafter",
            metavar="NAME|DIR",
            help='"prompt_lookup", the folder of a trained drafter or of a smaller model, or "none"; "auto" is the '
            "folder MODEL-drafter if there is one, else prompt_lookup.",
        ),
    ] = "auto",
    input_path: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Texts, one per line; .tsv: text and reference; either may be .gz. Default: the recipe's test set.",
        ),
    ] = None,
    references: Annotated[
        Path | None, typer.Option("--references", metavar="FILE", help="One reference per line of the input.")
    ] = None,
    num_lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            metavar="N",
            min=1,
            help=f"Only the first N lines. Default: {DEFAULT_LINES}; with --synthetic {DEFAULT_SYNTHETIC_LINES}.",
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            "--batch-sizes",
            "--batch-size",
            metavar="N[,N]",
            help=f"Texts per call. Default: {_listed(_SETTINGS.batch_sizes)}; with --full {_listed(ALL_BATCH_SIZES)}.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, help="Timed passes of every system, by turns.")
    ] = _SETTINGS.num_rounds,
    systems: Annotated[
        str, typer.Option("--systems", metavar="NAME[,NAME]", help=f"Default: all of {', '.join(CONTESTS)}.")
    ] = "",
    engines: Annotated[
        str, typer.Option("--engines", metavar="NAME[,NAME]", help=f"Default: all of {', '.join(ENGINE_NAMES)}.")
    ] = "",
    threads: Annotated[
        str, typer.Option("--threads", metavar="N[,N]", help="Numbers of CPU threads that compete.")
    ] = _listed(_SETTINGS.threads),
    full: Annotated[
        bool, typer.Option("--full", help="Every system with every engine, not only the fastest engine of each.")
    ] = False,
    block_sizes: Annotated[
        str, typer.Option("--block-sizes", metavar="N[,N]", help="Numbers of draft tokens to look at; empty: none.")
    ] = _listed(_SETTINGS.block_sizes),
    num_draft_tokens: Annotated[
        int | None,
        typer.Option("--num-draft-tokens", metavar="N", min=1, help="Of spec2seq-exact. Default: the drafter's own."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            metavar="N",
            min=1,
            help="Most tokens per output, for all systems. Default: 256, cut to the model's positions.",
        ),
    ] = None,
    task: Annotated[
        Literal["translation", "summarization"],
        typer.Option("--task", help="Scores: BLEU and chrF, or ROUGE; where there are references."),
    ] = _SETTINGS.task,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure memory: every system once more in its own process.")
    ] = _SETTINGS.measures_memory,
    synthetic: Annotated[
        SyntheticName | None,
        typer.Option(
            "--synthetic",
            help="Random weights of this size instead of a model: costs of single calls, the peers' speed, and what "
            f"speculation would give with --profile. Texts of {SOURCE_LENGTH} tokens, outputs of {TARGET_LENGTH}.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE|DIR",
            help="With --synthetic: the profile.json of an earlier run, or a trained drafter's folder. Default: "
            "--drafter, where that is a folder.",
        ),
    ] = None,
    source_lang: SourceLangOption = None,
    target_lang: TargetLangOption = None,
    source_prefix: SourcePrefixOption = "",
    device: DeviceOption = "cpu",
    output: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the results go. Default: bench-results/ and the time."),
    ] = None,
) -> None:
    """Compare speed and quality with transformers and CTranslate2 on the same lines.

    A few lines find the fastest engine (precision and threads) of each system; then all systems take turns on the same
    ids. Writes results.jsonl line by line, and at the end, or when it is interrupted, report.md and plots. Peers that
    are not installed are left out: pip install 'spec2seq[bench]'.
    """
    settings = BenchmarkSettings(
        batch_sizes=_numbers("--batch-sizes", batch_sizes) or (ALL_BATCH_SIZES if full else _SETTINGS.batch_sizes),
        num_rounds=rounds,
        contests=_names(systems),
        engines=_names(engines),
        threads=_numbers("--threads", threads) or _SETTINGS.threads,
        is_full=full,
        block_sizes=_numbers("--block-sizes", block_sizes),
        measures_memory=memory,
        task=task,
    )
    if profile is not None and synthetic is None:
        raise OptionError(
            f"--profile {profile} says nothing without --synthetic: a real model's acceptance is measured"
        )
    if synthetic is not None and (model or input_path or references):
        raise OptionError("--synthetic makes its own model and texts: leave out MODEL, --input and --references")

    from spec2seq.evaluation.benchmark.run import BenchmarkOrder

    order = BenchmarkOrder(
        str(model or (f"synthetic-{synthetic}" if synthetic else bundled_model())),
        chosen_drafter(drafter, model or bundled_model()),
        settings,
        source_lang=source_lang,
        target_lang=target_lang,
        source_prefix=source_prefix,
        max_new_tokens=max_new_tokens,
        num_draft_tokens=num_draft_tokens,
        device=device,
        command=_command(context),
    )
    folder = output or Path("bench-results", datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # processes are started later on
    if synthetic is None:
        _run_real(order, input_path, references, num_lines or DEFAULT_LINES, folder)
    else:
        _run_synthetic(order, synthetic, profile, num_lines or DEFAULT_SYNTHETIC_LINES, folder)
    typer.echo(f"results: {folder}", err=True)


def _run_real(
    order: BenchmarkOrder, input_path: Path | None, references: Path | None, limit: int, folder: Path
) -> None:
    from time import perf_counter

    from spec2seq.evaluation.benchmark.lines import read_lines
    from spec2seq.evaluation.benchmark.run import run_benchmark
    from spec2seq.evaluation.benchmark.tables import speed_table

    lines = read_lines(input_path or _default_input(order.model), references, limit)
    records = run_benchmark(order, lines, folder, _tell, perf_counter)
    typer.echo("\n".join(speed_table(records)))


def _run_synthetic(
    order: BenchmarkOrder, size: SyntheticName, profile: Path | None, num_texts: int, folder: Path
) -> None:
    from time import perf_counter

    from spec2seq.evaluation.benchmark.profiles import profile_of
    from spec2seq.evaluation.benchmark.speculation_tables import costs_table, projection_table
    from spec2seq.evaluation.benchmark.synthetic import run_synthetic
    from spec2seq.evaluation.benchmark.tables import speed_table

    if profile is None and order.drafter is not None and Path(order.drafter).is_dir():
        profile = Path(order.drafter)
    acceptance = profile_of(profile) if profile else None
    records = run_synthetic(size, order, acceptance, num_texts, folder, _tell, perf_counter)
    tables = (speed_table(records), costs_table(records), projection_table(records))
    typer.echo("\n\n".join("\n".join(lines) for lines in tables if lines))


def _default_input(model: str) -> Path:
    """The test set of the bundled model's recipe, which no other model was made for."""
    file = from_here(Path(__file__).resolve().parents[3] / "recipes" / BUNDLED_MODEL / "test.tsv.gz")
    if Path(model).name != BUNDLED_MODEL or not file.is_file():
        raise OptionError(f"there are no lines for model {model}; name a file with --input")
    return file


def _tell(message: str) -> None:
    typer.echo(message, err=True)


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def _numbers(flag: str, listed: str | None) -> tuple[int, ...]:
    """Numbers above 0, each once."""
    names = _names(listed or "")
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise OptionError(f"{flag} {listed!r} is not allowed: it must be numbers above 0, such as 1,2")
    return tuple(dict.fromkeys(int(name) for name in names))


def _command(context: typer.Context) -> str:
    """The command as it could be typed again."""
    words = ["spec2seq", "bench"]
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        value = context.params.get(str(parameter.name))
        if source is None or source.name != "COMMANDLINE":
            continue
        if parameter.param_type_name == "argument":
            words.append(str(value))
        elif isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            words += [parameter.opts[0], str(value)]
    return shlex.join(words)
