"""Access to OpenVINO and NNCF, which are optional."""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from spec2seq.errors import MissingExtraError

_NO_TELEMETRY = "NNCF_CI"  # read when the module is loaded

INSTALL = "pip install 'spec2seq[openvino]'"


def is_installed() -> bool:
    """Whether OpenVINO is there, without loading it."""
    return find_spec("openvino") is not None


def has_nncf() -> bool:
    """Whether NNCF, which rounds weights to int8, is there, without loading it."""
    return find_spec("nncf") is not None


def load_openvino() -> Any:
    """The module `openvino`. Raises MissingExtraError."""
    return _load("openvino", "backend='openvino' and dtype='int8' need OpenVINO, which is not installed")


@cache
def load_core() -> Any:
    """The one `openvino.Core` of the process, which lives as long as that.

    On processors with AMX, OpenVINO 2026.4 gives the thread that makes the first use of a Core a stack for signals, and
    takes it away with the Core. Where another Core was made in between, the thread is left with a stack that is gone,
    and the next signal, an interrupt say, ends the process with a segmentation fault.

    Raises:
        MissingExtraError: OpenVINO is not installed.
    """
    return load_openvino().Core()


def load_nncf() -> Any:
    """The module `nncf`, kept from telling its makers that it is used. Raises MissingExtraError."""
    said = os.environ.get(_NO_TELEMETRY)
    os.environ[_NO_TELEMETRY] = "1"
    try:
        nncf = _load("nncf", "dtype='int8' needs NNCF to convert the weights, and it is not installed")
    finally:
        if said is None:
            del os.environ[_NO_TELEMETRY]
        else:
            os.environ[_NO_TELEMETRY] = said
    nncf.set_log_level(logging.ERROR)
    return nncf


def _load(name: str, reason: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"{reason}: {INSTALL}") from error
