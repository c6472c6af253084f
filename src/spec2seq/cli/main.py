"""Entry point of `spec2seq`: what goes wrong becomes one line on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from typing import Annotated, TextIO

import typer

from spec2seq.cli import convert
from spec2seq.cli.accelerate import accelerate
from spec2seq.cli.bench import bench
from spec2seq.cli.distill import distill
from spec2seq.cli.exactness import exactness
from spec2seq.cli.generate import generate
from spec2seq.cli.info import info
from spec2seq.cli.reproduce import reproduce
from spec2seq.cli.serve import serve
from spec2seq.cli.train_drafter import train_drafter
from spec2seq.cli.translate import translate
from spec2seq.errors import Spec2SeqError

EXIT_FAILED = 1
EXIT_WRONG_CALL = 2
EXIT_INTERRUPTED = 130

# every mistake in the arguments is a subclass of this one, which typer does not export by its name
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="spec2seq",
    help="Fast, exact generation with encoder-decoder Transformers: a cheap drafter proposes, your model checks.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(translate)
app.command()(exactness)
app.command()(info)
app.add_typer(convert.app, name="convert")
app.command()(reproduce)
app.command()(distill)
app.command()(train_drafter)
app.command()(accelerate)
app.command()(serve)
app.command()(bench)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"spec2seq {version('spec2seq')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and leave with its exit code: 0 done, 1 failed, 2 wrong call, 130 interrupted."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line with these arguments. Returns the exit code."""
    warnings.showwarning = _show_warning
    try:
        code = app(args=arguments or ["--help"], prog_name="spec2seq", standalone_mode=False)
    except _UsageError as error:
        _complain(error.format_message() if hasattr(error, "format_message") else str(error))
        return EXIT_WRONG_CALL
    except Spec2SeqError as error:
        _complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except OSError as error:
        return _io_failure(error)
    if code == EXIT_INTERRUPTED:
        _complain("interrupted")
    return int(code or 0)


def _io_failure(error: OSError) -> int:
    _detach_stdout()
    if error.errno != errno.EPIPE:
        where = f": {error.filename}" if error.filename else ""
        _complain(f"{error.strerror or error}{where}")
    return EXIT_FAILED


def _detach_stdout() -> None:
    """Let the interpreter's last flush of a stdout that cannot be written go nowhere instead of failing again."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    typer.echo(f"spec2seq: error: {' '.join(message.split())}", err=True)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    typer.echo(f"spec2seq: warning: {' '.join(str(message).split())}", err=True)
