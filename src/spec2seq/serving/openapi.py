"""The OpenAPI document: also what endpoints do not show, the bodies that they read themselves, errors and events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from spec2seq.generation_options import option_info
from spec2seq.serving.option_fields import REQUEST_OPTIONS, largest
from spec2seq.serving.schemas import (
    CompletionError,
    CompletionRequest,
    ErrorBody,
    TraceEnd,
    TraceRequest,
    TraceRound,
    TraceStart,
    TranslateRequest,
)

if TYPE_CHECKING:
    from fastapi import FastAPI
    from pydantic import BaseModel

    from spec2seq.serving.limits import Limits

_COMPONENTS = "#/components/schemas/{model}"
# Known to no endpoint by their annotations.
_MODELS: tuple[type[BaseModel], ...] = (
    CompletionError,
    CompletionRequest,
    ErrorBody,
    TraceEnd,
    TraceRequest,
    TraceRound,
    TraceStart,
    TranslateRequest,
)
_REASONS = {
    400: "The request is not valid.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is of an unknown type.",
    429: "Too many requests are waiting.",
    500: "The model failed on this input.",
    503: "The service is shutting down, or the output was not ready in time.",
}
_JSON_TYPES: dict[str, dict[str, Any]] = {
    "count": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "draft_tokens": {"type": "integer"},
    "early_stopping": {"type": "boolean"},
}
_WORDS = {"draft_tokens": "auto", "early_stopping": "never"}  # which the option may be beside its type


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Where the schema of a model is."""
    return {"$ref": _COMPONENTS.format(model=model.__name__)}


def body_of(model: type[BaseModel], *, is_form: bool = False) -> dict[str, Any]:
    """The body of an endpoint that reads it itself."""
    kinds = ["application/json", *(["application/x-www-form-urlencoded", "multipart/form-data"] if is_form else [])]
    return {"requestBody": {"required": True, "content": {kind: {"schema": reference(model)} for kind in kinds}}}


def errors(*statuses: int, model: type[BaseModel] = ErrorBody) -> dict[int | str, dict[str, Any]]:
    """The answers to refused requests."""
    content = {"application/json": {"schema": reference(model)}}
    return {status: {"description": _REASONS[status], "content": content} for status in statuses}


def events(*models: type[BaseModel], end: str | None = None) -> dict[int | str, dict[str, Any]]:
    """An answer that is a stream of server-sent events whose data are objects of these models, at last maybe `end`."""
    named = " or ".join(model.__name__ for model in models)
    data: dict[str, Any] = {
        "type": "string",
        "description": f"JSON object: {named}.",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [reference(model) for model in models]},
    }
    if end is not None:
        data = {"anyOf": [{"const": end, "description": "the end of the stream"}, data]}
    schema = {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}
    return {200: {"content": {"text/event-stream": {"schema": schema}}}}


def document(app: FastAPI, limits: Limits) -> dict[str, Any]:
    """The OpenAPI document of an application with these limits."""
    made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, definitions = models_json_schema([(model, "validation") for model in _MODELS], ref_template=_COMPONENTS)
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions["$defs"])
    schemas[CompletionRequest.__name__]["properties"].update(
        {name: _option_schema(name, limits) for name in REQUEST_OPTIONS}
    )
    return made


def _option_schema(name: str, limits: Limits) -> dict[str, Any]:
    """Type, range and meaning of a generation option."""
    info = option_info(name)
    schema = dict(_JSON_TYPES[info.kind])
    if info.kind in ("count", "number", "draft_tokens"):
        schema["maximum"] = largest(name, limits)[0]
        if info.minimum is not None:
            schema["exclusiveMinimum" if info.is_above_minimum else "minimum"] = info.minimum
    if info.kind in _WORDS:
        schema = {"anyOf": [schema, {"const": _WORDS[info.kind]}]}
    return {**schema, "description": info.help}
