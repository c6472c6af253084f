"""Answers of a call, taken out of the engine's memory before the next call overwrites it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spec2seq.arrays import as_tensor
from spec2seq.ranking import best_ids
from spec2seq.types import TensorScores

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.types import Scores, Wanted

_FEW = 8  # so many columns are written faster one after the other


@dataclass(frozen=True)
class TopScores:
    """`Scores` of which only the best are known: values and ids [B, m, C]."""

    values: Tensor
    ids: Tensor

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        num_known = self.values.shape[2]
        if count == num_known:
            return self.values, self.ids
        if count > num_known:
            raise AssertionError(f"the best {count} scores were not asked for, only {num_known}")
        return self.values[..., :count], self.ids[..., :count]

    def logits(self) -> Tensor:
        raise AssertionError("logits were not asked for before the call")

    def log_sum_exp(self) -> Tensor:
        raise AssertionError("log_sum_exp was not asked for before the call")


def read_scores(logits: np.ndarray[Any, Any], wanted: Wanted) -> Scores:
    """What is wanted of the engine's logits [B, m, V], which are edited; nothing of their memory is kept."""
    for ids in wanted.banned if len(wanted.banned) <= _FEW else [list(wanted.banned)]:
        logits[..., ids] = -np.inf
    if wanted.logits or wanted.log_sum_exp:
        return TensorScores(torch.from_numpy(logits.copy()))
    # numpy finds them far faster than the engine, and few operators of torch, whose code the engine's work has driven
    # out of the processor's caches, are called
    if wanted.top == 1:
        ids = logits.argmax(axis=-1)
        rows, queries = np.arange(logits.shape[0])[:, None], np.arange(logits.shape[1])
        return TopScores(as_tensor(logits[rows, queries, ids][..., None]), as_tensor(ids[..., None]))
    return TopScores(*best_ids(torch.from_numpy(logits), wanted.top))
