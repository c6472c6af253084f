"""The tokens of a block whose slots do not know of each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.interfaces import Choose
    from spec2seq.types import Scores


def chosen_tokens(scores: Scores, choose: Choose | None) -> Tensor:
    """Tokens [B, k] from scores [B, k, V]: the best ones, or drawn by `choose` from the law of each slot."""
    if choose is None:
        return scores.top(1)[1][..., 0]
    log_probs = scores.logits().log_softmax(dim=-1)
    return torch.stack([choose(log_probs[:, i], i) for i in range(log_probs.shape[1])], dim=1)
