"""Access to OpenVINO and NNCF, which are optional."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from spec2seq.errors import MissingExtraError

INSTALL = "pip install 'spec2seq[openvino]'"


def is_installed() -> bool:
    """Whether OpenVINO is there, without loading it."""
    return find_spec("openvino") is not None


def load_openvino() -> Any:
    """The module `openvino`. Raises MissingExtraError."""
    return _load("openvino", "backend='openvino' needs OpenVINO, which is not installed")


def load_nncf() -> Any:
    """The module `nncf`. Raises MissingExtraError."""
    return _load("nncf", "dtype='int8' needs NNCF to convert the weights, and it is not installed")


def _load(name: str, reason: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"{reason}: {INSTALL}") from error
