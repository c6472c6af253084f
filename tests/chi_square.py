"""Whether counts follow a law."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_EXPECTED = 5.0


def p_value(counts: Tensor, law: Tensor) -> float:
    """How probable counts [N] are that lie at least as far from the law [N] (summing to 1). Pearson's test.

    Cells in which fewer than five are expected count as one. Something that the law rules out gives 0.
    """
    counts, expected = counts.double(), law.double() * counts.sum()
    if bool((counts[law == 0] > 0).any()):
        return 0.0
    is_small = expected < MIN_EXPECTED
    rest = torch.stack([counts[is_small].sum(), expected[is_small].sum()])
    cells = torch.stack([counts[~is_small], expected[~is_small]])
    if rest[1] >= MIN_EXPECTED:
        cells = torch.cat([cells, rest[:, None]], dim=1)
    else:
        cells[:, 0] += rest
    statistic = ((cells[0] - cells[1]) ** 2 / cells[1]).sum()
    return float(torch.special.gammaincc(torch.tensor((cells.shape[1] - 1) / 2).double(), statistic / 2))
