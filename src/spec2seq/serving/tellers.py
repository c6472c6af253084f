"""What a caller is told while its pieces are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spec2seq.pipelines.streaming import StreamedInput, TokenTexts
from spec2seq.serving.calls import RoundTokens, TextPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.pipelines.plans import InputPlan
    from spec2seq.pipelines.streaming import DecodeIds
    from spec2seq.serving.calls import Event, Telling
    from spec2seq.types import Emission


class Teller(Protocol):
    """Makes events of what the pieces get."""

    def begin(self) -> Sequence[Event]:
        """What can be told before anything was decoded."""

    def take(self, piece: int, emission: Emission, seconds: float) -> Sequence[Event]:
        """What a piece, counted through all texts, got `seconds` after the model began."""


def make_teller(telling: Telling, plans: Sequence[InputPlan], decode: DecodeIds) -> Teller:
    """The teller of a call with these plans; `decode` makes text of token ids."""
    if telling == "texts":
        return TextTeller(plans, decode)
    if telling == "rounds":
        return RoundTeller(plans, decode)
    return SilentTeller()


class SilentTeller:
    """Tells nothing before the end."""

    def begin(self) -> Sequence[Event]:
        return ()

    def take(self, piece: int, emission: Emission, seconds: float) -> Sequence[Event]:
        return ()


class TextTeller:
    """Tells text as soon as it is certain, in the order of the text."""

    def __init__(self, plans: Sequence[InputPlan], decode: DecodeIds) -> None:
        self._inputs = [StreamedInput(plan, decode) for plan in plans]
        self._places = [(i, place) for i, plan in enumerate(plans) for place in range(len(plan.pieces))]

    def begin(self) -> Sequence[Event]:
        return _parts([(i, one.begin()) for i, one in enumerate(self._inputs)])

    def take(self, piece: int, emission: Emission, seconds: float) -> Sequence[Event]:
        index, place = self._places[piece]
        text = self._inputs[index].take(place, emission.token_ids, bool(emission.finish_reason))
        return _parts([(index, text)])


def _parts(news: Sequence[tuple[int, str]]) -> list[Event]:
    return [TextPart(index, text) for index, text in news if text]


class RoundTeller:
    """Tells what every round gave."""

    def __init__(self, plans: Sequence[InputPlan], decode: DecodeIds) -> None:
        self._texts = [TokenTexts(decode) for plan in plans for _ in plan.pieces]

    def begin(self) -> Sequence[Event]:
        return ()

    def take(self, piece: int, emission: Emission, seconds: float) -> Sequence[Event]:
        if not emission.token_ids:
            return ()
        texts = self._texts[piece].push(emission.token_ids, bool(emission.finish_reason))
        return [RoundTokens(piece, emission.round, emission.token_ids, texts, emission.origins, seconds)]
