"""Guessing which prefixes a beam search will ask about next, from what drafter and verifier know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from spec2seq.decoding.trie import NOWHERE

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.decoding.trie import PrefixTrie
    from spec2seq.types import DraftBlock

# Sums of log-probabilities below it belong to hypotheses that do not exist: beams before their first step, and NaN.
_IMPOSSIBLE = -1.0e8


class DraftLaws(NamedTuple):
    """What a drafter expects after each hypothesis, whatever the earlier tokens of the block turn out to be.

    values, ids: [G, K, k, C] log-probabilities and token ids of the best candidates of each slot.
    """

    values: Tensor
    ids: Tensor


class LawRecorder:
    """The `choose` of drafters in beam search: continues a block with the likeliest token, and remembers the others.

    Args:
        num_candidates: C, how many tokens are remembered per slot.
        never: [N] ids that continue no hypothesis: ends of sequence, and banned ones.
    """

    def __init__(self, num_candidates: int, never: Tensor) -> None:
        self._num_candidates = num_candidates
        self._never = never
        self._laws: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, log_probs: Tensor, slot: int) -> Tensor:
        """Token `slot` of every row's block, [R], from log-probabilities [R, V]."""
        log_probs = log_probs.float().index_fill(-1, self._never, -torch.inf)
        values, ids = log_probs.topk(min(self._num_candidates, log_probs.shape[-1]), dim=-1)
        self._laws[slot] = values, ids
        return ids[:, 0]

    def laws(self, draft: DraftBlock, num_groups: int, num_slots: int) -> DraftLaws:
        """The laws of all slots of a block with G x K rows; one candidate, taken for certain, where none was asked for.

        They are padded to `num_slots` slots and C candidates with candidates of log-probability minus infinity.
        """
        if self._laws and draft.num_slots:
            values, ids = (
                torch.stack([self._laws[slot][part] for slot in range(draft.num_slots)], 1) for part in (0, 1)
            )
        else:
            ids = draft.tokens[..., None]
            values = torch.zeros_like(ids, dtype=torch.float32)
        is_proposed = torch.arange(draft.num_slots, device=ids.device) < draft.lengths[:, None]
        values = values.masked_fill(~is_proposed[..., None], -torch.inf)
        padding = (0, self._num_candidates - ids.shape[2], 0, num_slots - draft.num_slots)
        values, ids = functional.pad(values, padding, value=-torch.inf), functional.pad(ids, padding)
        shape = (num_groups, -1, num_slots, self._num_candidates)
        return DraftLaws(values.view(shape), ids.view(shape))


@dataclass(frozen=True)
class Frontier:
    """The F best prefixes of one length per source, [G, F] each.

    Attributes:
        slots: where they live; NOWHERE for places that no prefix takes.
        scores: sums of log-probabilities, the verifier's as far as it was asked, then the drafter's.
        beams: which hypothesis each one continues.
    """

    slots: Tensor
    scores: Tensor
    beams: Tensor


def grow_draft_tree(
    trie: PrefixTrie, slots: Tensor, scores: Tensor, laws: DraftLaws, ends: Tensor, room: Tensor, width: int
) -> None:
    """Add to the trie what the hypotheses may become, level by level.

    Args:
        trie: of G sources; every hypothesis is in it, fed or not.
        slots, scores: [G, K] where the hypotheses live, and their sums of log-probabilities.
        laws: of k slots after each hypothesis. Where the verifier itself was asked already, its own answer counts.
        ends: [E] ids that end a sequence, and so no prefix.
        room: [G] by how many tokens the hypotheses may grow before nothing more is asked about them.
        width: how many prefixes of each length are kept.
    """
    beams = torch.arange(slots.shape[1], device=slots.device).expand_as(slots)
    frontier = Frontier(slots, scores, beams)
    for depth in range(laws.ids.shape[2]):
        frontier = _next_frontier(trie, frontier, laws, depth, ends, room, width)
        if not bool((frontier.slots != NOWHERE).any()):
            return


def _next_frontier(
    trie: PrefixTrie, frontier: Frontier, laws: DraftLaws, depth: int, ends: Tensor, room: Tensor, width: int
) -> Frontier:
    values, ids = _continuations(trie, frontier, laws, depth)
    totals = frontier.scores[..., None] + values
    is_possible = (totals > _IMPOSSIBLE) & ~(ids[..., None] == ends).any(-1) & (depth < room)[:, None, None]
    totals = totals.masked_fill(~is_possible, -torch.inf).flatten(1)
    scores, places = totals.topk(min(width, totals.shape[1]), dim=1)
    origins = places // ids.shape[2]
    parents, tokens = frontier.slots.gather(1, origins), ids.flatten(1).gather(1, places)
    is_taken = scores > -torch.inf
    slots = trie.find(parents, tokens).masked_fill(~is_taken, NOWHERE)
    slots = slots + trie.insert(parents, tokens, is_taken & (slots == NOWHERE))
    return Frontier(slots, scores, frontier.beams.gather(1, origins))


def _continuations(trie: PrefixTrie, frontier: Frontier, laws: DraftLaws, depth: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids [G, F, C] of what may follow: known from the verifier, or drafted."""
    index = frontier.beams[..., None].expand(-1, -1, laws.ids.shape[3])
    is_known = trie.is_fed.gather(1, frontier.slots)[..., None]
    values, ids = trie.candidates(frontier.slots)
    values = torch.where(is_known, values, laws.values[:, :, depth].gather(1, index))
    return values, torch.where(is_known, ids, laws.ids[:, :, depth].gather(1, index))
