"""Drafters whose proposals are scripted: always right, always wrong, right now and then, or one token for ever."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from spec2seq.errors import InputError
from spec2seq.types import DraftBlock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from spec2seq.interfaces import Choose, EncoderOutput
    from spec2seq.types import Acceptance, DecoderOutput, Prefix, SourceBatch


class _RowDrafter(ABC):
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

    @abstractmethod
    def _continue(self, row: int, length: int, count: int) -> list[int]:
        """Up to `count` tokens to follow a prefix of `length` tokens, decoder start included."""

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
