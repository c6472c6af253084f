"""Generation options that a request may set, and how far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from spec2seq.errors import OptionError
from spec2seq.generation_options import OPTION_NAMES, option_info
from spec2seq.serving.bodies import json_type
from spec2seq.serving.refusals import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.serving.limits import Limits

# Lists of token ids are not among them, nor what would return tensors.
_NUMBERS = ("count", "number", "draft_tokens")
_KINDS = (*_NUMBERS, "flag", "early_stopping")
_HIDDEN = ("output_scores", "output_logits", "output_margin", "max_length", "min_length")
REQUEST_OPTIONS = tuple(name for name in OPTION_NAMES if option_info(name).kind in _KINDS and name not in _HIDDEN)
# Beyond these, scores overflow: an output of nonsense, or none.
LARGEST_NUMBER, SMALLEST_NUMBER = 100, 0.01
LARGEST_COUNT = 1_000_000


def read_options(
    fields: Mapping[str, Any], limits: Limits, aliases: Mapping[str, str] | None = None
) -> GenerationArguments:
    """The options among the fields; null means that nothing is said. `aliases` are other names that options have here.

    Raises:
        InvalidRequestError: one has the wrong type, is beyond the limits, or is there under both its names.
    """
    said: dict[str, Any] = {}
    for field, name in {**{name: name for name in REQUEST_OPTIONS}, **(aliases or {})}.items():
        value = fields.get(field)
        if value is None:
            continue
        if name in said:
            raise InvalidRequestError(f"Invalid request: {field} and {name} say the same; pass one of them", field)
        _check_value(field, name, value, limits)
        said[name] = value
    return cast("GenerationArguments", said)


def largest(name: str, limits: Limits) -> tuple[float, str]:
    """The largest value of a count or a number, and what the limit is called."""
    named = {
        "max_new_tokens": (limits.max_output_tokens, "max_output_tokens"),
        "min_new_tokens": (limits.max_output_tokens, "max_output_tokens"),
        "num_beams": (limits.max_beams, "max_beams"),
        "num_return_sequences": (limits.max_beams, "max_beams"),
        "num_draft_tokens": (limits.max_draft_tokens, "max_draft_tokens"),
        "top_beta": (limits.max_top_beta, "max_top_beta"),
    }
    if name in named:
        return named[name]
    info = option_info(name)
    if info.maximum is not None:
        return info.maximum, f"the largest {name}"
    return (LARGEST_COUNT, "the largest count") if info.kind == "count" else (LARGEST_NUMBER, "the largest number")


def _check_value(field: str, name: str, value: object, limits: Limits) -> None:
    info = option_info(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and info.kind in _NUMBERS:
        _check_largest(field, name, cast("float", value), limits)
    if isinstance(value, (list, dict)):
        raise InvalidRequestError(f"Invalid request: {field} is {json_type(value)}, not {info.allowed}", field)
    try:
        info.checked(field, value)
    except OptionError as error:
        raise InvalidRequestError(f"Invalid request: {error}", field) from None
    if is_number and info.kind == "number":
        _check_smallest(field, name, cast("float", value), limits)


def _check_largest(field: str, name: str, value: float, limits: Limits) -> None:
    limit, limit_name = largest(name, limits)
    if value > limit:
        raise InvalidRequestError(
            f"Invalid request: {field}={str(value)[:40]} exceeds the {limit} ({limit_name}) that are allowed", field
        )


def _check_smallest(field: str, name: str, value: float, limits: Limits) -> None:
    """Refuse numbers too close to 0 or too far below it."""
    if value >= -LARGEST_NUMBER and not 0 < abs(value) < SMALLEST_NUMBER:
        return
    info = option_info(name)
    allowed = f"{SMALLEST_NUMBER} to {largest(name, limits)[0]}"
    if not info.is_above_minimum:
        allowed = f"0, or {allowed}"
    if info.minimum is None:
        allowed += " above or below it"
    raise InvalidRequestError(f"Invalid request: {field}={str(value)[:40]} is not allowed: use {allowed}", field)
