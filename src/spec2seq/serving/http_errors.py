"""How errors look to clients: what was wrong and what to do, and nothing about the inside of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from spec2seq.errors import InputError, OptionError, Spec2SeqError
from spec2seq.serving.events import ClientGoneError
from spec2seq.serving.refusals import RefusalError
from spec2seq.serving.schemas import CompletionError, CompletionErrorDetail, ErrorBody

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from pydantic import BaseModel

INTERNAL_ERROR = "internal error; the log of the service says where"
# OpenAI's codes for refusals by status.
_COMPLETION_CODES = {404: "model_not_found", 429: "rate_limit_exceeded"}
# What web servers log for a client that did not wait; nobody sees the response.
_CLIENT_GONE = 499


def add_error_handlers(app: FastAPI) -> None:
    """Let an application answer every error in the shape that its route's clients expect."""
    app.add_exception_handler(Spec2SeqError, _refuse)
    app.add_exception_handler(HTTPException, _refuse_route)
    app.add_exception_handler(ClientGoneError, _give_up)
    app.add_exception_handler(ClientDisconnect, _give_up)  # while its body was read


def status_of(error: Spec2SeqError) -> int:
    """The status code of an error."""
    if isinstance(error, RefusalError):
        return error.status
    return 400 if isinstance(error, (OptionError, InputError)) else 500


def public_message(error: Spec2SeqError) -> str:
    """What clients may read of an error. Other errors than these may name files."""
    if not isinstance(error, (RefusalError, OptionError, InputError)):
        return INTERNAL_ERROR
    return _sendable(str(error))


def completion_error(error: Spec2SeqError) -> CompletionError:
    """The error in the shape of OpenAI's interface."""
    status = status_of(error)
    param, code = getattr(error, "param", None), _COMPLETION_CODES.get(status)
    return _completion_error(status, public_message(error), param, code)


def internal_error(path: str) -> JSONResponse:
    """The answer to a request at this path on which the service itself failed."""
    body: BaseModel = ErrorBody(error=INTERNAL_ERROR)
    if _is_completion(path):
        body = _completion_error(500, INTERNAL_ERROR)
    return JSONResponse(body.model_dump(), 500)


def _sendable(words: str) -> str:
    """Half a character of the request may be quoted in them, which no response can hold."""
    return words.encode("utf-8", "backslashreplace").decode("utf-8")


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, Spec2SeqError)
    retry_after = getattr(error, "retry_after", None)
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    body: BaseModel = ErrorBody(error=public_message(error))
    if _is_completion(request.url.path):
        body = completion_error(error)
    return JSONResponse(body.model_dump(), status_of(error), headers)


async def _refuse_route(request: Request, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException)
    body: BaseModel = ErrorBody(error=str(error.detail))
    if _is_completion(request.url.path):
        body = _completion_error(error.status_code, str(error.detail))
    return JSONResponse(body.model_dump(), error.status_code, error.headers)


async def _give_up(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)


def _is_completion(path: str) -> bool:
    return path.startswith("/v1/completions")


def _completion_error(status: int, message: str, param: str | None = None, code: str | None = None) -> CompletionError:
    kind = "invalid_request_error" if status < 500 else "server_error"
    param = None if param is None else _sendable(param)
    return CompletionError(error=CompletionErrorDetail(message=message, type=kind, param=param, code=code))
