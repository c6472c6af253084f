"""Warpers: which tokens sampling may draw, and how sharp their law is. Plain and speculative sampling share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

    from spec2seq.generation_options import ResolvedOptions

_BANNED = float("-inf")


@dataclass(frozen=True)
class Warpers:
    """Temperature, top-k, top-p and min-p, in this order, over all rows and queries at once.

    Rows with NaN or infinite scores stay as broken as they are. Source: order and effect of the warpers of transformers
    5.24 with one token kept at least.

    Attributes:
        temperature: scores are divided by it, above 0.
        top_k: tokens scoring less than the one of this rank are banned, so that ties stay together; 0 is off.
        top_p: the least probable tokens are banned as long as their probabilities add up to at most 1 - top_p; among
            equally probable ones those of lower id go first, where transformers follows no order. 1 is off.
        min_p: tokens less probable than this fraction of the most probable one are banned; 0 is off.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def from_options(cls, options: ResolvedOptions) -> Self:
        """The warpers that options ask for."""
        return cls(options.temperature, options.top_k, options.top_p, options.min_p)

    def __call__(self, scores: Tensor) -> Tensor:
        """Scores [..., V] whose softmax is the law to draw from; `scores` itself is left as it is."""
        if self.temperature != 1.0:
            scores = scores / self.temperature
        if self.top_k:
            scores = _keep_best(scores, self.top_k)
        if self.top_p < 1.0:
            scores = _keep_mass(scores, self.top_p)
        if self.min_p > 0.0:
            probabilities = scores.softmax(dim=-1)
            is_rare = probabilities < self.min_p * probabilities.amax(dim=-1, keepdim=True)
            scores = scores.masked_fill(is_rare, _BANNED)
        return scores


def _keep_best(scores: Tensor, count: int) -> Tensor:
    worst_kept = scores.topk(min(count, scores.shape[-1]), dim=-1).values[..., -1:]
    return scores.masked_fill(scores < worst_kept, _BANNED)


def _keep_mass(scores: Tensor, mass: float) -> Tensor:
    """Ban the least probable tokens whose probabilities add up to at most 1 - mass, but never all of them."""
    values, ids = _ascending(scores)
    is_banned = values.softmax(dim=-1).cumsum(dim=-1) <= 1 - mass
    is_banned[..., -1] = False
    return scores.scatter(-1, ids, values.masked_fill(is_banned, _BANNED))


def _ascending(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Values and ids of all tokens that are not banned in every row, worst first, equal ones by id.

    After top-k few tokens are left, and sorting only them is many times faster than sorting the vocabulary.
    """
    num_left = int((scores != _BANNED).sum(dim=-1).max())
    if num_left == scores.shape[-1]:
        order = scores.sort(dim=-1, stable=True)
        return order.values, order.indices
    ids = scores.topk(max(num_left, 1), dim=-1).indices.sort(dim=-1).values
    order = scores.gather(-1, ids).sort(dim=-1, stable=True)
    return order.values, ids.gather(-1, order.indices)
