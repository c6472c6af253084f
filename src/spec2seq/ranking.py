"""The best of many scores, with ties resolved towards the lowest id."""

from __future__ import annotations

import torch
from torch import Tensor

_FEW = 4  # so many best ids are found faster by as many searches for one


def best_ids(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best values over the last dimension of [..., V] and their ids, descending.

    Args:
        values: NaN counts as largest.
        count: how many; all V where there are no more.

    Returns:
        Values and ids, [..., count] each; among equal values the lowest ids, in order.
    """
    return _best_few(values, count) if count <= _FEW else _best_many(values, count)


def _best_few(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """One search for the first maximum after another."""
    ids = [_first_maximum(values)]
    remaining = values
    for _ in range(1, min(count, values.shape[-1])):
        remaining = remaining.scatter(-1, ids[-1], -torch.inf)
        ids.append(_first_maximum(remaining))
    if len(ids) > 1 and bool((remaining.gather(-1, ids[-1]) == -torch.inf).any()):
        # fewer ids are possible than asked for: the search cannot tell them from those it has found before
        return _best_many(values, count)
    best = ids[0] if len(ids) == 1 else torch.cat(ids, dim=-1)
    return values.gather(-1, best), best


def _first_maximum(values: Tensor) -> Tensor:
    """Id of the first maximum over the last dimension, which is kept."""
    if values.device.type == "cpu":
        # numpy searches with vector instructions, torch's CPU kernel does not: 8 us instead of 100 for 11 x 8001
        return torch.from_numpy(values.detach().numpy().argmax(-1)).unsqueeze(-1)
    return values.max(dim=-1, keepdim=True).indices


def _best_many(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`torch.topk`, which knows no order among equal values, also at the cut, set right."""
    count = min(count, values.shape[-1])
    best, ids = values.topk(count, dim=-1)
    # Ids tied with the last kept value may have been left out for higher ones: redo the rare rows that have such ties.
    tied = (values == best[..., -1:]).sum(-1) > (best == best[..., -1:]).sum(-1)
    if bool(tied.any()):
        order = values[tied].sort(dim=-1, descending=True, stable=True)
        best[tied], ids[tied] = order.values[..., :count], order.indices[..., :count]
    # Equal neighbours inside the kept ones: sort by id, then stably by value.
    by_id = ids.argsort(dim=-1)
    best, ids = best.gather(-1, by_id), ids.gather(-1, by_id)
    by_value = best.argsort(dim=-1, descending=True, stable=True)
    return best.gather(-1, by_value), ids.gather(-1, by_value)
