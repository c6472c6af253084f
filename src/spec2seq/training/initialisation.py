"""A drafting network before its training: the verifier's encoder, and a decoder of its own (the paper, section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec2seq.nn.spec_drafter import SpecDrafterNetwork

if TYPE_CHECKING:
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.training.settings import DrafterShape

# score of the source token at the slot's own place when the soft copy starts: about half of the weight among 100
_COPY_PEAK = 5.0


@torch.no_grad()
def new_drafter(verifier: Seq2Seq, shape: DrafterShape, seed: int = 0) -> SpecDrafterNetwork:
    """A network to train, in fp32: encoder, embeddings and output of the verifier, everything else random.

    Raises:
        OptionError: the shape does not suit the verifier.
    """
    network = SpecDrafterNetwork(shape.config(verifier.config))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        _draw(name, parameter, generator)
    stored = dict(verifier.encoder.named_parameters())
    for name, parameter in network.encoder.named_parameters():
        parameter.copy_(stored[name])
    network.decoder.embedding.tokens.copy_(verifier.decoder.embedding.tokens)
    network.output_weight.copy_(verifier.output_weight)
    if network.output_bias is not None and verifier.output_bias is not None:
        network.output_bias.copy_(verifier.output_bias)
    _start_positions(network, generator)
    return network.requires_grad_(True)


def _draw(name: str, parameter: torch.nn.Parameter, generator: torch.Generator) -> None:
    if name.endswith("norm.weight"):
        parameter.fill_(1.0)
    elif parameter.dim() == 1:
        parameter.zero_()
    else:
        parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)


def _start_positions(network: SpecDrafterNetwork, generator: torch.Generator) -> None:
    """Target positions start as source positions and the soft copy at the slot's own place: outputs mostly follow the
    order of their source. The rest of the table is random, as large as embeddings are."""
    model, table = network.config.model, network.decoder.embedding.positions
    size = float(network.decoder.embedding.tokens.square().mean().sqrt()) * model.embedding_scale
    table.normal_(0.0, size, generator=generator)
    if network.source_positions is not None:
        network.source_positions.normal_(0.0, size, generator=generator)
    source = network.source_position_rows(network.config.max_source_positions)
    shared = min(len(table), len(source))
    table[:shared].copy_(source[:shared])
    length = float(source.square().sum(1).mean())
    network.copy_weight.copy_(torch.eye(model.d_model) * (_COPY_PEAK / length))
