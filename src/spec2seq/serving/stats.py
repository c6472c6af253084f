"""Statistics of decoding as they go over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec2seq.serving.schemas import DecodingStats

if TYPE_CHECKING:
    from spec2seq.types import RequestStats


def stats_of(stats: RequestStats) -> DecodingStats:
    """The figures that clients get."""
    return DecodingStats(**{name: getattr(stats, name) for name in DecodingStats.model_fields})
