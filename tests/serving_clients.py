"""Talking to the service in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from spec2seq import GenerationOptions
from spec2seq.serving.app import create_app, create_service
from spec2seq.serving.limits import Limits
from spec2seq.serving.service import ServiceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec2seq import Pipeline


class InProcess:
    """A running application with an event loop of its own."""

    def __init__(
        self, pipeline: Pipeline, settings: ServiceSettings, limits: Limits, options: GenerationOptions
    ) -> None:
        self.service = create_service(pipeline, settings, limits, options)
        self.app = create_app(self.service, grace=20)
        self.loop = asyncio.new_event_loop()

    def post(self, path: str, **content: Any) -> httpx.Response:
        """One POST request; `json`, `data`, `content`, `headers` as in httpx."""
        return self.send("POST", path, **content)

    def get(self, path: str, **content: Any) -> httpx.Response:
        """One GET request."""
        return self.send("GET", path, **content)

    def send(self, method: str, path: str, **content: Any) -> httpx.Response:
        """One request."""
        return asyncio.run_coroutine_threadsafe(self._send(method, path, content), self.loop).result(60)

    async def _send(self, method: str, path: str, content: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)  # what goes wrong inside would be raised here
        async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client:
            return await client.request(method, path, **content)


@contextmanager
def running(
    pipeline: Pipeline,
    settings: ServiceSettings | None = None,
    limits: Limits | None = None,
    options: GenerationOptions | None = None,
) -> Iterator[InProcess]:
    """An application between its start and its end."""
    client = InProcess(
        pipeline,
        settings or ServiceSettings("tiny-en-it", "prompt_lookup"),
        limits or Limits(),
        options or GenerationOptions(),
    )
    thread = threading.Thread(target=client.loop.run_forever)
    thread.start()
    lifespan = client.app.router.lifespan_context(client.app)
    asyncio.run_coroutine_threadsafe(lifespan.__aenter__(), client.loop).result(20)
    try:
        yield client
    finally:
        asyncio.run_coroutine_threadsafe(lifespan.__aexit__(None, None, None), client.loop).result(40)
        client.loop.call_soon_threadsafe(client.loop.stop)
        thread.join()
        client.loop.close()


def events_of(text: str) -> list[tuple[str, Any]]:
    """(name, data) of every server-sent event; the data are objects, or [DONE]."""
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if fields:
            data = fields["data"]
            events.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return events
