"""A decoder that is asked for pieces, and tells whose each token is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from spec2seq.errors import OptionError
from spec2seq.types import SourceBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.config import ModelConfig
    from spec2seq.decoding.loop import Decoder
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.pipelines.plans import Piece
    from spec2seq.tokenization import TargetStart
    from spec2seq.types import DecodedRequest, Emission

Owner = TypeVar("Owner")


@dataclass(frozen=True)
class PieceNews(Generic[Owner]):
    """What a round gave one piece.

    Attributes:
        owner: as it was given with the piece.
        emission: new tokens, those of a given target prefix not among them.
        outcome: of a piece that is finished, None before; its ids begin with the target prefix.
    """

    owner: Owner
    emission: Emission
    outcome: DecodedRequest | None


class PieceDecoder(Generic[Owner]):
    """Pieces in one decoder; they may join and leave at any time.

    Args:
        decoder: used by nobody else.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._entries: dict[int, tuple[Owner, list[int]]] = {}  # by request: whose it is, its target prefix

    @property
    def alive(self) -> bool:
        """Whether a step would still do or tell something."""
        return self.decoder.alive

    def add(self, pieces: Sequence[Piece], options: ResolvedOptions, owners: Sequence[Owner]) -> list[int]:
        """Queue one request per piece. Returns what to call them when they are to be cancelled.

        Raises:
            OptionError, InputError: a piece does not suit the model.
        """
        requests: list[int] = []
        # added group by group, so that each is padded to its own longest source
        for start in range(0, len(pieces), self.decoder.max_rows):
            requests += self._add(pieces[start : start + self.decoder.max_rows], options)
        for request, owner, piece in zip(requests, owners, pieces, strict=True):
            self._entries[request] = (owner, piece.target_prefix)
        return requests

    def step(self) -> list[PieceNews[Owner]]:
        """One round of the decoder. Returns what it told about pieces that were not cancelled."""
        news = []
        for emission in self.decoder.step():
            outcome = self.decoder.result(emission.request) if emission.finish_reason else None
            entry = self._entries.get(emission.request)
            if entry is None:
                continue
            owner, target_prefix = entry
            if outcome is not None:
                del self._entries[emission.request]
                outcome = _with_prefix(outcome, target_prefix)
            news.append(PieceNews(owner, emission, outcome))
        return news

    def cancel(self, request: int) -> None:
        """Stop one; nothing is told about it any more. Finished ones are ignored."""
        if self._entries.pop(request, None) is not None:
            self.decoder.cancel(request)

    def cancel_all(self) -> None:
        """Stop all that is not finished."""
        for request in list(self._entries):
            self.cancel(request)

    def _add(self, pieces: Sequence[Piece], options: ResolvedOptions) -> list[int]:
        config = self.decoder.verifier.config
        seeds = [piece.seed for piece in pieces if piece.seed is not None]
        states = [piece.encoder_states for piece in pieces if piece.encoder_states is not None]
        return self.decoder.add(
            SourceBatch.from_lists([piece.source_ids for piece in pieces], config.pad_token_id),
            options,
            prompts=[[decoder_start(piece.start, config), *piece.target_prefix] for piece in pieces],
            forced_first_tokens=[piece.start.forced_first for piece in pieces],
            seeds=seeds or None,
            encoder_states=states or None,
        )


def _with_prefix(outcome: DecodedRequest, target_prefix: list[int]) -> DecodedRequest:
    if not target_prefix:
        return outcome
    hypotheses = [replace(one, token_ids=target_prefix + one.token_ids) for one in outcome.hypotheses]
    return replace(outcome, hypotheses=hypotheses)


def decoder_start(start: TargetStart, config: ModelConfig) -> int:
    """The token that a row begins with.

    Raises:
        OptionError: it is a language code, and none was named.
    """
    token_id = config.decoder_start_token_id if start.decoder_start is None else start.decoder_start
    if token_id < 0:
        raise OptionError("this model starts its output with a language code; pass target_lang")
    return token_id
