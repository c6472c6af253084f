"""Stand-ins for models and drafters, for the tests of whoever builds on the loop.

`TableVerifier` answers like a model at the cost of a hash, and fails loudly when it is fed wrong slots or positions.
The drafters propose text that is always right, always wrong, right now and then, or one token for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.nn import functional

from spec2seq.config import ModelConfig
from spec2seq.errors import InputError
from spec2seq.types import DecoderOutput, DraftBlock, TensorScores

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spec2seq.interfaces import Cache, Choose, EncoderOutput
    from spec2seq.types import Acceptance, Prefix, SourceBatch, Wanted

_EMPTY = -1  # content of a cache slot that nothing was written to

# odd multipliers of a 64-bit mixing hash, as signed integers
_MIX_A = -0x61C8864680B583EB
_MIX_B = -0x3D4D51C2D82B14B1


def tiny_config(
    *,
    vocab_size: int = 50,
    max_positions: int | None = 128,
    shares_vocabulary: bool = True,
    pad_token_id: int = 1,
    decoder_start_token_id: int = 2,
    eos_token_ids: tuple[int, ...] = (2,),
) -> ModelConfig:
    """A valid configuration of two layers and width 16, with BART's special tokens unless told otherwise."""
    return ModelConfig(
        family="bart",
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_heads=2,
        decoder_heads=2,
        head_dim=8,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        activation="gelu",
        positions="learned",
        pad_token_id=pad_token_id,
        decoder_start_token_id=decoder_start_token_id,
        eos_token_ids=eos_token_ids,
        max_source_positions=max_positions,
        max_target_positions=max_positions,
        shares_vocabulary=shares_vocabulary,
    )


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


class _RowDrafter:
    """What all stand-ins for drafters share: they know the source of each row and check that the loop keeps step."""

    hidden_layers: tuple[int, ...] = ()
    default_num_draft_tokens = 5
    max_draft_tokens: int | None = None

    def __init__(self) -> None:
        self.sources: list[tuple[int, ...]] = []

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        for row, length in zip(source.ids.tolist(), source.lengths.tolist(), strict=True):
            self.sources.append(tuple(row[:length]))

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        self._check_rows(prefix)
        lengths = prefix.lengths.tolist()
        rows = [self._continue(row, length, num_draft_tokens) for row, length in enumerate(lengths)]
        tokens = torch.zeros((len(rows), num_draft_tokens), dtype=torch.long)
        for row, proposed in enumerate(rows):
            tokens[row, : len(proposed)] = torch.tensor(proposed, dtype=torch.long)
        device = prefix.ids.device
        return DraftBlock(tokens.to(device), torch.tensor([len(proposed) for proposed in rows], device=device))

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        self._check_rows(prefix)
        if len(acceptance.num_accepted) != len(self.sources):
            raise AssertionError(f"{len(acceptance.num_accepted)} rows accepted, {len(self.sources)} were drafted for")

    def select_rows(self, rows: Tensor) -> None:
        self.sources = [self.sources[row] for row in rows.tolist()]

    def _continue(self, row: int, length: int, count: int) -> list[int]:
        """Up to `count` tokens to follow a prefix of `length` tokens, decoder start included."""
        raise NotImplementedError

    def _check_rows(self, prefix: Prefix) -> None:
        if len(prefix.lengths) != len(self.sources):
            raise AssertionError(f"{len(prefix.lengths)} rows of prefixes, {len(self.sources)} sources were given")


class OracleDrafter(_RowDrafter):
    """Proposes what `outputs` says of each source, whatever the prefix: always right when they are the true outputs.

    Args:
        outputs: source ids without padding -> target ids after the decoder start token, EOS included.
    """

    def __init__(self, outputs: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        super().__init__()
        self.outputs = outputs

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """As `Drafter.start`. Raises InputError for a source without an output."""
        super().start(source, encoded)
        for ids in self.sources:
            if ids not in self.outputs:
                raise InputError(f"no output known for source {list(ids)}; the keys are source ids without padding")

    def _continue(self, row: int, length: int, count: int) -> list[int]:
        return list(self.outputs[self.sources[row]][length - 1 : length - 1 + count])


class WrongDrafter(OracleDrafter):
    """Proposes the id after the right one, modulo `vocab_size`: nothing is ever accepted."""

    def __init__(self, outputs: Mapping[tuple[int, ...], Sequence[int]], vocab_size: int = 50) -> None:
        super().__init__(outputs)
        self.vocab_size = vocab_size

    def _continue(self, row: int, length: int, count: int) -> list[int]:
        return [(token + 1) % self.vocab_size for token in super()._continue(row, length, count)]


class RandomDrafter(_RowDrafter):
    """Proposes 0..k random ids per row; with `outputs`, each one is the right one at probability `chance`."""

    def __init__(
        self,
        seed: int = 0,
        *,
        vocab_size: int = 50,
        outputs: Mapping[tuple[int, ...], Sequence[int]] | None = None,
        chance: float = 0.7,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.outputs = outputs or {}
        self.chance = chance
        self._generator = torch.Generator().manual_seed(seed)

    def _continue(self, row: int, length: int, count: int) -> list[int]:
        num_tokens = int(torch.randint(count + 1, (), generator=self._generator))
        tokens: list[int] = torch.randint(self.vocab_size, (num_tokens,), generator=self._generator).tolist()
        is_right = (torch.rand(num_tokens, generator=self._generator) < self.chance).tolist()
        right = self.outputs.get(self.sources[row], [])[length - 1 : length - 1 + num_tokens]
        for i, token in enumerate(right):
            tokens[i] = token if is_right[i] else tokens[i]
        return tokens


class ConstantDrafter(_RowDrafter):
    """Proposes one token over and over: EOS, pad, or whatever else should do no harm."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = token

    def _continue(self, row: int, length: int, count: int) -> list[int]:
        return [self.token] * count


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
