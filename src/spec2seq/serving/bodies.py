"""What comes in the body of a request, as far as it comes, is not too much and can be read."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException

from spec2seq.serving.refusals import BodyTooLargeError, InvalidRequestError, SlowBodyError, UnknownBodyError

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_FORM_FIELDS = 1000
_URL_ENCODED, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"


class BodyLimit:
    """ASGI middleware: the application reads no body beyond a number of bytes, or for longer than some seconds."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self._seconds
        num_bytes = 0
        is_read = False

        async def receive_within_limits() -> Message:
            nonlocal num_bytes, is_read
            if is_read:
                return await receive()  # whatever comes now is that the client has gone, sooner or later
            self._check_declared(scope)
            message = await self._next(receive, deadline)
            num_bytes += len(message.get("body", b""))
            is_read = not message.get("more_body", False)
            if num_bytes > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_within_limits, send)

    def _check_declared(self, scope: Scope) -> None:
        """A body that is said to be too large is not waited for."""
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared[:20]) > self._max_bytes:
            raise self._too_large()

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the body is larger than the {self._max_bytes} bytes that are allowed")

    async def _next(self, receive: Receive, deadline: float) -> Message:
        try:
            async with asyncio.timeout_at(deadline):
                return await receive()
        except TimeoutError:
            raise SlowBodyError(f"the body did not arrive within {self._seconds:g} s; send it at once") from None


async def read_fields(request: Request) -> dict[str, Any]:
    """The fields of a JSON object or a form; a field that a form has several times is a list of strings.

    Raises:
        InvalidRequestError: neither can be made of the body.
        UnknownBodyError: it is said to be something else.
        BodyTooLargeError, SlowBodyError: as in `BodyLimit`.
    """
    kind = content_type(request)
    if kind == _URL_ENCODED:
        return _grouped(await _read_url_encoded(request))
    if kind == _MULTIPART:
        return _grouped(await _read_multipart(request))
    if kind == "application/json" or kind.endswith("+json"):
        return await read_json(request)
    raise UnknownBodyError(f"content type {kind[:60] or '(none)'} is not supported; send application/json or a form")


def content_type(request: Request) -> str:
    """What the body is said to be, without parameters."""
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


async def read_json(request: Request) -> dict[str, Any]:
    """The fields of a JSON object. Raises as `read_fields`."""
    body = await request.body()
    try:
        fields = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise InvalidRequestError("Invalid JSON format") from None
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"Invalid JSON format: the body is {json_type(fields)}, not an object")
    return fields


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidRequestError(f"Invalid request: {name[:40]} is there more than once", name[:40])
        found[name] = value
    return found


async def _read_url_encoded(request: Request) -> list[tuple[str, str]]:
    try:
        # many clients send UTF-8 as it is, without escaping it
        text = (await request.body()).decode()
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FORM_FIELDS)
    except UnicodeDecodeError:
        raise InvalidRequestError("Invalid form: its text is not UTF-8") from None
    except ValueError:
        raise InvalidRequestError(f"Invalid form: it has more than {MAX_FORM_FIELDS} fields") from None


async def _read_multipart(request: Request) -> list[tuple[str, str]]:
    try:
        form = await request.form(max_files=0, max_fields=MAX_FORM_FIELDS)
    except HTTPException as error:
        raise InvalidRequestError(f"Invalid form: {error.detail}") from None
    return [(name, value) for name, value in form.multi_items() if isinstance(value, str)]


def _grouped(items: list[tuple[str, str]]) -> dict[str, Any]:
    values: dict[str, list[str]] = {}
    for name, value in items:
        values.setdefault(name, []).append(value)
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def json_type(value: object) -> str:
    """What messages call the type of a JSON value."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
