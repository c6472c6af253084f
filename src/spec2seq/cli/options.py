"""Flags that several verbs share. The flags of generation options come from `config.GenerationOptions`."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spec2seq.errors import OptionError
from spec2seq.generation_options import OPTION_NAMES, option_info
from spec2seq.pipelines.arguments import LongInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.option_values import OptionInfo

ModelOption = Annotated[
    str, typer.Option("--model", metavar="DIR", help="Model folder (Hugging Face layout) or Hub id.")
]
DrafterOption = Annotated[
    str,
    typer.Option(
        "--drafter",
        metavar="NAME|DIR",
        help='"prompt_lookup", the folder of a trained drafter or of a smaller model with the same vocabulary, or '
        '"none" for plain search; "auto" is the folder MODEL-drafter if there is one, else prompt_lookup.',
    ),
]
InputOption = Annotated[
    Path | None, typer.Option("--input", metavar="FILE", help="UTF-8 text, one input per line. Default: stdin.")
]
RequiredInputOption = Annotated[Path, typer.Option("--input", metavar="FILE", help="UTF-8 text, one input per line.")]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the outputs go, line by line. Default: stdout. Until all is done they are in FILE.part: "
        "the same command continues an interrupted run.",
    ),
]
SourceLangOption = Annotated[
    str | None,
    typer.Option("--source-lang", metavar="CODE", help="Language of the input. Default: the tokenizer's own."),
]
TargetLangOption = Annotated[
    str | None, typer.Option("--target-lang", metavar="CODE", help="Language of the output (mBART, M2M100, NLLB).")
]
SourcePrefixOption = Annotated[
    str, typer.Option("--source-prefix", metavar="TEXT", help='Put in front of every line, as in "summarize: ".')
]
LongInputOption = Annotated[
    LongInput | None,
    typer.Option(
        "--long-input",
        help="What to do with lines longer than the model's positions. Default: split for translation models, "
        "truncate for others.",
    ),
]
JsonlOption = Annotated[
    bool,
    typer.Option(
        "--jsonl",
        help="Write one JSON object per line: text, num_tokens, num_rounds, num_drafted, num_accepted, seconds; with "
        "--output-margin also min_margin.",
    ),
]
StatsOption = Annotated[
    bool,
    typer.Option(
        "--stats",
        help="Print tokens per round, acceptance, times and the speed-up over plain search to stderr at the end.",
    ),
]
BatchTokensOption = Annotated[
    int,
    typer.Option(
        "--batch-tokens", metavar="N", help="Most source and target tokens in a batch; less needs less memory."
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        help="CPU threads. Default: what is fastest (OpenVINO, measured once), or torch's own choice.",
    ),
]
BackendOption = Annotated[
    Literal["auto", "torch", "openvino"],
    typer.Option(
        "--backend", help="Engine. auto: OpenVINO on a CPU where it is installed and has the dtype, else torch."
    ),
]
DtypeOption = Annotated[
    Literal["float32", "bfloat16", "float16", "int8"],
    typer.Option("--dtype", help="Precision of the weights; float16 on torch only, int8 on OpenVINO only."),
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, cuda:1, ...")]

_NOTE = (
    "Generation options (from --max-new-tokens on) that are not given are what the checkpoint says, and where it says "
    "nothing the defaults named here."
)
# Scores are tensors: no line of output could hold them, and a thousand lines of them fill the memory.
_FLAG_NAMES = tuple(name for name in OPTION_NAMES if name not in ("output_scores", "output_logits"))
_METAVARS = {
    "count": "N",
    "number": "X",
    "ids": "ID[,ID]",
    "row_ids": "ID",
    "words": "ID[,ID][;ID..]",
    "early_stopping": "true|false|never",
    "draft_tokens": "N|auto",
}


def tell(notice: str) -> None:
    """Say on stderr what takes long."""
    typer.echo(notice, err=True)


def chosen_drafter(name: str, model: str | Path) -> str | None:
    """The flag's value as `Pipeline.from_pretrained` takes it; "auto" as what it stands for with this model."""
    if name == "auto":
        from spec2seq.pipelines.drafter_choice import own_drafter

        return own_drafter(model)
    return None if name == "none" else name


def with_generation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one flag per generation option to a command, which gets those that were said as its dict `generation`."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "generation"]

    @functools.wraps(command)
    def with_flags(**values: Any) -> None:
        said = {name: values.pop(name) for name in _FLAG_NAMES}
        generation = {name: _parsed(name, value) for name, value in said.items() if value is not None}
        command(**values, generation=generation)

    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name))
        for name in _FLAG_NAMES
    ]
    with_flags.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{_NOTE}"
    with_flags.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    return with_flags


def _annotation(name: str) -> object:
    info = option_info(name)
    flag = "--" + name.replace("_", "-")
    types: dict[str, type] = {"count": int, "number": float, "flag": bool}
    names = f"{flag}/--no-{flag[2:]}" if info.kind == "flag" else flag
    option = typer.Option(names, metavar=_METAVARS.get(info.kind), help=_help(info))
    return Annotated[types.get(info.kind, str) | None, option]


def _help(info: OptionInfo) -> str:
    if info.default is None or info.default == ():
        return info.help
    default = str(info.default).lower() if isinstance(info.default, bool) else info.default
    return f"{info.help} Default: {default}."


def _parsed(name: str, value: object) -> object:
    """A flag's value as the option takes it: lists of ids out of "5,6;7", numbers or words out of the rest."""
    info = option_info(name)
    if not isinstance(value, str):
        return value
    try:
        if info.kind == "words":
            return [_ids(word) for word in value.split(";")]
        if info.kind == "ids":
            return _ids(value)
        if info.kind == "row_ids":
            return int(value)
        if info.kind == "draft_tokens":
            return value if value == "auto" else int(value)
    except ValueError:
        flag = "--" + name.replace("_", "-")
        raise OptionError(f"{flag} {value!r} is not allowed: it must be {_METAVARS[info.kind]}") from None
    return {"true": True, "false": False}.get(value.lower(), value)


def _ids(value: str) -> list[int]:
    return [int(part) for part in value.split(",")] if value else []
