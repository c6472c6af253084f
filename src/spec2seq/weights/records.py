"""Settings records as JSON objects, and back with every value checked."""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spec2seq.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping


Record = TypeVar("Record")


def record_from_json(
    kind: type[Record], values: object, where: str, inner: Mapping[str, object] | None = None
) -> Record:
    """The record of dataclass `kind` that a JSON object holds; lists become tuples.

    Args:
        values: what JSON gave; every key must be a field, every field without a default a key.
        where: what messages call the place of it.
        inner: fields that are records themselves, read before.

    Raises:
        CheckpointError: no object, or a key or value that does not fit.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{where} must be a JSON object, not {values!r}: restore the file")
    inner = inner or {}
    values = {name: value for name, value in values.items() if name not in inner}
    required = {field.name for field in fields(kind) if field.default is MISSING} - inner.keys()  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    wrong = sorted(values.keys() - hints.keys()) or sorted(required - values.keys())
    if wrong:
        problem = "is unknown" if wrong[0] in values else "is missing"
        raise CheckpointError(f"{where}: {wrong[0]} {problem}: restore the file, or use a newer version of spec2seq")
    _check_values(values, hints, where)
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return kind(**plain, **inner)


def _check_values(values: Mapping[str, Any], hints: Mapping[str, Any], where: str) -> None:
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise CheckpointError(f"{where}: {name} cannot be {value!r}: restore the file")


def _fits(value: object, hint: Any) -> bool:
    """Whether a JSON value may stand in a field of this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if hint is NoneType:
        return value is None
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, hint)
