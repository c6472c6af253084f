"""Generation with any model, in the shapes of OpenAI's completions."""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fastapi import APIRouter, Request

from spec2seq.errors import Spec2SeqError
from spec2seq.pipelines.results import sum_stats
from spec2seq.serving.bodies import read_json
from spec2seq.serving.calls import Finished, TextCall, TextPart
from spec2seq.serving.events import EventStream, begin, finish, format_event, format_model
from spec2seq.serving.fields import check_known, check_repeated, read_flag, read_string, read_texts
from spec2seq.serving.http_errors import completion_error
from spec2seq.serving.openapi import body_of, errors, events
from spec2seq.serving.option_fields import REQUEST_OPTIONS, read_options
from spec2seq.serving.refusals import NotServedError
from spec2seq.serving.schemas import (
    Choice,
    Completion,
    CompletionError,
    CompletionRequest,
    ModelList,
    ServedModel,
    StopReason,
    Usage,
)
from spec2seq.serving.service import Service
from spec2seq.serving.stats import stats_of
from spec2seq.serving.text_options import read_text_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.pipelines.results import GenerationResult
    from spec2seq.serving.calls import Telling
    from spec2seq.serving.jobs import Job
    from spec2seq.types import FinishReason

_END = "[DONE]"  # of a stream, in place of an object
# OpenAI's names for options of ours
_ALIASES = {"max_tokens": "max_new_tokens", "n": "num_return_sequences"}
# in the last event of a stream only
_FIGURES = {"usage", "stats", "warnings"}
_FIELDS = frozenset(CompletionRequest.model_fields) | frozenset(REQUEST_OPTIONS)

router = APIRouter(prefix="/v1", tags=["generate"])


@dataclass(frozen=True)
class CompletionCall:
    """A request as it was read, and what all its answers say."""

    call: TextCall
    is_stream: bool
    id: str
    created: int
    model: str

    def completion(self, choices: list[Choice]) -> Completion:
        """An answer with these outputs."""
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices)


@router.get("/models")
async def models(request: Request) -> ModelList:
    """The one model that is served, and what it takes."""
    service = Service.of(request)
    limits, settings = service.limits, service.settings
    return ModelList(
        data=[
            ServedModel(
                id=settings.model_name,
                created=service.created,
                drafter=settings.drafter_name,
                max_draft_tokens=limits.max_draft_tokens if settings.drafter_name else 0,
                max_input_chars=limits.max_input_chars,
                max_texts=limits.max_texts,
                max_output_tokens=limits.max_output_tokens,
                max_beams=limits.max_beams,
            )
        ]
    )


@router.post(
    "/completions",
    response_model=Completion,
    response_model_exclude_none=True,
    response_description="The outputs; with stream, server-sent events of which the last is [DONE].",
    openapi_extra=body_of(CompletionRequest),
    responses={
        **events(Completion, CompletionError, end=_END),
        **errors(400, 404, 408, 413, 415, 429, 500, 503, model=CompletionError),
    },
)
async def completions(request: Request) -> Completion | EventStream:
    """Generate from a text, or from each of a list."""
    service = Service.of(request)
    wanted = read_completion(await read_json(request), service)
    if not wanted.is_stream:
        return _whole(wanted, await finish(service.engine, request, wanted.call))
    job, _ = await begin(service.engine, wanted.call)
    return EventStream(job, _stream(wanted, job))


def read_completion(fields: dict[str, Any], service: Service) -> CompletionCall:
    """The fields of a request.

    Raises:
        InvalidRequestError: one is unknown, missing, of the wrong type, or beyond a limit.
        NotServedError: it is for another model.
    """
    check_known(fields, _FIELDS)
    name = read_string(fields, "model", service.settings.model_name)
    if name != service.settings.model_name:
        raise NotServedError(f"this service has the model {service.settings.model_name!r} and no other", "model")
    texts, _ = read_texts(fields, "prompt", service.limits)
    text_options = read_text_options(fields, service)
    if fields.get("source_prefix"):  # the service's own is its operator's business
        check_repeated(text_options.source_prefix, "source_prefix", texts, service.limits)
    is_stream = read_flag(fields, "stream", default=False)
    telling: Telling = "texts" if is_stream else "nothing"
    call = TextCall(texts, text_options, _read_arguments(fields, service), telling)
    return CompletionCall(call, is_stream, f"cmpl-{uuid4().hex}", int(time()), service.settings.model_name)


def _read_arguments(fields: dict[str, Any], service: Service) -> GenerationArguments:
    arguments = read_options(fields, service.limits, _ALIASES)
    temperature = arguments.get("temperature")
    if "do_sample" not in arguments and isinstance(temperature, (int, float)):
        arguments["do_sample"] = temperature > 0
    return arguments


def _whole(wanted: CompletionCall, finished: Finished) -> Completion:
    outputs = [output for result in finished.results for output in _outputs(result)]
    choices = [Choice(index=i, text=text, finish_reason=reason) for i, (text, reason) in enumerate(outputs)]
    return _with_figures(wanted.completion(choices), finished)


def _outputs(result: GenerationResult) -> list[tuple[str, StopReason]]:
    reason = _finish_reason(result.finish_reason)
    return [(text, reason) for text in (result.text, *(one.text for one in result.alternatives))]


async def _stream(wanted: CompletionCall, job: Job) -> AsyncIterator[str]:
    try:
        async for event in job.events():
            if isinstance(event, TextPart):
                choice = Choice(index=event.index, text=event.text, finish_reason=None)
                yield format_event(wanted.completion([choice]).model_dump_json(exclude=_FIGURES))
            elif isinstance(event, Finished):
                yield format_model(_end(wanted, event))
    except Spec2SeqError as error:
        yield format_model(completion_error(error))
    yield format_event(_END)


def _end(wanted: CompletionCall, finished: Finished) -> Completion:
    choices = [
        Choice(index=i, text="", finish_reason=_finish_reason(result.finish_reason))
        for i, result in enumerate(finished.results)
    ]
    return _with_figures(wanted.completion(choices), finished)


def _with_figures(completion: Completion, finished: Finished) -> Completion:
    stats = sum_stats([result.stats for result in finished.results])
    usage = Usage(
        prompt_tokens=finished.num_source_tokens,
        completion_tokens=stats.num_tokens,
        total_tokens=finished.num_source_tokens + stats.num_tokens,
    )
    warnings = finished.warnings or None
    return completion.model_copy(update={"usage": usage, "stats": stats_of(stats), "warnings": warnings})


def _finish_reason(reason: FinishReason) -> StopReason:
    return "stop" if reason == "eos" else "length"
