"""Checkpoints in Hugging Face's layout: their settings, their families, their tensors.

`load_model` needs torch, `read_model_config` does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spec2seq.weights.registry import read_model_config

if TYPE_CHECKING:
    from spec2seq.weights.loading import LoadedModel, load_model

__all__ = ["LoadedModel", "load_model", "read_model_config"]


def __getattr__(name: str) -> Any:
    if name in ("LoadedModel", "load_model"):
        from spec2seq.weights import loading

        return getattr(loading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
