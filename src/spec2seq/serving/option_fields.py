"""Generation options that a request may set, and how far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from spec2seq.generation_options import OPTION_NAMES, option_info
from spec2seq.serving.bodies import json_type
from spec2seq.serving.refusals import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.serving.limits import Limits

# Lists of token ids are not among them, nor what would return tensors.
_KINDS = ("count", "number", "flag", "early_stopping", "draft_tokens")
_HIDDEN = ("output_scores", "output_logits", "output_margin", "max_length", "min_length")
REQUEST_OPTIONS = tuple(name for name in OPTION_NAMES if option_info(name).kind in _KINDS and name not in _HIDDEN)
# Beyond these, scores overflow: an output of nonsense, or none.
LARGEST_NUMBER, SMALLEST_NUMBER = 100, 0.01
LARGEST_COUNT = 1_000_000


def read_options(fields: Mapping[str, Any], limits: Limits) -> GenerationArguments:
    """The options among the fields; null means that nothing is said. Their types are checked when they are used.

    Raises:
        InvalidRequestError: one is beyond the limits.
    """
    said = {name: fields[name] for name in REQUEST_OPTIONS if fields.get(name) is not None}
    for name, value in said.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            _check_limit(name, value, limits)
        elif isinstance(value, (list, dict)):
            raise InvalidRequestError(
                f"Invalid request: {name} is {json_type(value)}, not {option_info(name).allowed}", name
            )
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


def _check_limit(name: str, value: float, limits: Limits) -> None:
    """Refuse what is too large, and numbers too close to 0 or too far below it. Counts have minima of their own."""
    limit, limit_name = largest(name, limits)
    info, shown = option_info(name), str(value)[:40]
    if value > limit:
        raise InvalidRequestError(
            f"Invalid request: {name}={shown} exceeds the {limit} ({limit_name}) that are allowed", name
        )
    if info.kind == "number" and (0 < abs(value) < SMALLEST_NUMBER or value < -LARGEST_NUMBER):
        allowed = f"{SMALLEST_NUMBER} to {limit}"
        if not info.is_above_minimum:
            allowed = f"0, or {allowed}"
        if info.minimum is None:
            allowed += " above or below it"
        raise InvalidRequestError(f"Invalid request: {name}={shown} is not allowed: use {allowed}", name)
