"""Running pieces through a decoder: longest source first, results as they come."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from spec2seq.errors import Spec2SeqError
from spec2seq.types import SourceBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spec2seq.config import ResolvedOptions
    from spec2seq.decoding.loop import Decoder
    from spec2seq.pipelines.plans import Piece
    from spec2seq.types import DecodedRequest

MAX_ROWS = 64


def decode_pieces(
    decoder: Decoder, pieces: Sequence[Piece], options: ResolvedOptions
) -> Iterator[tuple[int, DecodedRequest]]:
    """Yield (index of the piece, its outcome) for every piece, in the order in which they finish.

    Sorting by source length keeps the padding of a batch small; longest first, the batch that needs most memory comes
    before hours of work have gone into the others.
    """
    order = sorted(range(len(pieces)), key=lambda i: -len(pieces[i].source_ids))
    owners: dict[int, int] = {}
    for start in range(0, len(order), MAX_ROWS):
        group = order[start : start + MAX_ROWS]
        owners.update(zip(_add(decoder, [pieces[i] for i in group], options), group, strict=True))
    while decoder.alive:
        for emission in decoder.step():
            if emission.finish_reason:
                yield owners[emission.request], decoder.result(emission.request)


def _add(decoder: Decoder, pieces: Sequence[Piece], options: ResolvedOptions) -> list[int]:
    config = decoder.verifier.config
    starts = [piece.start for piece in pieces]
    default_start = config.decoder_start_token_id
    return decoder.add(
        SourceBatch.from_lists([piece.source_ids for piece in pieces], config.pad_token_id),
        options,
        prompts=[[default_start if start.decoder_start is None else start.decoder_start] for start in starts],
        forced_first_tokens=[start.forced_first for start in starts],
    )


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
