"""Decoding that can be watched: every token with the round that it came from, and why it was taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

from spec2seq.errors import Spec2SeqError
from spec2seq.pipelines.results import sum_stats
from spec2seq.serving.bodies import json_type, read_json
from spec2seq.serving.calls import Accepted, Finished, RoundTokens, TextCall
from spec2seq.serving.events import EventStream, begin, format_model
from spec2seq.serving.fields import check_known, check_texts, read_flag
from spec2seq.serving.http_errors import public_message
from spec2seq.serving.openapi import body_of, errors, events
from spec2seq.serving.option_fields import read_options
from spec2seq.serving.refusals import InvalidRequestError
from spec2seq.serving.schemas import (
    ErrorBody,
    TraceEnd,
    TraceRequest,
    TraceRound,
    TraceStart,
    TraceToken,
)
from spec2seq.serving.service import Service
from spec2seq.serving.stats import stats_of
from spec2seq.serving.text_options import read_text_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from spec2seq.serving.jobs import Job

_FIELDS = frozenset(TraceRequest.model_fields)

router = APIRouter(prefix="/v1", tags=["trace"])


@router.post(
    "/trace",
    status_code=200,
    response_class=EventStream,
    response_description="start, then round for every round, then end, or error.",
    openapi_extra=body_of(TraceRequest),
    responses={
        **events(TraceStart, TraceRound, TraceEnd, ErrorBody),
        **errors(400, 408, 413, 415, 429, 500, 503),
    },
)
async def trace(request: Request) -> EventStream:
    """Watch a text being decoded. See the schema of the body for the events."""
    service = Service.of(request)
    job, accepted = await begin(service.engine, read_trace(await read_json(request), service))
    return EventStream(job, _stream(job, accepted, service.settings.drafter_name))


def read_trace(fields: dict[str, Any], service: Service) -> TextCall:
    """The fields of a request.

    Raises:
        InvalidRequestError: one is unknown, missing, of the wrong type, or beyond a limit.
    """
    check_known(fields, _FIELDS)
    text = fields.get("text")
    if not isinstance(text, str):
        found = json_type(text) if "text" in fields else "missing"
        raise InvalidRequestError(f"Invalid request: text is {found}, not a string", "text")
    check_texts([text], "text", service.limits)
    arguments = read_options(fields, service.limits)
    if not read_flag(fields, "drafter", default=True):
        arguments["num_draft_tokens"] = 0
    arguments.setdefault("num_beams", 1)  # beams have no rounds to tell of
    return TextCall([text], read_text_options(fields, service), arguments, "rounds")


async def _stream(job: Job, accepted: Accepted, drafter_name: str | None) -> AsyncIterator[str]:
    yield format_model(_start(accepted, drafter_name), "start")
    try:
        async for event in job.events():
            if isinstance(event, RoundTokens):
                yield format_model(_round(event), "round")
            elif isinstance(event, Finished):
                yield format_model(_end(event), "end")
    except Spec2SeqError as error:
        yield format_model(ErrorBody(error=public_message(error)), "error")


def _start(accepted: Accepted, drafter_name: str | None) -> TraceStart:
    (plan,) = accepted.plans
    return TraceStart(
        pieces=plan.split.pieces,
        separators=plan.split.separators,
        drafter=drafter_name if accepted.is_drafting else None,
        num_draft_tokens=accepted.options.num_draft_tokens if accepted.is_drafting else 0,
        is_exact=not accepted.is_drafting or accepted.options.top_beta == 1,
    )


def _round(event: RoundTokens) -> TraceRound:
    tokens = [
        TraceToken(id=token_id, text=text, origin=origin)
        for token_id, text, origin in zip(event.token_ids, event.texts, event.origins, strict=True)
    ]
    return TraceRound(piece=event.piece, round=event.round, ms=1000 * event.seconds, tokens=tokens)


def _end(finished: Finished) -> TraceEnd:
    (result,) = finished.results
    stats = sum_stats([result.stats])
    return TraceEnd(
        text=result.text,
        finish_reason="eos" if result.finish_reason == "eos" else "length",
        ms=1000 * finished.seconds,
        tokens_per_second=stats.num_tokens / finished.seconds if finished.seconds else 0.0,
        stats=stats_of(stats),
    )
