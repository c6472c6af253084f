"""The rule of speculative sampling: whatever is drafted, tokens come out as often as the verifier's law says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from spec2seq.types import Acceptance

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.types import DraftBlock, Scores


@dataclass
class SpeculativeSampling:
    """Draw from the verifier's law with the help of a draft: which tokens come out how often does not depend on it.

    A draft without a law is a point mass. Sources: token by token, Leviathan et al. 2023 and Chen et al. 2023; whole
    blocks, which keep at least as many tokens on average, Sun et al. 2024 (arXiv 2403.10444).

    Attributes:
        verification: "block" or "token".
    """

    verification: Literal["block", "token"] = "block"
    num_top: int = field(default=1, init=False)
    needs_logits: bool = field(default=True, init=False)

    def accept(self, draft: DraftBlock, scores: Scores, noise: Tensor | None = None) -> Acceptance:
        """How many draft tokens are kept, and a token drawn so that the law of the whole is the verifier's.

        Args:
            draft: tokens [B, k], lengths [B], and in log_probs [B, k, V] the normalised law each token was really drawn
                from. Whether slot i is drafted may depend on the tokens before it, never on token i.
            scores: warped scores [B, k+1, V]; their softmax is the verifier's law. Nothing is accepted behind a query
                whose scores are NaN or infinite, so that a row reaches it as often as without a draft.
            noise: [B, k+1, 2] uniform in [0, 1): [:, i, 0] judges draft token i, [:, a, 1] draws the token that
                follows a accepted ones. Drawn from torch's default generator when None.

        Returns:
            num_accepted [B] in 0..lengths and next_tokens [B].
        """
        laws = scores.logits().softmax(dim=-1)
        if noise is None:
            noise = torch.rand(*laws.shape[:2], 2, dtype=torch.float64, device=laws.device)
        if draft.num_slots == 0:
            return Acceptance(draft.lengths, draw_tokens(laws[:, 0], noise[:, 0, 1]))
        likelihoods = laws[:, :-1].gather(-1, draft.tokens[..., None])[..., 0].double()
        is_whole = likelihoods.isfinite().cumprod(dim=1)
        lengths = torch.minimum(draft.lengths, is_whole.sum(dim=1))
        ratios = likelihoods.where(is_whole.bool(), 0.0) / _drafted_likelihoods(draft)
        if self.verification == "token":
            num_accepted = (noise[:, :-1, 0] < ratios).cumprod(dim=1).sum(dim=1).minimum(lengths)
            weights = torch.ones_like(num_accepted, dtype=torch.double)
        else:
            prefix_weights = _prefix_weights(ratios)
            chances = _block_chances(draft, laws, prefix_weights, lengths)
            num_accepted = _last_success(noise[:, :-1, 0] < chances, lengths)
            weights = prefix_weights.gather(1, num_accepted[:, None])[:, 0]
        remainder = _remainder(draft, laws, num_accepted, lengths, weights)
        uniforms = noise[..., 1].gather(1, num_accepted[:, None])[:, 0]
        return Acceptance(num_accepted, draw_tokens(remainder, uniforms))


def draw_tokens(weights: Tensor, uniforms: Tensor) -> Tensor:
    """One token per row, drawn in proportion to its weight.

    Args:
        weights: [B, V], at least 0. Rows with NaN give some token or other.
        uniforms: [B] in [0, 1), float64.

    Returns:
        [B] ids, never one of weight 0 unless all of the row's are.
    """
    sums = weights.double().cumsum(dim=-1)
    tokens = torch.searchsorted(sums, sums[:, -1:] * uniforms[:, None], right=True)
    return tokens[:, 0].clamp(max=weights.shape[-1] - 1)


def _drafted_likelihoods(draft: DraftBlock) -> Tensor:
    """How probable each draft token was where it was drawn, [B, k] float64; 1 in slots beyond a row's length."""
    if draft.log_probs is None:
        return torch.ones_like(draft.tokens, dtype=torch.double)
    drawn = draft.log_probs.gather(-1, draft.tokens[..., None])[..., 0].double().exp()
    slots = torch.arange(draft.num_slots, device=drawn.device)
    return drawn.where(slots < draft.lengths[:, None], 1.0)


def _prefix_weights(ratios: Tensor) -> Tensor:
    """P_0..P_k of block verification, [B, k+1]: P_0 = 1, P_i = min(1, P_{i-1} * ratio_i), for ratios [B, k].

    In logs this is a walk that is held back at 0: its sum so far, less the highest value that sum has had above 0.
    """
    sums = ratios.log().cumsum(dim=1)
    weights = (sums - sums.cummax(dim=1).values.clamp(min=0.0)).exp()
    return functional.pad(weights, (1, 0), value=1.0)


def _block_chances(draft: DraftBlock, laws: Tensor, prefix_weights: Tensor, lengths: Tensor) -> Tensor:
    """h_1..h_k of block verification, [B, k]: the chance of stopping behind slot i unless a later one succeeds.

    Args:
        draft: tokens [B, k].
        laws: [B, k+1, V] the verifier's.
        prefix_weights: P_0..P_k, [B, k+1].
        lengths: [B] a row's last slot is kept with chance P.
    """
    weights = prefix_weights[:, 1:]
    surplus = torch.zeros_like(weights)
    for_next = weights[:, :-1]
    if draft.log_probs is None:
        missed = 1 - laws[:, 1:-1].gather(-1, draft.tokens[:, 1:, None])[..., 0].double()
        surplus[:, :-1] = for_next * missed
    else:
        excess = for_next[..., None].to(laws) * laws[:, 1:-1] - draft.log_probs[:, 1:].exp()
        surplus[:, :-1] = excess.clamp(min=0.0).sum(dim=-1, dtype=torch.double)
    whole = surplus + 1 - weights
    chances = (surplus / whole).where(surplus > 0, 0.0)
    slots = torch.arange(1, draft.num_slots + 1, device=lengths.device)
    return weights.where(slots == lengths[:, None], chances)


def _last_success(is_success: Tensor, lengths: Tensor) -> Tensor:
    """The largest i in 1..lengths with is_success[:, i-1], 0 where there is none; is_success [B, k], lengths [B]."""
    slots = torch.arange(1, is_success.shape[1] + 1, device=lengths.device)
    return slots.where(is_success & (slots <= lengths[:, None]), 0).amax(dim=1)


def _remainder(
    draft: DraftBlock, laws: Tensor, num_accepted: Tensor, lengths: Tensor, prefix_weights: Tensor
) -> Tensor:
    """What the token after the accepted ones is drawn in proportion to, [B, V].

    The verifier's law where all of a row's draft was kept, elsewhere what the law at the first slot that was not kept
    has over the draft's there.

    Args:
        draft: tokens [B, k], k at least 1.
        laws: [B, k+1, V] the verifier's.
        num_accepted, lengths: [B].
        prefix_weights: [B] factor of the law at that slot.
    """
    law = laws.gather(1, num_accepted[:, None, None].expand(-1, 1, laws.shape[-1]))[:, 0]
    slots = num_accepted.clamp(max=draft.num_slots - 1)[:, None]
    if draft.log_probs is None:
        excess = law.scatter(1, draft.tokens.gather(1, slots), 0.0)
    else:
        drafted = draft.log_probs.gather(1, slots[..., None].expand(-1, 1, laws.shape[-1]))[:, 0]
        excess = (prefix_weights[:, None].to(law) * law - drafted.exp()).clamp(min=0.0)
    # Where rounding leaves no excess, law and draft are the same for all that can be told.
    is_kept_whole = (num_accepted == lengths) | (excess.sum(dim=-1) <= 0)
    return law.where(is_kept_whole[:, None], excess)
