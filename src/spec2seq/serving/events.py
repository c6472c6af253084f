"""Waiting for the engine on behalf of a client that may go away, and telling it as server-sent events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi.responses import StreamingResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import Request
    from pydantic import BaseModel
    from starlette.types import Receive, Scope, Send

    from spec2seq.serving.calls import Accepted, Finished, TextCall
    from spec2seq.serving.engine import Engine
    from spec2seq.serving.jobs import Job


class ClientGoneError(Exception):
    """Nobody waits for the response any more."""


async def finish(engine: Engine, request: Request, call: TextCall) -> Finished:
    """The results of a call; where the client goes away, its work is dropped.

    Raises:
        ClientGoneError: it went away.
        OptionError, InputError, RefusalError: the call comes to nothing.
    """
    job = engine.submit(call)
    result = asyncio.ensure_future(job.finished())
    departure = asyncio.ensure_future(_departure(request))
    try:
        await asyncio.wait((result, departure), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientGoneError
        return result.result()
    finally:
        job.cancel()
        result.cancel()
        departure.cancel()


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def begin(engine: Engine, call: TextCall) -> tuple[Job, Accepted]:
    """A job that is accepted, and what it comes to; its next events are `job.events()`.

    Raises:
        OptionError, InputError, RefusalError: the call is not valid, or not taken.
    """
    job = engine.submit(call)
    try:
        return job, await job.accepted()
    except BaseException:
        job.cancel()
        raise


class EventStream(StreamingResponse):
    """Server-sent events about a job, which is dropped when the response ends, whatever ends it."""

    media_type = "text/event-stream"

    def __init__(self, job: Job, events: AsyncIterator[str]) -> None:
        # proxies that collect a response before they pass it on would defeat the purpose
        super().__init__(events, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._job.cancel()


def format_event(data: str, name: str | None = None) -> str:
    """One server-sent event; `data` without line breaks, as JSON is."""
    return f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n"


def format_model(model: BaseModel, name: str | None = None) -> str:
    """One server-sent event with a JSON object."""
    return format_event(model.model_dump_json(), name)
