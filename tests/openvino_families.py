"""Families to test an engine with: what they compute differs most in a few, the others are part of `make check`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.families import FAMILIES

_DIFFERENT = ("marian", "bart", "m2m100", "t5_v1_1")


def marked_families() -> list[Any]:
    """Parameters for all families; converting a network takes a second."""
    return [name if name in _DIFFERENT else pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILIES]
