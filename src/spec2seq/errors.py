"""The exceptions users may catch. Every message says what went wrong, with which value, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Spec2SeqError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line returns for it."""

    exit_code = 1


class OptionError(Spec2SeqError, ValueError):
    """An option is unknown, has a wrong value, or contradicts another one."""

    exit_code = 2


class InputError(Spec2SeqError, ValueError):
    """An input text, id list or file cannot be used as given."""

    exit_code = 2


class ModelNotFoundError(Spec2SeqError, FileNotFoundError):
    """There is no such model folder, or it lacks a file that is needed."""

    exit_code = 2


class UnsupportedModelError(Spec2SeqError):
    """The folder is a model, but of a family or with a setting that is not supported."""

    exit_code = 2


class CheckpointError(Spec2SeqError):
    """A weight or configuration file is damaged, incomplete, or not what its name says."""


class DrafterMismatchError(Spec2SeqError):
    """The drafter was made for another vocabulary or other special tokens than the verifier's."""

    exit_code = 2


class NumericsError(Spec2SeqError):
    """The model produced NaN or infinite scores for a request.

    `results` holds what the call would have returned: a result for every other input, None for the failed ones.
    """

    def __init__(self, message: str, results: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.results = list(results)


class MissingExtraError(Spec2SeqError, ImportError):
    """An optional dependency is not installed; the message holds the exact pip command."""

    exit_code = 2
