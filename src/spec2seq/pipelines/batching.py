"""Running pieces through a decoder: longest source first, results as they come."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from spec2seq.errors import Spec2SeqError
from spec2seq.pipelines.piece_decoder import PieceDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spec2seq.decoding.loop import Decoder
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.pipelines.plans import Piece
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
    queue: PieceDecoder[int] = PieceDecoder(decoder)
    queue.add([pieces[i] for i in order], options, order)
    while queue.alive:
        for news in queue.step():
            if on_tokens is not None and news.emission.token_ids:
                on_tokens(news.owner, news.emission.token_ids)
            if news.outcome is not None:
                yield news.owner, news.outcome


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
