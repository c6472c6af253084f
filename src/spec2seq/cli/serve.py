"""`spec2seq serve`: a model behind HTTP."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from spec2seq.cli.options import (
    BackendOption,
    DeviceOption,
    DrafterOption,
    DtypeOption,
    LongInputOption,
    SourceLangOption,
    SourcePrefixOption,
    TargetLangOption,
    ThreadsOption,
    chosen_drafter,
    tell,
    with_generation_options,
)
from spec2seq.cli.translate import bundled_model
from spec2seq.errors import OptionError
from spec2seq.generation_options import GenerationOptions
from spec2seq.option_values import shortened
from spec2seq.serving.limits import Limits

_LIMITS = Limits()


def _limit(flag: str, help: str) -> Any:
    return typer.Option(flag, metavar="N", help=help)


@with_generation_options
def serve(
    generation: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="DIR", help="Model folder (Hugging Face layout) or Hub id. Default: bundled."),
    ] = None,
    drafter: DrafterOption = "auto",
    backend: BackendOption = "auto",
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; 0.0.0.0 is every interface.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 takes a free one.")] = 8000,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What clients call the model. Default: its folder's.")
    ] = None,
    source_lang: SourceLangOption = None,
    target_lang: TargetLangOption = None,
    source_prefix: SourcePrefixOption = "",
    long_input: LongInputOption = None,
    max_queue: Annotated[int, _limit("--max-queue", "Requests that may wait.")] = _LIMITS.max_queue,
    max_input_chars: Annotated[
        int, _limit("--max-input-chars", "Characters of all texts of a request.")
    ] = _LIMITS.max_input_chars,
    max_texts: Annotated[int, _limit("--max-texts", "Texts in one request.")] = _LIMITS.max_texts,
    max_pieces: Annotated[int, _limit("--max-pieces", "Lines and sentences in one request.")] = _LIMITS.max_pieces,
    max_output_tokens: Annotated[
        int, _limit("--max-output-tokens", "Tokens that a request may ask for per line or sentence.")
    ] = _LIMITS.max_output_tokens,
    max_draft_tokens: Annotated[
        int, _limit("--max-draft-tokens", "Tokens that a request may have drafted per round.")
    ] = _LIMITS.max_draft_tokens,
    max_beams: Annotated[
        int, _limit("--max-beams", "Beams or samples that a request may ask for.")
    ] = _LIMITS.max_beams,
    max_top_beta: Annotated[
        int, _limit("--max-top-beta", "Best tokens among which a request may accept drafted ones.")
    ] = _LIMITS.max_top_beta,
    max_batch_tokens: Annotated[
        int, _limit("--max-batch-tokens", "Source and target tokens that the model works on at a time.")
    ] = _LIMITS.max_batch_tokens,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="From the arrival of a request to its end.")
    ] = _LIMITS.timeout,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin", metavar="URL", help="Pages of this origin may use the service; may be repeated."
        ),
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write the texts of users to the log.")] = False,
) -> None:
    """Serve a model over HTTP, with a page to try it on.

    It speaks LibreTranslate's interface (/translate) and OpenAI's completions (/v1/completions); /openapi.json has all
    of it. SIGTERM lets it finish what it has begun. docs/deployment.md says more.
    """
    folder = model or str(bundled_model())
    limits = Limits(
        max_queue=max_queue,
        max_input_chars=max_input_chars,
        max_texts=max_texts,
        max_pieces=max_pieces,
        max_output_tokens=max_output_tokens,
        max_draft_tokens=max_draft_tokens,
        max_beams=max_beams,
        max_top_beta=max_top_beta,
        max_batch_tokens=max_batch_tokens,
        timeout=timeout,
    )
    defaults = GenerationOptions.from_mapping(generation)
    from spec2seq.pipelines import Pipeline
    from spec2seq.serving.server import Address, run_server
    from spec2seq.serving.service import ServiceSettings

    chosen = chosen_drafter(drafter, folder)
    settings = ServiceSettings(
        model_name=name or _name_of(folder),
        drafter_name=_name_of(chosen) if chosen else None,
        source_lang=source_lang,
        target_lang=target_lang,
        source_prefix=source_prefix,
        long_input=long_input,
        allowed_origins=tuple(map(_checked_origin, allow_origin or ())),
        has_texts_in_log=log_texts,
    )
    pipeline = Pipeline.from_pretrained(folder, chosen, backend, device, dtype, threads, tell)
    run_server(pipeline, settings, limits, defaults, Address(host, port))


def _name_of(folder: str) -> str:
    """The last part of its path, also where that ends in "." or ".."."""
    return Path(os.path.abspath(folder)).name


def _checked_origin(origin: str) -> str:
    """Browsers send scheme, host and port, and what they send is compared letter by letter."""
    if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@A-Z]+", origin):
        raise OptionError(
            f"--allow-origin {shortened(origin)} is not an origin: use one like https://page.example or "
            "http://localhost:3000, without a path, in small letters; or * for all"
        )
    return origin
