"""Rules that compare a draft with the verifier's best tokens: exact search, and the paper's relaxed one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from spec2seq.arrays import as_tensor, numbers, picked
from spec2seq.errors import OptionError
from spec2seq.types import Acceptance

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from spec2seq.types import DraftBlock, Scores

    Ids = NDArray[np.int64]


@dataclass
class ExactMatch:
    """Keep draft tokens as long as each is the verifier's own choice: the output is that of plain search.

    Greedy search without noise; with Gumbel noise the seeded sampling of which it is the replay.
    """

    num_top: int = field(default=1, init=False)
    needs_logits: bool = field(default=False, init=False)

    def accept(self, draft: DraftBlock, scores: Scores, noise: Tensor | None = None) -> Acceptance:
        """The longest leading run of draft tokens [B, k] equal to the best ids, and the best id after it.

        Args:
            draft: tokens [B, k] and lengths [B].
            scores: [B, k+1, V]; ties go to the lowest id. `scores.logits()` is read only when there is noise.
            noise: [B, k+1, V] added to the scores before the best is taken.

        Returns:
            num_accepted [B] in 0..lengths and next_tokens [B].
        """
        ids = scores.top(1)[1] if noise is None else (scores.logits() + noise).max(dim=-1, keepdim=True).indices
        best = numbers(ids)[..., 0]
        if not draft.num_slots:
            return Acceptance(draft.lengths, as_tensor(best[:, 0]))
        if ids.is_cpu:
            return _keep_equal_on_host(numbers(draft.tokens), best, numbers(draft.lengths))
        return _keep_leading(draft.tokens == best[:, :-1], best, draft.lengths)


@dataclass
class TopBetaTolerance:
    """The paper's Spec-Verification: keep draft tokens that the verifier finds nearly as good as its own choice.

    A token passes when it is among the `top_beta` best and its log-probability is at most `tau` nats below the best.
    Source: Xia et al. 2022 (arXiv 2203.16487), section 3.2; the two guards are this project's.

    Attributes:
        top_beta: how many of the best ids may pass; 1 is `ExactMatch` whatever tau.
        tau: largest gap to the best log-probability, in nats.
        eos_token_ids: with `guard_eos`, where the draft token or the best id is one of these, only equality passes.
        pad_token_id: passes only as the best id; None when there is no pad.
        guard_eos: False for parity with the paper's release.
    """

    top_beta: int
    tau: float
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    guard_eos: bool = True
    num_top: int = field(init=False)
    needs_logits: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.top_beta < 1:
            raise OptionError(f"top_beta={self.top_beta} keeps no token; use 1 (exact) or more")
        if math.isnan(self.tau) or self.tau < 0:
            raise OptionError(f"tau={self.tau} is not a gap in nats; use 0 or more")
        self.num_top = self.top_beta
        self._guarded_ids = self.eos_token_ids if self.guard_eos else ()

    def accept(self, draft: DraftBlock, scores: Scores, noise: Tensor | None = None) -> Acceptance:
        """The longest leading run of draft tokens [B, k] that pass, and the best id after it.

        Args:
            draft: tokens [B, k] and lengths [B].
            scores: [B, k+1, V]; ranks count ties towards the lowest id.
            noise: must be None.

        Returns:
            num_accepted [B] in 0..lengths and next_tokens [B].

        Raises:
            OptionError: noise was given: sampling with a seed replays the verifier's choice exactly.
        """
        if noise is not None:
            raise OptionError(f"top_beta={self.top_beta} cannot be used in sampling with a seed; leave top_beta at 1")
        values, ids = scores.top(self.top_beta)
        best, judged = ids[..., 0], ids[:, :-1]
        passes = draft.tokens == best[:, :-1]
        if self.top_beta > 1:
            gaps = values[:, :-1, :1] - values[:, :-1]
            near = ((gaps <= self.tau) & (judged == draft.tokens.unsqueeze(-1))).any(dim=-1)
            passes = passes | near & self._may_differ(draft.tokens, best[:, :-1])
        return _keep_leading(passes, best, draft.lengths)

    def _may_differ(self, tokens: Tensor, best: Tensor) -> Tensor:
        """Where a draft token [B, k] may pass without being the best id [B, k]."""
        # comparisons with numbers: a handful of ids, and no tensor of them to keep on the right device
        allowed = tokens != (-1 if self.pad_token_id is None else self.pad_token_id)
        for eos in self._guarded_ids:
            allowed = allowed & (tokens != eos) & (best != eos)
        return allowed


def _keep_leading(passes: Tensor, best: Tensor, lengths: Tensor) -> Acceptance:
    """Cut at the first failure in passes [B, k] or at the row's length [B]; best [B, k+1] says what follows."""
    num_accepted = passes.cumprod(dim=1).sum(dim=1).minimum(lengths)
    return Acceptance(num_accepted, best.gather(1, num_accepted.unsqueeze(1)).squeeze(1))


def _keep_equal_on_host(tokens: Ids, best: Ids, lengths: Ids) -> Acceptance:
    """The same in NumPy, which needs half of torch's time: a fast model leaves little between two of its calls.

    Cuts where tokens [B, k] differ from best [B, k+1].
    """
    is_kept = np.zeros(best.shape, dtype=np.bool_)  # behind the last token there is nothing to keep
    np.equal(tokens, best[:, :-1], out=is_kept[:, :-1])
    num_accepted = np.minimum(is_kept.argmin(axis=1), lengths)
    return Acceptance(as_tensor(num_accepted), as_tensor(picked(best, num_accepted)))
