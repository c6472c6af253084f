"""Running pieces through a decoder: longest source first, results as they come."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from spec2seq.errors import OptionError, Spec2SeqError
from spec2seq.types import SourceBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spec2seq.config import ModelConfig, ResolvedOptions
    from spec2seq.decoding.loop import Decoder
    from spec2seq.pipelines.plans import Piece
    from spec2seq.tokenization import TargetStart
    from spec2seq.types import DecodedRequest

# (index of a piece, ids that it got)
OnTokens = Callable[[int, list[int]], None]

# On a CPU a larger batch only outgrows the processor's cache; a GPU needs many rows to be busy.
MAX_ROWS_CPU, MAX_ROWS_GPU = 32, 256


def decode_pieces(
    decoder: Decoder, pieces: Sequence[Piece], options: ResolvedOptions, on_tokens: OnTokens | None = None
) -> Iterator[tuple[int, DecodedRequest]]:
    """Yield (index of the piece, its outcome) for every piece, in the order in which they finish.

    The ids of the outcome begin with the piece's target prefix. `on_tokens(index, token_ids)` is told what the pieces
    get, as they get it.

    Sorting by source length keeps the padding of a batch small; longest first, the batch that needs most memory comes
    before hours of work have gone into the others.
    """
    order = sorted(range(len(pieces)), key=lambda i: -len(pieces[i].source_ids))
    owners = dict(zip(add_pieces(decoder, [pieces[i] for i in order], options), order, strict=True))
    while decoder.alive:
        for emission in decoder.step():
            piece = owners[emission.request]
            if on_tokens is not None and emission.token_ids:
                on_tokens(piece, emission.token_ids)
            if emission.finish_reason:
                yield piece, _with_prefix(decoder.result(emission.request), pieces[piece].target_prefix)


def add_pieces(decoder: Decoder, pieces: Sequence[Piece], options: ResolvedOptions) -> list[int]:
    """Queue one request per piece; returns their ids."""
    requests = []
    # added group by group, so that each is padded to its own longest source
    for start in range(0, len(pieces), decoder.max_rows):
        requests += _add(decoder, pieces[start : start + decoder.max_rows], options)
    return requests


def _add(decoder: Decoder, pieces: Sequence[Piece], options: ResolvedOptions) -> list[int]:
    config = decoder.verifier.config
    seeds = [piece.seed for piece in pieces if piece.seed is not None]
    states = [piece.encoder_states for piece in pieces if piece.encoder_states is not None]
    return decoder.add(
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


def max_rows(num_beams: int, device: torch.device) -> int:
    """Most rows in one call of the model: what suits the device, and room for one beam search."""
    return max(MAX_ROWS_CPU if device.type == "cpu" else MAX_ROWS_GPU, num_beams)


@contextmanager
def explained_memory_errors(batch_tokens: int) -> Iterator[None]:
    """Turn a failed allocation into an error that says what to do about it."""
    try:
        yield
    except MemoryError as error:
        raise _out_of_memory(batch_tokens) from error
    except RuntimeError as error:
        # torch has a class of its own for this on a GPU only; on a CPU its allocator raises a plain RuntimeError
        text = str(error)
        if not ("allocate" in text or "out of memory" in text or isinstance(error, torch.OutOfMemoryError)):
            raise
        raise _out_of_memory(batch_tokens) from error


def _out_of_memory(batch_tokens: int) -> Spec2SeqError:
    return Spec2SeqError(
        f"not enough memory for batches of batch_tokens={batch_tokens}; use fewer, such as {batch_tokens // 4 or 1}"
    )
