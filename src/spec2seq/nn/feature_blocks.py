"""The feature drafter's layers over many blocks of every target at once, as training needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from spec2seq.nn.layers import DecoderLayer

if TYPE_CHECKING:
    from spec2seq.nn.attention import SelfAttention
    from spec2seq.nn.draft_source import CrossSource
    from spec2seq.nn.feature_drafter import FeatureDrafterNetwork


@dataclass(frozen=True)
class Surroundings:
    """What blocks may look at besides themselves; shared by all blocks of a target.

    Attributes:
        states: [B, T, D] of the verifier at the target's positions, its layers mixed.
        prefix: [L, 2, B, H, T, d] keys and values made from them, for every layer.
        source: the same of the source.
    """

    states: Tensor
    prefix: Tensor
    source: CrossSource

    @classmethod
    def read(cls, network: FeatureDrafterNetwork, states: Tensor, encoded: Tensor, source_lengths: Tensor) -> Self:
        """From the verifier's states [B, T, N, D] at every position, and its encoder's [B, S, D] of lengths [B]."""
        mixed = network.prefix_reader.mixed(states)
        prefix = network.prefix_reader(mixed).permute(2, 3, 0, 4, 1, 5)
        return cls(mixed, prefix, network.encode(encoded, source_lengths))

    def states_before(self, num_known: Tensor) -> Tensor:
        """The last of so many [B, R] known states, [B, R, D]; zeros where there is none."""
        rows = torch.arange(len(num_known), device=num_known.device)[:, None]
        return self.states[rows, (num_known - 1).clamp(min=0)] * (num_known > 0)[..., None]


@dataclass(frozen=True)
class Blocks:
    """R blocks of k places behind beginnings of each target.

    Attributes:
        anchors: [B, R] token before each block, fed in its first place.
        starts: [B, R] position of it, and of the first place.
        num_known: [B, R] positions of the target that the block sees.
    """

    anchors: Tensor
    starts: Tensor
    num_known: Tensor


def block_states(network: FeatureDrafterNetwork, around: Surroundings, blocks: Blocks, size: int) -> Tensor:
    """The last layer's states of every place, [B, R, k, width]: what `draft` computes one block at a time."""
    columns = torch.arange(around.prefix.shape[4], device=blocks.starts.device)
    is_hidden = (columns >= blocks.num_known[..., None])[:, None, :, None]
    mask = around.prefix.new_zeros(is_hidden.shape).masked_fill_(is_hidden, -torch.inf)
    positions = blocks.starts[..., None] + torch.arange(size, device=columns.device)
    # of one type with the products, which autocast may have changed
    last = around.states_before(blocks.num_known)
    places: Tensor = network.embedding(network.embed(blocks.anchors), last, positions).to(around.prefix.dtype)
    is_causal = network.config.block_attention == "causal"
    for number, layer in enumerate(network.layers):
        assert isinstance(layer, DecoderLayer)  # module lists do not say what is in them
        keys, values = around.prefix[number].unbind(0)
        places = _attend_blocks(layer.attention, places, keys, values, mask, is_causal)
        shape = places.shape
        source = around.source.layers[number]
        places = layer.cross_attention.forward(places.flatten(1, 2), *source, around.source.mask)
        places = layer.ffn.forward(places).view(shape)
    return places


def _attend_blocks(
    attention: SelfAttention, places: Tensor, keys: Tensor, values: Tensor, mask: Tensor, is_causal: bool
) -> Tensor:
    """Places [B, R, k, D] look at the target's keys and values [B, H, T, d] and at those of their own block.

    mask [B, 1, R, 1, T] is added to the scores of the former.
    """
    qkv_weight, qkv_bias, output_weight, output_bias = attention.weights
    batch, num_blocks, size, _ = places.shape
    qkv = F.linear(attention.enter(places), qkv_weight, qkv_bias)
    qkv = qkv.view(batch, num_blocks, size, 3, attention.num_heads, attention.head_dim)
    queries, own_keys, own_values = qkv.permute(3, 0, 4, 1, 2, 5).unbind(0)  # [B, H, R, k, d]
    queries = queries * attention.scale
    to_prefix = (queries.flatten(2, 3) @ keys.transpose(2, 3)).view(*queries.shape[:4], -1) + mask
    to_own = queries @ own_keys.transpose(3, 4)
    if is_causal:
        is_later = torch.ones(size, size, dtype=torch.bool, device=places.device).triu_(1)
        to_own = to_own.masked_fill(is_later, -torch.inf)
    weights = torch.cat([to_prefix, to_own], dim=-1).softmax(-1)
    of_prefix, of_own = weights[..., :-size], weights[..., -size:]
    attended = (of_prefix.flatten(2, 3) @ values).view_as(queries) + of_own @ own_values
    attended = attended.permute(0, 2, 3, 1, 4).reshape(batch, num_blocks, size, -1)
    return attention.leave(places, F.linear(attended, output_weight, output_bias))
