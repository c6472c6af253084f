"""What the engine is asked for, and what it tells about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.pipelines.plans import InputPlan, TextOptions
    from spec2seq.pipelines.results import GenerationResult
    from spec2seq.types import Origin

# What is told before the end: nothing, text as soon as it is certain, or what every round gave.
Telling = Literal["nothing", "texts", "rounds"]


@dataclass(frozen=True)
class TextCall:
    """Texts to generate from; `text_options` and `arguments` as for `Pipeline.generate`."""

    texts: Sequence[str]
    text_options: TextOptions
    arguments: GenerationArguments
    telling: Telling = "nothing"


@dataclass(frozen=True)
class Accepted:
    """The call is valid, and is going to be decoded like this."""

    plans: Sequence[InputPlan]
    options: ResolvedOptions
    is_drafting: bool


@dataclass(frozen=True)
class TextPart:
    """The next part of the output for the text with this index; the parts, joined, are the output."""

    index: int
    text: str


@dataclass(frozen=True)
class RoundTokens:
    """What a round gave a piece. `texts` are what the tokens add to the piece's output; `seconds` are since the model
    began with the call; `piece` counts the pieces of all its texts."""

    piece: int
    round: int
    token_ids: list[int]
    texts: list[str]
    origins: list[Origin]
    seconds: float


@dataclass(frozen=True)
class Finished:
    """The end: a result for every text, what a user should be warned of, and the seconds since the model began."""

    results: list[GenerationResult]
    num_source_tokens: int
    seconds: float
    warnings: list[str] = field(default_factory=list)


Event = Accepted | TextPart | RoundTokens | Finished
