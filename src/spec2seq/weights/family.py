"""What the loader must know of a family: how its settings read, and where its tensors go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spec2seq.config import ModelConfig
    from spec2seq.weights.settings import Settings


@dataclass(frozen=True)
class Slot:
    """The place of a stored tensor: part `part` of `parts` equal parts of the rows of one of our parameters."""

    parameter: str
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    Attributes:
        read_config: settings to ModelConfig.
        slots: place of every stored tensor, embeddings apart.
        ignored: stored tensors that are left out, and why.
    """

    read_config: Callable[[Settings], ModelConfig]
    slots: Callable[[ModelConfig], dict[str, Slot]]
    ignored: Mapping[str, str] = field(default_factory=dict)
