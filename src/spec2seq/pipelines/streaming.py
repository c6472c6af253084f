"""Output while it is made: tokens for a streamer of transformers, text for a loop. Only what is verified is told."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol
from unicodedata import east_asian_width

import torch

from spec2seq.errors import InputError, NumericsError, OptionError
from spec2seq.pipelines.piece_decoder import PieceDecoder, decoder_start

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from contextlib import AbstractContextManager

    from spec2seq.config import ModelConfig
    from spec2seq.decoding.loop import Decoder
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.pipelines.batching import OnTokens
    from spec2seq.pipelines.piece_decoder import PieceNews
    from spec2seq.pipelines.plans import InputPlan, Piece

    DecodeIds = Callable[[Sequence[int]], str]

# A longer run of characters without white space is no word whose end could still change what precedes it.
_MAX_HELD = 32
# what decoders put for bytes that are no character yet
_HALF_CHARACTER = "\ufffd"


class TokenStreamer(Protocol):
    """What transformers' streamers are: `TextStreamer`, `TextIteratorStreamer`, or an object of one's own."""

    def put(self, value: torch.Tensor) -> None:
        """Token ids: first the prompt of the decoder [1, T], then what every round gave [n]."""

    def end(self) -> None:
        """There are no more."""


@contextmanager
def token_relay(
    streamer: TokenStreamer | None,
    pieces: Sequence[Piece],
    num_inputs: int,
    options: ResolvedOptions,
    config: ModelConfig,
) -> Iterator[OnTokens | None]:
    """Tell the streamer the prompt, and give out what passes it the tokens; its end comes even if decoding fails.

    Raises:
        OptionError: beam search, or several samples.
        InputError: several inputs, or one that is decoded in several pieces.
    """
    if streamer is None:
        yield None
        return
    if not callable(getattr(streamer, "put", None)) or not callable(getattr(streamer, "end", None)):
        raise OptionError(
            f"streamer={streamer!r} has no put and end; give a TextStreamer, or an object with these methods"
        )
    check_streamable(options, "streamer")
    if num_inputs != 1 or len(pieces) > 1:
        found = f"{num_inputs} inputs" if num_inputs != 1 else f"an input that is decoded in {len(pieces)} pieces"
        raise InputError(f"a streamer takes one input in one piece, and this call has {found}; use Pipeline.stream")
    try:
        for piece in pieces:
            streamer.put(torch.tensor([[decoder_start(piece.start, config), *piece.target_prefix]]))
        yield lambda _, token_ids: streamer.put(torch.tensor(token_ids))
    finally:
        streamer.end()


def check_streamable(options: ResolvedOptions, name: str) -> None:
    """Raises OptionError where the output is known only at the end, or is more than one."""
    if options.num_beams > 1:
        raise OptionError(
            f"{name} does not go with num_beams={options.num_beams}: beam search knows its output only at the end; "
            "pass num_beams=1"
        )
    if options.num_return_sequences > 1:
        raise OptionError(
            f"{name} does not go with num_return_sequences={options.num_return_sequences}: one output is streamed; "
            "pass num_return_sequences=1"
        )


class _ToldText:
    """The text of token ids that keep coming, and how much of it was told."""

    def __init__(self, decode: DecodeIds) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._told = ""

    def _news(self, text: str) -> str:
        if len(text) <= len(self._told):
            return ""
        news = text[len(self._told) :]
        self._told = text
        return news


class GrowingText(_ToldText):
    """The text of token ids that keep coming, given out as far as later ids will not change it.

    A word is held until white space or the next wide character (Chinese, Japanese, Korean) follows, white space until a
    word follows: what comes next may still belong to the word, or take the space before it away. What the last id alone
    has changed is held too: it may be a part of a character.
    """

    def push(self, token_ids: Sequence[int]) -> str:
        """Take in ids; returns the text that is certain now and was not given before."""
        if not token_ids:
            return ""
        self._ids.extend(token_ids)
        agreed = _common_start(self._decode(self._ids[:-1]), self._decode(self._ids))
        return self._news(agreed[: _num_settled(agreed)])

    def finish(self) -> str:
        """The rest, when no more ids come."""
        return self._news(self._decode(self._ids))


class TokenTexts(_ToldText):
    """What every token adds to the text of an output; joined, they are the text.

    A token that ends within a character adds nothing, the one that completes the character adds all of it.
    """

    def push(self, token_ids: Sequence[int], is_finished: bool) -> list[str]:
        """Take in ids; returns one text for each. `is_finished`: there will be no more."""
        news = [self._add(token_id) for token_id in token_ids]
        if news and is_finished:
            news[-1] += self._news(self._decode(self._ids))
        return news

    def _add(self, token_id: int) -> str:
        self._ids.append(token_id)
        return self._news(self._decode(self._ids).rstrip(_HALF_CHARACTER))


def _common_start(one: str, other: str) -> str:
    differing = (i for i, (mine, its) in enumerate(zip_longest(one, other)) if mine != its)
    return one[: next(differing, len(one))]


def _num_settled(text: str) -> int:
    """How many leading characters stay as they are whatever follows."""
    end = len(text)
    while end and not text[end - 1].isspace() and east_asian_width(text[end - 1]) not in "WF":
        end -= 1
    end = len(text[:end].rstrip())
    return max(end, len(text) - _MAX_HELD)


class StreamedInput:
    """The text of one input: its pieces one after another, with what lies between them."""

    def __init__(self, plan: InputPlan, decode: DecodeIds) -> None:
        self._separators = plan.split.separators
        self._texts = [GrowingText(decode) for _ in plan.pieces]
        self._waiting = [list(piece.target_prefix) for piece in plan.pieces]
        self._is_finished = [False] * len(plan.pieces)
        self._place = 0

    def begin(self) -> str:
        """What is certain before anything was decoded."""
        return self._separators[0] + self._advance()

    def take(self, place: int, token_ids: Sequence[int], is_finished: bool) -> str:
        """Take in what a piece got; returns the text that may be told now."""
        self._waiting[place].extend(token_ids)
        self._is_finished[place] = is_finished
        return self._advance()

    def _advance(self) -> str:
        news = ""
        while self._place < len(self._texts):
            place = self._place
            news += self._texts[place].push(self._waiting[place])
            self._waiting[place] = []
            if not self._is_finished[place]:
                break
            news += self._texts[place].finish() + self._separators[place + 1]
            self._place += 1
        return news


def stream_texts(
    decoder: Decoder,
    plans: Sequence[InputPlan],
    options: ResolvedOptions,
    decode: DecodeIds,
    turn: Callable[[], AbstractContextManager[None]],
    label: Callable[[int], str],
) -> Generator[tuple[int, str], None, None]:
    """Yield (index of the input, next part of its text) until all is told; closing it cancels what is not done.

    The parts of an input, joined, are its final text. No part is empty.

    Args:
        decoder: used by nobody else meanwhile.
        plans: one per input.
        options: greedy search or sampling of one output.
        decode: token ids to text.
        turn: what must hold while the model works; not while the caller looks at a part.
        label: what messages call an input.

    Raises:
        NumericsError: the model failed on an input.
    """
    inputs = [StreamedInput(plan, decode) for plan in plans]
    places = [(i, place) for i, plan in enumerate(plans) for place in range(len(plan.pieces))]
    pieces = [piece for plan in plans for piece in plan.pieces]
    queue: PieceDecoder[tuple[int, int]] = PieceDecoder(decoder)
    with turn():
        queue.add(pieces, options, places)
        news = [(i, one.begin()) for i, one in enumerate(inputs)]
    try:
        yield from ((i, text) for i, text in news if text)
        while queue.alive:
            with turn():
                news = [_told(one, inputs, label) for one in queue.step()]
            yield from ((i, text) for i, text in news if text)
    finally:
        queue.cancel_all()


def _told(
    news: PieceNews[tuple[int, int]], inputs: Sequence[StreamedInput], label: Callable[[int], str]
) -> tuple[int, str]:
    """What news about a piece add to the text of its input."""
    index, place = news.owner
    if news.outcome is not None and news.outcome.error:
        raise NumericsError(f"{label(index)}: {news.outcome.error}")
    return index, inputs[index].take(place, news.emission.token_ids, news.outcome is not None)


def only_texts(stream: Generator[tuple[int, str], None, None]) -> Generator[str, None, None]:
    """The parts of a stream of one input."""
    try:
        for _, text in stream:
            yield text
    finally:
        stream.close()
