"""A verifier that is a hash: its answers depend on all that a model's would, and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.nn import functional

from spec2seq.errors import InputError
from spec2seq.testing.configs import tiny_config
from spec2seq.types import DecoderOutput, TensorScores

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.interfaces import Cache, EncoderOutput
    from spec2seq.types import SourceBatch, Wanted

_EMPTY = -1  # content of a cache slot that nothing was written to

# odd multipliers of a 64-bit mixing hash, as signed integers
_MIX_A = -0x61C8864680B583EB
_MIX_B = -0x3D4D51C2D82B14B1


@dataclass
class TableEncoderOutput:
    """Sources of a `TableVerifier`: ids in every component of hidden [B, S, D], lengths [B], and a number [B] that
    depends on each source's content, not on its padding."""

    hidden: Tensor
    lengths: Tensor
    keys: Tensor

    def select_rows(self, rows: Tensor) -> Self:
        return type(self)(self.hidden[rows], self.lengths[rows], self.keys[rows])

    def concat(self, other: Self) -> Self:
        width = max(self.hidden.shape[1], other.hidden.shape[1])
        hidden = [functional.pad(x.hidden, (0, 0, 0, width - x.hidden.shape[1])) for x in (self, other)]
        lengths, keys = torch.cat([self.lengths, other.lengths]), torch.cat([self.keys, other.keys])
        return type(self)(torch.cat(hidden), lengths, keys)


class TableCache:
    """Tokens and positions written to each slot [B, T]. Changed in place, as the caches of engines may be."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.tokens = torch.full((num_rows, 0), _EMPTY)
        self.positions = torch.full((num_rows, 0), _EMPTY)

    def select_rows(self, rows: Tensor) -> Self:
        self.tokens, self.positions, self.num_rows = self.tokens[rows], self.positions[rows], len(rows)
        return self

    def append_rows(self, count: int) -> Self:
        self.tokens = functional.pad(self.tokens, (0, 0, 0, count), value=_EMPTY)
        self.positions = functional.pad(self.positions, (0, 0, 0, count), value=_EMPTY)
        self.num_rows += count
        return self

    def write(self, tokens: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Put tokens and positions [B, n] into slots [B, n], growing as needed."""
        missing = int(slots.max()) + 1 - self.tokens.shape[1]
        if missing > 0:
            self.tokens = functional.pad(self.tokens, (0, missing), value=_EMPTY)
            self.positions = functional.pad(self.positions, (0, missing), value=_EMPTY)
        self.tokens.scatter_(1, slots, tokens)
        self.positions.scatter_(1, slots, positions)


class TableVerifier:
    """A verifier whose scores are a fixed pseudo-random function of the source and the target tokens it can see.

    It keeps real slots per row, so stale, misplaced and missing entries change its answers, and a query that does not
    see every position up to its own exactly once is refused.

    Args:
        config: sizes and special tokens; `tiny_config()` by default.
        seed: another seed is another model.
        context: how many of the last target tokens the scores depend on. A small number makes repetitive text, which
            copying drafters guess well; None means all of them, which notices every wrong slot.
        spread: scores lie evenly in 0..spread.
    """

    def __init__(
        self, config: ModelConfig | None = None, *, seed: int = 0, context: int | None = 2, spread: float = 8.0
    ) -> None:
        self.config = config or tiny_config()
        self.device = torch.device("cpu")
        self.seed = seed
        self.context = context
        self.spread = spread
        self.num_calls = 0  # of decode

    def encode(self, source: SourceBatch) -> TableEncoderOutput:
        limit = self.config.max_source_positions
        if limit is not None and source.ids.shape[1] > limit:
            raise InputError(f"source of {source.ids.shape[1]} tokens exceeds {limit} positions; shorten it")
        return self.from_encoder(source.ids[..., None].expand(-1, -1, self.config.d_model).float(), source.lengths)

    def from_encoder(self, hidden: Tensor, lengths: Tensor) -> TableEncoderOutput:
        places = torch.arange(hidden.shape[1])
        content = _mix(hidden[..., 0].long(), places).masked_fill(places >= lengths[:, None], 0).sum(-1)
        return TableEncoderOutput(hidden, lengths, _mix(content, lengths + self.seed))

    def new_cache(self, num_rows: int) -> TableCache:
        return TableCache(num_rows)

    def decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        lengths: Tensor,
        cache: Cache,
        encoded: EncoderOutput,
        wanted: Wanted,
        *,
        queries: Tensor | None = None,
        slots: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> DecoderOutput:
        """As `Verifier.decode`. Raises AssertionError for rows that do not fit together and for a
        prefix with holes."""
        self.num_calls += 1
        if not isinstance(cache, TableCache) or not isinstance(encoded, TableEncoderOutput):
            raise TypeError(f"{type(cache).__name__} and {type(encoded).__name__} are not from this verifier")
        if not len(tokens) == len(encoded.lengths) == cache.num_rows:
            raise AssertionError(f"{len(tokens)} rows, {len(encoded.lengths)} sources, {cache.num_rows} cached rows")
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.config.target_vocab_size:
            raise AssertionError(f"ids {int(tokens.min())}..{int(tokens.max())} are not in the vocabulary")
        cache.write(tokens, positions, positions if slots is None else slots)
        if visible is None:
            visible = torch.arange(cache.tokens.shape[1]) <= positions[..., None]
        seen = functional.pad(visible, (0, cache.tokens.shape[1] - visible.shape[2]))
        is_real = torch.arange(tokens.shape[1]) < lengths[:, None]
        _check_prefixes(cache.positions, seen, positions, is_real)
        states = self._states(cache, encoded, seen, positions)
        asked = states if queries is None else states.gather(1, queries)
        return DecoderOutput(self._scores(asked, wanted), self._hidden(states, wanted))

    def _states(self, cache: TableCache, encoded: TableEncoderOutput, seen: Tensor, positions: Tensor) -> Tensor:
        """One number per query [B, n] that depends on all it may look at, wherever that lies in the cache."""
        ages = positions[..., None] - cache.positions[:, None, :]
        if self.context is not None:
            seen = seen & (ages < self.context)
        content = _mix(cache.tokens[:, None, :], ages).masked_fill(~seen, 0).sum(-1)
        return _mix(content, encoded.keys[:, None])

    def _hidden(self, states: Tensor, wanted: Wanted) -> Tensor | None:
        """Something [B, n, layers, D] to learn from, when it is wanted."""
        if not wanted.hidden_layers:
            return None
        width = self.config.d_model
        cells = torch.tensor(wanted.hidden_layers)[:, None] * width + torch.arange(width)
        return _uniform(_mix(states[..., None, None], cells))

    def _scores(self, states: Tensor, wanted: Wanted) -> TensorScores:
        values = _uniform(_mix(states[..., None], torch.arange(self.config.target_vocab_size))) * self.spread
        values[..., list(wanted.banned)] = -torch.inf
        return TensorScores(values)


def _check_prefixes(written: Tensor, seen: Tensor, positions: Tensor, is_real: Tensor) -> None:
    """Refuse a real query that does not see each of the positions 0..its own exactly once.

    Args:
        written: [B, T] position last written to each slot.
        seen: [B, n, T] which slots a query sees.
        positions: [B, n] of the queries.
        is_real: [B, n] which queries count.
    """
    in_order = written[:, None, :].masked_fill(~seen, torch.iinfo(torch.long).max).sort(-1).values
    expected = torch.arange(in_order.shape[2])
    is_right = torch.where(expected <= positions[..., None], in_order == expected, in_order > expected).all(-1)
    is_right &= positions < in_order.shape[2]
    if bool((is_right | ~is_real).all()):
        return
    row, query = (is_real & ~is_right).nonzero()[0].tolist()
    found = written[row][seen[row, query]].tolist()
    raise AssertionError(f"row {row}: the query at position {int(positions[row, query])} sees positions {found}")


def _mix(state: Tensor, value: Tensor) -> Tensor:
    """Pseudo-random int64 from two int64 tensors, broadcast."""
    mixed = (state + value * _MIX_A) * _MIX_B
    mixed = (mixed ^ (mixed >> 29)) * _MIX_A
    return mixed ^ (mixed >> 32)


def _uniform(state: Tensor) -> Tensor:
    """Pseudo-random fp32 in 0..1 from int64."""
    return (state & 0xFFFFFF).float() / 0x1000000
