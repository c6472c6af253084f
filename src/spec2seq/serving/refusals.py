"""Why a request gets no output, with the status code that says so."""

from __future__ import annotations

from spec2seq.errors import Spec2SeqError


class RefusalError(Spec2SeqError):
    """Base of them. `status` is the HTTP status; `retry_after` seconds are suggested where trying again may help;
    `param` names the field that is to blame, where there is one."""

    status = 400
    retry_after: int | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(RefusalError):
    """A field is missing, has the wrong type, or is beyond a limit."""


class NotServedError(RefusalError):
    """There is no such model here."""

    status = 404


class BodyTooLargeError(RefusalError):
    """The body has more bytes than any allowed request."""

    status = 413


class UnknownBodyError(RefusalError):
    """The body is of a type that nothing can be made of."""

    status = 415


class SlowBodyError(RefusalError):
    """The body did not arrive in time."""

    status = 408


class QueueFullError(RefusalError):
    """Too many requests wait already."""

    status = 429
    retry_after = 1


class ShuttingDownError(RefusalError):
    """The service finishes what it has begun, and begins nothing new."""

    status = 503
    retry_after = 5


class DeadlineError(RefusalError):
    """The output was not ready in time."""

    status = 503
    retry_after = 5


class ModelFailureError(RefusalError):
    """The model could not be run on this input."""

    status = 500
