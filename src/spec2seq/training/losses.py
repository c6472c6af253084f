"""The loss of a block, and how much each of its slots counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.training.settings import SlotWeights

DECAY_SLOTS = 4.0  # after so many slots "decay" has fallen to 1/e


def smoothed_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """-log p of each target, with `smoothing` of the weight spread evenly over the vocabulary.

    logits [M, V], targets [M] -> [M], fp32.
    """
    return F.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=smoothing)


def slot_weights(kind: SlotWeights, confidences: Tensor) -> Tensor:
    """How much each slot counts, [B, k]; the first slot always 1.

    Args:
        kind: "uniform"; "survival": the probability that the slots before it are all kept, by the network's own
            confidences; "decay": exp(-(i - 1) / 4) for slot i.
        confidences: [B, k] probabilities that the network gives to the targets, 1 where a target was revealed.
    """
    if kind == "uniform":
        return torch.ones_like(confidences)
    if kind == "decay":
        slots = torch.arange(confidences.shape[1], device=confidences.device, dtype=confidences.dtype)
        return (-slots / DECAY_SLOTS).exp().expand_as(confidences)
    return F.pad(confidences.detach().cumprod(1)[:, :-1], (1, 0), value=1.0)


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Mean of losses [M] by weights [M]; 0 where there is nothing."""
    return (losses * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
