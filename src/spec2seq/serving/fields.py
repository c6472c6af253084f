"""Reading single fields of a request: the right type, and within the limits. Messages name both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spec2seq.errors import InputError
from spec2seq.pipelines.splitting import num_breaks
from spec2seq.pipelines.text_inputs import check_whole
from spec2seq.serving.bodies import json_type
from spec2seq.serving.refusals import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spec2seq.serving.limits import Limits

_MISSING = object()


def read_texts(fields: Mapping[str, Any], name: str, limits: Limits) -> tuple[list[str], bool]:
    """Texts of a field that holds one or a list of them, and whether it was a list.

    Raises:
        InvalidRequestError: it is missing, holds something else, or more than is allowed.
    """
    value = fields.get(name, _MISSING)
    if value is _MISSING:
        raise InvalidRequestError(f"Invalid request: missing {name} parameter", name)
    is_list = isinstance(value, list)
    texts = value if is_list else [value]
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            place = f"{name}[{i}]" if is_list else name
            wanted = "a string" if is_list else "a string or a list of strings"
            raise InvalidRequestError(f"Invalid request: {place} is {json_type(text)}, not {wanted}", name)
    check_texts(texts, name, limits, is_list=is_list)
    return texts, is_list


def check_texts(texts: Sequence[str], name: str, limits: Limits, *, is_list: bool = False) -> None:
    """Raises InvalidRequestError for half a character, or more texts, characters, or lines and sentences than are
    allowed."""
    _check_count(len(texts), "texts", limits.max_texts, "max_texts", name)
    _check_count(sum(map(len, texts)), "characters", limits.max_input_chars, "max_input_chars", name)
    check_pieces(texts, name, limits)
    for i, text in enumerate(texts):
        check_characters(text, f"{name}[{i}]" if is_list else name, name)


def check_pieces(texts: Sequence[str], name: str, limits: Limits) -> None:
    """Raises InvalidRequestError for more lines and sentences than are allowed."""
    _check_count(_num_pieces(texts), "lines and sentences", limits.max_pieces, "max_pieces", name)


def check_repeated(prefix: str, name: str, texts: Sequence[str], limits: Limits) -> None:
    """Raises InvalidRequestError where a prefix comes to more characters than texts may have: each of their lines and
    sentences may get it."""
    num_chars = len(prefix) * _num_pieces(texts)
    unit = "characters in front of all lines and sentences"
    _check_count(num_chars, unit, limits.max_input_chars, "max_input_chars", name)


def read_prefix(fields: Mapping[str, Any], name: str, limits: Limits) -> str | None:
    """A string of at most as many characters as texts may have, None where it is missing or null.

    Raises:
        InvalidRequestError: it is something else, longer, or has half a character in it.
    """
    prefix = read_string(fields, name)
    _check_count(len(prefix or ""), "characters", limits.max_input_chars, "max_input_chars", name)
    check_characters(prefix or "", name, name)
    return prefix


def _num_pieces(texts: Sequence[str]) -> int:
    """Most pieces that the texts may be cut into at the ends of lines and sentences."""
    return len(texts) + sum(map(num_breaks, texts))


def _check_count(count: int, unit: str, limit: int, limit_name: str, name: str) -> None:
    if count > limit:
        raise InvalidRequestError(
            f"Invalid request: {name} has {count} {unit}, and at most {limit} ({limit_name}) are allowed; send less at "
            "once",
            name,
        )


def check_characters(text: str, place: str, name: str) -> None:
    """Raises InvalidRequestError for half a character in a text, which is at this place of this field."""
    try:
        check_whole(place, text)
    except InputError as error:
        raise InvalidRequestError(f"Invalid request: {error}", name) from None


def read_string(fields: Mapping[str, Any], name: str, default: str | None = None) -> str | None:
    """A string, or the default where it is missing or null.

    Raises:
        InvalidRequestError: it is something else.
    """
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise InvalidRequestError(f"Invalid request: {name} is {json_type(value)}, not a string", name)
    return value


def read_flag(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    """true or false, or the default where it is missing or null. Raises as `read_string`."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidRequestError(f"Invalid request: {name} is {json_type(value)}, not true or false", name)
    return value


def check_known(fields: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raises InvalidRequestError for a field that nobody would read."""
    for name in fields:
        if name not in known:
            raise InvalidRequestError(
                f"Invalid request: {name[:40]} is not a parameter here; known are {', '.join(sorted(known))}", name[:40]
            )
