"""Tiny drafting networks whose outputs vary with all they read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from spec2seq.drafter_config import BlockwiseConfig, FeatureDrafterConfig, SpecDrafterConfig
from spec2seq.nn.blockwise_heads import BlockwiseHeads
from spec2seq.nn.feature_drafter import FeatureDrafterNetwork
from spec2seq.nn.spec_drafter import SpecDrafterNetwork
from spec2seq.testing import tiny_config

if TYPE_CHECKING:
    from spec2seq.nn.seq2seq import Seq2Seq


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
    _fill(network)
    return network


def tiny_feature_drafter(verifier: Seq2Seq, *, max_positions: int = 64, **changes: Any) -> FeatureDrafterNetwork:
    """Blocks of 5 for a tiny verifier, of its type; `changes` are made to the configuration."""
    config = FeatureDrafterConfig(verifier.config, 5, 16, 2, 2, 8, 24, max_positions, bigram_rank=4)
    network = FeatureDrafterNetwork(replace(config, **changes), verifier.dtype)
    _fill(network)
    if network.shortlist is not None:
        generator = torch.Generator().manual_seed(1)
        ids = torch.randperm(verifier.config.target_vocab_size, generator=generator)[: len(network.shortlist)]
        network.shortlist.copy_(ids.sort().values)
    network.attach(verifier)
    return network


def tiny_blockwise_heads(verifier: Seq2Seq, block_size: int = 5) -> BlockwiseHeads:
    """For a tiny verifier, of its type."""
    network = BlockwiseHeads(BlockwiseConfig(verifier.config, block_size, 12), verifier.dtype)
    _fill(network)
    network.attach(verifier)
    return network


def _fill(network: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, parameter in network.named_parameters():
        # biases as large as the weights, or positions as small, would make a block's tokens all the same
        scale = 1.5 if name.endswith(("positions", "places")) else 0.5 if parameter.dim() > 1 else 0.05
        parameter.data.normal_(0.0, scale, generator=generator)
        if name.endswith(("norm.weight", "mixture")):
            parameter.data += 1.0
