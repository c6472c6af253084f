"""Families to test an engine with: what they compute differs most in a few, the others are part of `make check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spec2seq.backends.native import support
from tests.families import FAMILIES

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig

_DIFFERENT = ("marian", "bart", "m2m100", "t5_v1_1")


def marked_families() -> list[Any]:
    """Parameters for all families; converting a network takes a second."""
    return [name if name in _DIFFERENT else pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILIES]


def skip_without_own_steps(config: ModelConfig) -> None:
    """Elsewhere such a model runs as a graph, which other tests are about."""
    if not support.can_run(config):
        pytest.skip("steps of our own need a processor with AVX512-VNNI, and numba: pip install 'spec2seq[openvino]'")
