"""What a request says about its texts: languages, prefixes, what is done with long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spec2seq.pipelines.arguments import LONG_INPUT_CHOICES
from spec2seq.pipelines.plans import TextOptions
from spec2seq.serving.fields import read_prefix, read_string
from spec2seq.serving.languages import AUTO, Direction
from spec2seq.serving.refusals import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec2seq.pipelines.arguments import LongInput
    from spec2seq.serving.service import Service


def read_text_options(fields: Mapping[str, Any], service: Service) -> TextOptions:
    """The fields source, target, source_prefix, target_prefix and long_input, where they are there.

    Raises:
        InvalidRequestError: one has the wrong type, is too long, or names a language that is not served.
    """
    settings, limits = service.settings, service.limits
    source_prefix = read_prefix(fields, "source_prefix", limits)
    direction = _direction(fields, service)
    return TextOptions(
        direction.source_lang,
        direction.target_lang,
        settings.source_prefix if source_prefix is None else source_prefix,
        _long_input(fields) or settings.long_input,
        target_prefix=read_prefix(fields, "target_prefix", limits),
    )


def _direction(fields: Mapping[str, Any], service: Service) -> Direction:
    """Models without languages take no codes, or the codes that they are served under."""
    source, target = read_string(fields, "source", AUTO), read_string(fields, "target")
    if service.languages.is_empty and target is None:
        return Direction()
    return service.languages.direction(source or AUTO, target)


def _long_input(fields: Mapping[str, Any]) -> LongInput | None:
    value = read_string(fields, "long_input")
    if value is not None and value not in LONG_INPUT_CHOICES:
        raise InvalidRequestError(
            f"Invalid request: long_input={value[:40]} is not allowed: use one of {', '.join(LONG_INPUT_CHOICES)}",
            "long_input",
        )
    return value
