"""The random numbers of sampling: a hash of what they are for, so that they depend on nothing else.

No generator is advanced. A row's numbers follow from its seed, its sample index and the number of tokens it has
generated; who else is in the batch, in which order, and what was drawn before does not matter.

Source: the mixing function of SplitMix64 (Steele, Lea, Flood 2014), absorbing one word after another.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

# 64-bit constants of SplitMix64 as signed integers; torch's int64 products wrap around as unsigned ones do
_STEP = -0x61C8864680B583EB
_FACTOR_A = -0x40A7B892E31B1A47
_FACTOR_B = -0x6B2FB644ECCEEE15

# what a number is for; numbers for different purposes are independent
_GUMBEL, _JUDGE, _DRAW, _DRAFT = range(4)

# few enough that 1 - 2 ** -49 times a float64 total stays below that total
_NUM_BITS = 48
# seeds that survive a trip through JSON, where integers may be read as float64
_NUM_SEED_BITS = 53


def fresh_seed() -> int:
    """A seed nobody can guess, below 2 ** 53. The generators of torch and of `random` are left as they are."""
    return secrets.randbits(_NUM_SEED_BITS)


@dataclass(frozen=True)
class RowNoise:
    """Where the random numbers of B rows come from: one key each [B], int64, on the CPU whatever the model runs on.

    `counts` below are tokens that a row has generated, a forced first token included; numbers come back on the device
    of `counts`.
    """

    keys: Tensor

    @classmethod
    def from_seeds(cls, seeds: Sequence[int], samples: Sequence[int]) -> Self:
        """Rows with these seeds in 0..2**63-1 and sample indices."""
        words = torch.tensor([seeds, samples], dtype=torch.long).reshape(2, -1)
        return cls(_absorb(_absorb(torch.zeros_like(words[0]), words[0]), words[1]))

    def concat(self, other: RowNoise) -> RowNoise:
        """The rows of both, self first."""
        return RowNoise(torch.cat([self.keys, other.keys]))

    def select_rows(self, rows: Tensor) -> RowNoise:
        """The rows `rows` [B'] in that order."""
        return RowNoise(self.keys[rows.cpu()])

    def gumbel(self, scores: Tensor, counts: Tensor) -> Tensor:
        """Standard Gumbel noise [B, m, V] in the type of `scores` [B, m, V]; counts [B, m].

        The noise of a token depends on the key, the count and the token id alone. It is computed for finite scores
        only; elsewhere it is 0.
        """
        rows, queries, tokens = scores.isfinite().nonzero(as_tuple=True)
        states = _absorb(self._states(_GUMBEL)[:, None], counts.cpu())
        bits = _absorb(states[rows.cpu(), queries.cpu()], tokens.cpu())
        noise = torch.zeros_like(scores)
        noise[rows, queries, tokens] = -(-_uniform(bits).log()).log().to(scores)
        return noise

    def verification(self, counts: Tensor, num_slots: int) -> Tensor:
        """What one call of `SpeculativeSampling` uses up: [B, num_slots + 1, 2] in (0, 1), float64; counts [B]."""
        slots = torch.arange(num_slots + 1)
        streams = [self._uniforms(purpose, counts, slots) for purpose in (_JUDGE, _DRAW)]
        return torch.stack(streams, dim=-1).to(counts.device)

    def drafting(self, counts: Tensor, slot: int) -> Tensor:
        """What drawing draft token `slot` uses up: [B] in (0, 1), float64; counts [B] of the block's start.

        Every block has numbers of its own: those behind a rejected token have had a part in rejecting it.
        """
        return self._uniforms(_DRAFT, counts, torch.tensor([slot]))[:, 0].to(counts.device)

    def _uniforms(self, purpose: int, counts: Tensor, slots: Tensor) -> Tensor:
        """[B, n] for slots [n] of blocks that start at counts [B]."""
        return _uniform(_absorb(_absorb(self._states(purpose), counts.cpu())[:, None], slots))

    def _states(self, purpose: int) -> Tensor:
        return _absorb(self.keys, torch.tensor(purpose))


def _absorb(states: Tensor, words: Tensor) -> Tensor:
    """Hash of states and words, int64, broadcast: for equal states the SplitMix64 stream at the place `words`."""
    mixed = states + (words + 1) * _STEP
    mixed = (mixed ^ _shifted(mixed, 30)) * _FACTOR_A
    mixed = (mixed ^ _shifted(mixed, 27)) * _FACTOR_B
    return mixed ^ _shifted(mixed, 31)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Right shift that fills up with zeros; torch's own repeats the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _uniform(bits: Tensor) -> Tensor:
    """Evenly spread float64 in (0, 1), never 0 or 1, from int64."""
    return (_shifted(bits, 64 - _NUM_BITS).double() + 0.5) * 2.0**-_NUM_BITS
