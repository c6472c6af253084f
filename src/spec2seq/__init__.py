"""Exact speculative decoding for encoder-decoder Transformers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec2seq.errors import CheckpointError as CheckpointError
    from spec2seq.errors import DrafterMismatchError as DrafterMismatchError
    from spec2seq.errors import InputError as InputError
    from spec2seq.errors import MissingExtraError as MissingExtraError
    from spec2seq.errors import ModelNotFoundError as ModelNotFoundError
    from spec2seq.errors import NumericsError as NumericsError
    from spec2seq.errors import OptionError as OptionError
    from spec2seq.errors import Spec2SeqError as Spec2SeqError
    from spec2seq.errors import UnsupportedModelError as UnsupportedModelError
    from spec2seq.generation_options import GenerationOptions as GenerationOptions
    from spec2seq.generation_options import ResolvedOptions as ResolvedOptions
    from spec2seq.huggingface import TaskPipeline as TaskPipeline
    from spec2seq.huggingface import custom_generate as custom_generate
    from spec2seq.huggingface import pipeline as pipeline
    from spec2seq.pipelines import Alternative as Alternative
    from spec2seq.pipelines import GenerationResult as GenerationResult
    from spec2seq.pipelines import Pipeline as Pipeline
    from spec2seq.types import RequestStats as RequestStats

# where each public name lives; importing the package imports none of these
_HOMES = {
    "Alternative": "spec2seq.pipelines",
    "CheckpointError": "spec2seq.errors",
    "DrafterMismatchError": "spec2seq.errors",
    "GenerationOptions": "spec2seq.generation_options",
    "GenerationResult": "spec2seq.pipelines",
    "InputError": "spec2seq.errors",
    "MissingExtraError": "spec2seq.errors",
    "ModelNotFoundError": "spec2seq.errors",
    "NumericsError": "spec2seq.errors",
    "OptionError": "spec2seq.errors",
    "Pipeline": "spec2seq.pipelines",
    "RequestStats": "spec2seq.types",
    "ResolvedOptions": "spec2seq.generation_options",
    "Spec2SeqError": "spec2seq.errors",
    "TaskPipeline": "spec2seq.huggingface",
    "UnsupportedModelError": "spec2seq.errors",
    "custom_generate": "spec2seq.huggingface",
    "pipeline": "spec2seq.huggingface",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("spec2seq")
    if name not in _HOMES:
        raise AttributeError(f"module 'spec2seq' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
