"""Rounds of a drafter on the verifier's states, the same for every engine that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from spec2seq.types import Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.interfaces import Cache, DraftSource, FeatureNetwork


class Block(NamedTuple):
    scores: Tensor
    tokens: Tensor


class Rounds:
    """Calls of a network with the same random numbers, whichever it is.

    With some seeds a block is so ill-conditioned that torch in fp32 is farther from fp64 than the engine may be from
    torch. With this one none is.
    """

    def __init__(self, network: FeatureNetwork, lengths: list[int]) -> None:
        self.network, self.generator = network, torch.Generator().manual_seed(4)
        self.width = network.config.verifier.d_model
        self.source: DraftSource = self.encode(lengths)
        self.cache: Cache = network.new_cache(len(lengths))
        self.known = torch.zeros(len(lengths), dtype=torch.long)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def encode(self, lengths: list[int]) -> DraftSource:
        return self.network.encode(self.random(len(lengths), max(lengths), self.width), torch.tensor(lengths))

    def remember(self, width: int, kept: list[int]) -> None:
        """States of `width` positions, of which each row keeps a few."""
        states = self.random(len(kept), width, len(self.network.config.hidden_layers), self.width)
        self.network.remember(states, self.known, self.cache)
        self.known = self.known + torch.tensor(kept)

    def draft(self, k: int, gap: int = 0) -> Block:
        """All scores, and the tokens of a call that asks for them alone. `gap` tokens before the anchor are unknown."""
        anchors = torch.randint(3, 50, (len(self.known),), generator=self.generator)
        places = self.known + gap, self.known, k, self.cache, self.source
        best = self.network.draft(anchors, *places, Wanted()).tokens().clone()
        answer: Any = self.network.draft(anchors, *places, Wanted(logits=True))
        assert torch.equal(answer.tokens(), best)
        laws = torch.stack([answer.log_probs(slot, best[:, slot]).exp() for slot in range(k)])
        return Block(torch.cat([answer.scores.flatten(), laws.flatten()]), best)

    def append(self, lengths: list[int]) -> None:
        self.source = self.source.concat(self.encode(lengths))
        self.cache = self.cache.append_rows(len(lengths))
        self.known = torch.cat([self.known, torch.zeros(len(lengths), dtype=torch.long)])

    def select(self, rows: list[int]) -> None:
        chosen = torch.tensor(rows)
        self.source, self.cache = self.source.select_rows(chosen), self.cache.select_rows(chosen)
        self.known = self.known[chosen]


def ragged(network: FeatureNetwork) -> list[Block]:
    """Rows keep what they like, join and leave, with states that were read and with some that were not."""
    rounds = Rounds(network, [7, 3, 20])
    blocks = [rounds.draft(5)]
    rounds.remember(6, [1, 4, 6])
    blocks.append(rounds.draft(5))
    rounds.remember(6, [6, 1, 3])
    rounds.remember(2, [1, 2, 1])  # a round without a draft
    blocks.append(rounds.draft(3))
    rounds.remember(4, [1, 4, 2])
    rounds.append([2])
    rounds.known[3] = 0
    blocks.append(rounds.draft(1))
    rounds.remember(4, [2, 2, 2, 4])
    rounds.select([3, 0, 3])
    blocks.append(rounds.draft(7))
    rounds.remember(8, [1, 8, 3])
    rounds.select([0])
    rounds.append([4, 9])
    return [*blocks, rounds.draft(5), rounds.draft(4, gap=2)]


def single(network: FeatureNetwork) -> list[Block]:
    """One row, far enough for programs of its own sizes and for more cached slots."""
    rounds = Rounds(network, [9])
    blocks = [rounds.draft(4, gap=3)]
    for kept in [1, 5, 2, 4, 1, 1, 3, 5, 5, 2, 1, 4]:
        rounds.remember(5, [kept])
        blocks.append(rounds.draft(4))
    return blocks


def many(network: FeatureNetwork) -> list[Block]:
    """More rows than are run without padding."""
    rounds = Rounds(network, [5] * 11)
    rounds.remember(3, [1, 2, 3] * 3 + [1, 1])
    return [rounds.draft(5)]


def compare(ours: list[Block], theirs: list[Block], tolerance: float) -> None:
    """The same tokens, and scores that differ by at most that share of the largest."""
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert one.scores.shape == other.scores.shape
        finite = other.scores.isfinite()
        assert (one.scores - other.scores)[finite].abs().max() <= tolerance * other.scores[finite].abs().max()
