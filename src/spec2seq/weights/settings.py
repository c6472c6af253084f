"""Typed look-ups in a config.json, with the defaults of the family's class in transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spec2seq.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec2seq.config import Activation

_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Settings:
    """A config.json, and the generation settings that go before it where both name a token.

    Each method returns one setting, `default` where the file is silent, and raises CheckpointError where the value has
    the wrong type.
    """

    config: Mapping[str, Any]
    generation: Mapping[str, Any]

    @property
    def family(self) -> str:
        return str(self.config["model_type"])

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.config.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise CheckpointError(f"config.json: {name} must be an integer, not {value!r}; restore the file")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"config.json: {name} must be true or false, not {value!r}; restore the file")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.config.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise CheckpointError(f"config.json: {name} must be a number, not {value!r}; restore the file")
        return float(value)

    def activation(self, name: object) -> Activation:
        """The activation function that transformers calls `name`.

        Raises:
            UnsupportedModelError: it is none of ours.
        """
        if not isinstance(name, str) or name not in _ACTIVATIONS:
            raise UnsupportedModelError(
                f"activation {name!r} of this {self.family} model is not supported; "
                f"supported: {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[name]

    def decoder_start(self, default: int | None, fallback: str | None = "bos_token_id") -> int:
        """decoder_start_token_id, where it is null the token named `fallback`, where that is null too -1."""
        names = ("decoder_start_token_id", fallback) if fallback else ("decoder_start_token_id",)
        config = {"decoder_start_token_id": default, **self.config}
        values = [source.get(name) for name in names for source in (self.generation, config)]
        return next((value for value in values if isinstance(value, int)), -1)

    def ends(self, default: int) -> tuple[int, ...]:
        """eos_token_id as a tuple; empty where it is null."""
        value = self.generation.get("eos_token_id", self.config.get("eos_token_id", default))
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token, int) for token in values):
            raise CheckpointError(f"eos_token_id must be one id or a list of ids, not {value!r}; restore the file")
        return tuple(values)
