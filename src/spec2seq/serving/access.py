"""The outermost layer: counts and logs every request, and keeps what went wrong inside from coming out."""

from __future__ import annotations

import logging
import traceback
from time import perf_counter
from typing import TYPE_CHECKING

from spec2seq.serving.http_errors import internal_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from spec2seq.serving.metrics import Metrics

LOG = logging.getLogger("spec2seq.serving")
OTHER = "(other)"
# asked for every few seconds, and no news
WATCHED = ("/health", "/ready", "/metrics")
METHODS = ("GET", "HEAD", "POST", "OPTIONS")


class Access:
    """ASGI middleware. Logs hold routes, never what was sent to them."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = perf_counter(), 0

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        # The last one to catch anything: it is logged, and the client gets a 500 without its text. Where the answer had
        # begun nothing can be added to it; the server then sees it incomplete and closes the connection.
        except Exception as error:  # noqa: BLE001
            _log_error(error)
            if not status:
                await internal_error(scope["path"])(scope, receive, watched_send)
        finally:
            self._told(scope, status, perf_counter() - start)

    def _told(self, scope: Scope, status: int, seconds: float) -> None:
        route = str(getattr(scope.get("route"), "path", OTHER))  # the pattern: a path itself is the client's
        method = scope["method"] if scope["method"] in METHODS else OTHER
        self._metrics.responded(route, method, status, seconds)
        level = logging.DEBUG if route in WATCHED else logging.INFO
        LOG.log(level, "%s %s %d %.1f ms", method, route, status, 1000 * seconds)


def _log_error(error: Exception) -> None:
    """Kind and places: messages may hold what a user sent."""
    frames = traceback.extract_tb(error.__traceback__)
    LOG.error("%s at %s", type(error).__name__, ", ".join(f"{frame.filename}:{frame.lineno}" for frame in frames[-5:]))
