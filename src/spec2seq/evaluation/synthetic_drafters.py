"""Drafter folders with random weights: as deep as a trained one, in the width of another model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spec2seq.drafter_config import BlockwiseConfig, FeatureDrafterConfig, SpecDrafterConfig
from spec2seq.nn.blockwise_heads import BlockwiseHeads
from spec2seq.nn.feature_drafter import FeatureDrafterNetwork
from spec2seq.nn.spec_drafter import SpecDrafterNetwork
from spec2seq.weights import read_model_config
from spec2seq.weights.drafter_folder import load_drafter, save_drafter
from spec2seq.weights.fingerprints import VerifierFingerprint

if TYPE_CHECKING:
    from spec2seq.config import ModelConfig
    from spec2seq.drafter_config import DrafterConfig
    from spec2seq.weights.drafter_folder import DrafterNetwork

_WEIGHT_SIZE = 0.02
_CARD = "Random weights: good for measuring costs, of no use for drafting.\n"


def write_random_drafter(like: Path, model: Path, folder: Path) -> None:
    """A drafter's folder for a model.

    Args:
        like: folder of a trained drafter, whose kind, depth and settings are taken over.
        model: folder of the model that it will draft for; widths are scaled to its own.
        folder: where to write.

    Raises:
        UnsupportedModelError, CheckpointError, ModelNotFoundError: `like` is no drafter that can be loaded.
    """
    verifier, _ = read_model_config(model)
    network = _network(_resized(load_drafter(like).network.config, verifier))
    _fill(network)
    save_drafter(folder, network, model.name, VerifierFingerprint.of(model, verifier), _CARD)


def _resized(config: DrafterConfig, verifier: ModelConfig) -> DrafterConfig:
    """The same drafter for another verifier."""
    if isinstance(config, SpecDrafterConfig):
        model = replace(
            verifier,
            encoder_layers=config.model.encoder_layers,
            decoder_layers=config.model.decoder_layers,
            max_source_positions=config.max_source_positions,
            max_target_positions=config.max_positions,
        )
        return replace(config, model=model)
    factor = verifier.d_model / config.verifier.d_model
    ffn_dim = round(factor * config.ffn_dim)
    if isinstance(config, BlockwiseConfig):
        return replace(config, verifier=verifier, ffn_dim=ffn_dim)
    head_dim = config.width // config.num_heads
    num_heads = max(1, round(factor * config.num_heads))
    width = num_heads * head_dim
    shortlist_size = config.shortlist_size
    if shortlist_size is not None:  # the same share of all tokens
        shortlist_size = max(1, shortlist_size * verifier.target_vocab_size // config.verifier.target_vocab_size)
    return replace(
        config,
        verifier=verifier,
        width=width,
        num_heads=num_heads,
        ffn_dim=ffn_dim,
        shortlist_size=shortlist_size,
    )


def _network(config: DrafterConfig) -> DrafterNetwork:
    if isinstance(config, SpecDrafterConfig):
        return SpecDrafterNetwork(config)
    return FeatureDrafterNetwork(config) if isinstance(config, FeatureDrafterConfig) else BlockwiseHeads(config)


@torch.no_grad()
def _fill(network: DrafterNetwork) -> None:
    """Norms that change nothing, everything else random and small; of the vocabulary the first tokens."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in network.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, _WEIGHT_SIZE, generator=generator)
    shortlist = getattr(network, "shortlist", None)
    if shortlist is not None:
        shortlist.copy_(torch.arange(len(shortlist)))
