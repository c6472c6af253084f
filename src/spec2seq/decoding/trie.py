"""The prefixes that a beam search has asked its verifier about, or is about to: one trie per source.

A node is a prefix. It lives in the slot of its source's cache row that holds the keys and values of its last token, and
all that is known about it is stored under the number of that slot. Nodes that no hypothesis can reach any more give
their slots to new ones; nothing is ever copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.types import Prefix

# The slot in which no node lives. It stands for "not there", and padded entries write to it.
NOWHERE = 0
GROWTH = 64  # slots are added in steps of so many


@dataclass(frozen=True)
class Feed:
    """Nodes that the verifier has not seen, per source.

    Attributes:
        tokens, positions, slots: [G, n] last token of each node, its position, its slot; padding is NOWHERE.
        lengths: [G] real ones; padding comes last.
        visible: [G, n, N'] bool, slots that belong to the node's prefix.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    lengths: Tensor
    visible: Tensor


@dataclass
class PrefixTrie:
    """The tries of G sources, in N slots each. Changed in place by `insert`, `store` and `prune`.

    Attributes:
        tokens, parents, positions: [G, N] last token of each node, slot of the prefix without it (NOWHERE for the first
            token), position of the token.
        is_used: [G, N] bool, whether a node lives there; NOWHERE counts as used.
        is_fed: [G, N] bool, whether the verifier has seen the node; means nothing where none lives.
        sees: [G, N, N] bool, `sees[g, s, t]`: t is s or one of its ancestors.
        values, ids: [G, N, C] the best continuations of each node by processed log-probability, descending.
    """

    tokens: Tensor
    parents: Tensor
    positions: Tensor
    is_used: Tensor
    is_fed: Tensor
    sees: Tensor
    values: Tensor
    ids: Tensor

    @classmethod
    def start(cls, prefix: Prefix, num_candidates: int) -> Self:
        """Tries that hold the committed tokens of each source, none of them fed. C is `num_candidates`."""
        num_groups, device = len(prefix.lengths), prefix.ids.device
        num_slots = _rounded(prefix.ids.shape[1] + 1)
        parents = (torch.arange(num_slots, device=device) - 1).clamp(min=NOWHERE).repeat(num_groups, 1)
        is_used = torch.arange(num_slots, device=device) <= prefix.lengths[:, None]
        is_ancestor = torch.ones(num_slots, num_slots, dtype=torch.bool, device=device).tril()
        is_ancestor[:, NOWHERE] = False
        shape = (num_groups, num_slots, num_candidates)
        return cls(
            tokens=functional.pad(prefix.ids, (1, num_slots - 1 - prefix.ids.shape[1])),
            parents=parents,
            positions=parents.clone(),
            is_used=is_used,
            is_fed=~is_used | (torch.arange(num_slots, device=device) == NOWHERE),
            sees=is_ancestor.repeat(num_groups, 1, 1),
            values=torch.zeros(shape, dtype=torch.float32, device=device),
            ids=torch.zeros(shape, dtype=torch.long, device=device),
        )

    @property
    def num_slots(self) -> int:
        return self.tokens.shape[1]

    @property
    def num_pending(self) -> Tensor:
        """How many nodes of each source wait to be fed, [G]."""
        return (~self.is_fed).sum(1)

    def find(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Slots [G, m] of the prefixes that continue those in slots `parents` [G, m] by `tokens` [G, m]; or NOWHERE."""
        is_match = (self.parents[:, None] == parents[..., None]) & (self.tokens[:, None] == tokens[..., None])
        is_match &= self.is_used[:, None]
        is_match[..., NOWHERE] = False
        return is_match.long().argmax(-1)

    def insert(self, parents: Tensor, tokens: Tensor, is_new: Tensor) -> Tensor:
        """Add the nodes marked in `is_new` [G, m], whose parents are there. Returns slots [G, m], NOWHERE elsewhere."""
        most = int(is_new.sum(1).max())
        if most == 0:
            return torch.full_like(parents, NOWHERE)
        self._reserve(most)
        free_first = self.is_used.long().argsort(dim=1, stable=True)
        ranks = (is_new.cumsum(1) - 1).clamp(min=0)
        slots = free_first.gather(1, ranks).masked_fill_(~is_new, NOWHERE)
        self.tokens.scatter_(1, slots, tokens)
        self.parents.scatter_(1, slots, parents)
        self.positions.scatter_(1, slots, self.positions.gather(1, parents) + 1)
        self.is_used.scatter_(1, slots, True)
        self.is_fed.scatter_(1, slots, False)
        wide = (-1, -1, self.num_slots)
        ancestors = self.sees.gather(1, parents[..., None].expand(wide)).scatter_(2, slots[..., None], True)
        self.sees.scatter_(1, slots[..., None].expand(wide), ancestors)
        self._forget_nowhere()
        return slots

    def feed(self) -> Feed:
        """The nodes not fed yet, in the order of their slots; from now on they count as fed."""
        lengths = self.num_pending
        num_queries = int(lengths.max())
        slots = self.is_fed.long().argsort(dim=1, stable=True)[:, :num_queries]
        is_real = torch.arange(num_queries, device=slots.device) < lengths[:, None]
        slots = slots.masked_fill(~is_real, NOWHERE)
        self.is_fed = torch.ones_like(self.is_fed)
        num_visible = int(self.is_used.any(0).nonzero().max()) + 1
        visible = self.sees[..., :num_visible].gather(1, slots[..., None].expand(-1, -1, num_visible))
        return Feed(self.tokens.gather(1, slots), self.positions.gather(1, slots), slots, lengths, visible)

    def store(self, slots: Tensor, values: Tensor, ids: Tensor) -> None:
        """Remember the best continuations of the nodes in `slots` [G, m]; values and ids [G, m, C]."""
        index = slots[..., None].expand_as(values)
        self.values.scatter_(1, index, values)
        self.ids.scatter_(1, index, ids)

    def candidates(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """What `store` was told about the nodes in `slots` [G, m]: values and ids [G, m, C]."""
        index = slots[..., None].expand(-1, -1, self.values.shape[2])
        return self.values.gather(1, index), self.ids.gather(1, index)

    def prefixes(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Token ids [G, m, N] of the prefixes in `slots` [G, m], zeros behind them, and their lengths [G, m]."""
        num_slots = self.num_slots
        sees = self.sees.gather(1, slots[..., None].expand(-1, -1, num_slots))
        places = torch.where(sees, self.positions[:, None], num_slots)  # one more column takes what is not seen
        ids = self.tokens.new_zeros((*slots.shape, num_slots + 1))
        ids.scatter_(2, places, self.tokens[:, None].expand_as(places))
        return ids[..., :num_slots], self.positions.gather(1, slots) + 1

    def prune(self, slots: Tensor, parents: Tensor) -> None:
        """Free all nodes but the prefixes of the hypotheses [G, K] and what continues them.

        Args:
            slots: where the hypotheses live; NOWHERE for those that are not in the trie.
            parents: where the hypotheses without their last token live.
        """
        wide = (-1, -1, self.num_slots)
        anchors = torch.where(slots == NOWHERE, parents, slots)
        is_before = self.sees.gather(1, anchors[..., None].expand(wide)).any(1)
        is_behind = self.sees.gather(2, slots[:, None].expand(-1, self.num_slots, -1)).any(2)
        self.is_used &= is_before | is_behind
        self._forget_nowhere()

    def select_groups(self, groups: Tensor) -> Self:
        """The tries `groups` [G'] in that order."""
        return type(self)(**{name: getattr(self, name)[groups] for name in self.__dataclass_fields__})

    def append(self, other: Self) -> Self:
        """The tries of both, self first. Both may be widened."""
        num_slots = max(self.num_slots, other.num_slots)
        self._widen(num_slots)
        other._widen(num_slots)
        names = self.__dataclass_fields__
        return type(self)(**{name: torch.cat([getattr(self, name), getattr(other, name)]) for name in names})

    def _forget_nowhere(self) -> None:
        """NOWHERE is never free, never waits to be fed and has a position, whatever padded entries wrote there."""
        self.is_used[:, NOWHERE] = self.is_fed[:, NOWHERE] = True
        self.positions[:, NOWHERE] = 0

    def _reserve(self, count: int) -> None:
        """Make room for `count` more nodes per source."""
        num_missing = count - int((~self.is_used).sum(1).min())
        if num_missing > 0:
            self._widen(_rounded(self.num_slots + num_missing))

    def _widen(self, num_slots: int) -> None:
        extra = num_slots - self.num_slots
        if extra <= 0:
            return
        for name in ("tokens", "parents", "positions", "is_used"):
            setattr(self, name, functional.pad(getattr(self, name), (0, extra)))
        self.is_fed = functional.pad(self.is_fed, (0, extra), value=True)
        self.sees = functional.pad(self.sees, (0, extra, 0, extra))
        self.values, self.ids = (functional.pad(x, (0, 0, 0, extra)) for x in (self.values, self.ids))


def _rounded(num_slots: int) -> int:
    return -(-num_slots // GROWTH) * GROWTH
