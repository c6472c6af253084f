"""Tiny drafting networks whose outputs vary with all they read."""

from __future__ import annotations

from dataclasses import replace

import torch

from spec2seq.drafter_config import SpecDrafterConfig
from spec2seq.nn.spec_drafter import SpecDrafterNetwork
from spec2seq.testing import tiny_config


def tiny_drafter(
    changes: dict[str, object] | None = None,
    *,
    slot_token_id: int | None = None,
    max_positions: int = 40,
    dtype: torch.dtype = torch.float32,
) -> SpecDrafterNetwork:
    """Blocks of 5, 50 ids, random weights (the mask vector among them); `changes` are made to its ModelConfig."""
    model = replace(tiny_config(max_positions=max_positions), **(changes or {}))
    network = SpecDrafterNetwork(SpecDrafterConfig(model, 5, slot_token_id), dtype)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in network.named_parameters():
        # biases as large as the weights, or positions as small, would make a block's tokens all the same
        scale = 1.5 if name.endswith("positions") else 0.5 if parameter.dim() > 1 else 0.05
        parameter.data.normal_(0.0, scale, generator=generator)
        if name.endswith("norm.weight"):
            parameter.data += 1.0
    return network
