"""What one option may be: its default, help text and allowed values, stated once for calls, flags and docs."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from spec2seq.errors import OptionError

Kind = Literal["count", "number", "flag", "ids", "row_ids", "words", "early_stopping", "draft_tokens"]

_LONGEST_SHOWN = 80


@dataclass(frozen=True)
class OptionInfo:
    """Everything there is to say about one option.

    Attributes:
        kind: "count" (integer), "number" (finite float), "flag" (bool), "ids" (one token id or a list of them),
            "row_ids" (one token id, or a list with one per input), "words" (a list of token id lists),
            "early_stopping" (bool or "never"), "draft_tokens" (integer or "auto").
        default: the value when nobody says one, as a user would pass it; None where the model or nothing decides.
        help: one sentence for --help and the docs.
        minimum: smallest allowed count or number, None when there is none.
        is_above_minimum: the minimum itself is not allowed.
        maximum: largest allowed count or number, None when there is none; there is a minimum too, and it is allowed.
    """

    kind: Kind
    default: Any
    help: str
    minimum: int | None = None
    is_above_minimum: bool = False
    maximum: int | None = None

    @property
    def allowed(self) -> str:
        """The allowed values in words, as in "an integer of at least 1"."""
        bound = "" if self.minimum is None else f" {'above' if self.is_above_minimum else 'of at least'} {self.minimum}"
        bound = bound if self.maximum is None else f" from {self.minimum} to {self.maximum}"
        return {
            "count": f"an integer{bound}",
            "number": f"a finite number{bound}",
            "flag": "True or False",
            "ids": "a token id or a list of token ids",
            "row_ids": "a token id, or a list with one token id per input",
            "words": "a list, not empty, of lists of token ids, not empty either",
            "early_stopping": 'True, False or "never"',
            "draft_tokens": f'an integer{bound}, or "auto"',
        }[self.kind]

    def checked(self, name: str, value: object) -> object:
        """`value` in its stored form: int, float, bool, str, or tuples of token ids.

        Raises:
            OptionError: the value has another type or lies outside the range.
        """
        try:
            return self._stored(value)
        except (TypeError, ValueError, OverflowError):
            raise OptionError(f"{name}={shortened(value)} is not allowed: it must be {self.allowed}") from None

    def _stored(self, value: object) -> object:
        if self.kind == "count":
            return self._within(_integer(value))
        if self.kind == "number":
            return self._within(_finite(value))
        if self.kind == "draft_tokens":
            return value if value == "auto" else self._within(_integer(value))
        if self.kind == "flag" or (self.kind == "early_stopping" and value != "never"):
            return _flag(value)
        if self.kind == "ids":
            return _ids(value) if _is_list(value) else (_token_id(value),)
        if self.kind == "row_ids":
            return _ids(value) if _is_list(value) else _token_id(value)
        return _words(value) if self.kind == "words" else value

    def _within(self, number: float) -> float:
        if self.minimum is not None and (number < self.minimum or (self.is_above_minimum and number == self.minimum)):
            raise ValueError(number)
        if self.maximum is not None and number > self.maximum:
            raise ValueError(number)
        return number


def shortened(value: object) -> str:
    """`repr` of a value for a message, cut where it is long."""
    shown = repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


def _is_list(value: object) -> bool:
    # A 0-dimensional array has __iter__ as well, but is one number.
    return isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1) != 0


def _integer(value: object) -> int:
    if isinstance(value, bool):
        raise TypeError(value)
    return operator.index(value)  # type: ignore[arg-type]  # raises TypeError for everything that is no integer


def _finite(value: object) -> float:
    if isinstance(value, (bool, str)):
        raise TypeError(value)
    number = float(value)  # type: ignore[arg-type]  # raises TypeError for everything that is no number
    if not math.isfinite(number):
        raise ValueError(number)
    return number


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _token_id(value: object) -> int:
    token_id = _integer(value)
    if token_id < 0:
        raise ValueError(token_id)
    return token_id


def _ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise TypeError(value)
    return tuple(_token_id(item) for item in value)


def _words(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, Iterable) or isinstance(value, str):
        raise TypeError(value)
    words = tuple(_ids(word) for word in value)
    if not words or not all(words):
        raise ValueError(value)
    return words
