"""Drafting networks before their training."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from spec2seq.nn.blockwise_heads import BlockwiseHeads
from spec2seq.nn.feature_drafter import FeatureDrafterNetwork
from spec2seq.nn.layers import DecoderLayer
from spec2seq.nn.spec_drafter import SpecDrafterNetwork

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.training.shapes import BlockwiseShape, FeatureShape, SpecShape

# score of the source token at the slot's own place when the soft copy starts: about half of the weight among 100
_COPY_PEAK = 5.0
_SHORTLIST_STEP = 64


@torch.no_grad()
def new_spec_drafter(verifier: Seq2Seq, shape: SpecShape, seed: int = 0) -> SpecDrafterNetwork:
    """The paper's network to train (section 3.1), in fp32: encoder, embeddings and output of the verifier, everything
    else random.

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
        parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)


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


@torch.no_grad()
def new_feature_drafter(
    verifier: Seq2Seq, shape: FeatureShape, token_counts: Tensor, seed: int = 0
) -> FeatureDrafterNetwork:
    """A drafter on the verifier's states to train, in fp32, attached to it.

    Its layers are the verifier's last ones where they are as large, everything else is random; the bigram table says
    nothing yet.

    Args:
        token_counts: [V] how often each token occurs in the targets.

    Raises:
        OptionError: the shape does not suit the verifier.
    """
    shortlist = commonest_tokens(token_counts, shape.coverage)
    config = shape.config(verifier.config, None if len(shortlist) == len(token_counts) else len(shortlist))
    network = FeatureDrafterNetwork(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        _draw(name, parameter, generator)
    network.embedding.places.normal_(0.0, 1.0, generator=generator)  # as large as positions and anchors
    embedded = verifier.decoder.embedding.tokens * verifier.config.embedding_scale
    if config.width == verifier.config.d_model:
        network.embedding.anchor_weight.copy_(torch.eye(config.width))
    network.embedding.anchor_weight.mul_(embedded.square().mean().rsqrt())
    if network.prefix_reader.mixture is not None:
        network.prefix_reader.mixture.fill_(1 / len(config.hidden_layers))
    if network.bigrams is not None:
        network.bigrams.after.zero_()
    if network.shortlist is not None:
        network.shortlist.copy_(shortlist)
    if config.layers == replace(verifier.config, decoder_layers=config.num_layers):
        _copy_last_layers(verifier, network)
    network.attach(verifier)
    return network.requires_grad_(True)


def _copy_last_layers(verifier: Seq2Seq, network: FeatureDrafterNetwork) -> None:
    """Start from the verifier's last layers, which know how to find a word for a state."""
    config, own = verifier.config, network.config.layers
    inner = own.decoder_heads * own.head_dim
    for i, layer in enumerate(network.layers):
        number = max(0, config.decoder_layers - own.decoder_layers + i)
        stored = verifier.decoder.layers[number]
        assert isinstance(stored, DecoderLayer)  # module lists do not say what is in them
        layer.load_state_dict(stored.state_dict())
        rows = slice(2 * inner * i, 2 * inner * (i + 1))
        source_rows = slice(2 * inner * number, 2 * inner * (number + 1))
        network.prefix_reader.weight[rows] = stored.attention.qkv_weight[inner:]
        network.source_reader.weight[rows] = verifier.cross.weight[source_rows]
        if stored.attention.qkv_bias is not None and verifier.cross.bias is not None:
            network.prefix_reader.bias[rows] = stored.attention.qkv_bias[inner:]
            network.source_reader.bias[rows] = verifier.cross.bias[source_rows]
    if network.final_norm is not None and verifier.decoder.final_norm is not None:
        network.final_norm.load_state_dict(verifier.decoder.final_norm.state_dict())


def commonest_tokens(counts: Tensor, coverage: float) -> Tensor:
    """The ids, in order, of the fewest tokens that make up this share of all of the counts [V]; a few more to fill a
    multiple of 64, which suits the products with them."""
    order = counts.argsort(descending=True, stable=True)
    shares = counts[order].double().cumsum(0) / counts.sum()
    num_tokens = len(counts) if coverage == 1 else int((shares < coverage).sum()) + 1
    return order[: -(-num_tokens // _SHORTLIST_STEP) * _SHORTLIST_STEP].sort().values


@torch.no_grad()
def new_blockwise_heads(verifier: Seq2Seq, shape: BlockwiseShape, seed: int = 0) -> BlockwiseHeads:
    """Heads to train, in fp32, attached to the verifier: all say what the verifier itself does, to begin with."""
    network = BlockwiseHeads(shape.config(verifier.config))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        _draw(name, parameter, generator)
    for parameter in (network.input_bias, network.output_weight, network.output_bias):
        parameter.zero_()
    network.attach(verifier)
    return network.requires_grad_(True)
