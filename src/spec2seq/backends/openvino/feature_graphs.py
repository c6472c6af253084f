"""The network of the drafter that reads the verifier's states, cut into the graphs that the engine calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spec2seq.backends.openvino.tracing import GraphInput, trace_graph, with_scaled_queries
from spec2seq.nn.layers import DecoderLayer

if TYPE_CHECKING:
    from spec2seq.drafter_config import FeatureDrafterConfig
    from spec2seq.nn.feature_drafter import FeatureDrafterNetwork, StateReader
    from spec2seq.nn.kv_cache import LayerWindow

WALK_OUTPUTS = ("places", "links", "new")  # for drafting the best tokens
LAW_OUTPUTS = ("scores", "new")  # for laws of tokens

# sizes to trace with: rows, places of a block, states with the last one, cached slots, source positions
_B, _N, _M, _T, _S = 2, 3, 4, 5, 7


def feature_graphs(network: FeatureDrafterNetwork) -> dict[str, Any]:
    """The graphs "source", "read" and "draft" of a network in fp32 that was attached, as openvino.Models.

    source: hidden [B, S, D], places [S, width] -> cross [L, 2, B, H, S, d]
    read: states [B, m, N, D] -> new [B, m, L, 2, H, d], keys and values
    draft: see `DraftModule`.
    """
    inputs, source = feature_inputs(network.config), source_reader_graph(network)
    network = cast("FeatureDrafterNetwork", with_scaled_queries(network))
    outputs = ["scores", "new"] if network.bigrams is None else ["scores", "new", "places", "links"]
    return {
        **source,
        "read": trace_graph(_ReadModule(network), inputs["read"], ["new"]),
        "draft": trace_graph(DraftModule(network), inputs["draft"], outputs),
    }


def source_reader_graph(network: FeatureDrafterNetwork) -> dict[str, Any]:
    """The graph "source" alone."""
    return {"source": trace_graph(_SourceModule(network), feature_inputs(network.config)["source"], ["cross"])}


def feature_inputs(config: FeatureDrafterConfig) -> dict[str, list[GraphInput]]:
    """The inputs of every graph."""
    wide, num_states = config.verifier.d_model, len(config.hidden_layers)
    hidden = GraphInput("hidden", torch.zeros(_B, _S, wide), {0: "rows", 1: "source"})
    places = GraphInput("places", torch.zeros(_S, config.width), {0: "source"})
    states = GraphInput("states", torch.zeros(_B, _M, num_states, wide), {0: "rows", 1: "states"})
    return {"source": [hidden, places], "read": [states], "draft": [states, *_draft_inputs(config)]}


def _draft_inputs(config: FeatureDrafterConfig) -> list[GraphInput]:
    """The inputs of `DraftModule.forward` after the states, in order."""
    heads, head_dim = config.num_heads, config.head_dim
    is_causal = config.block_attention == "causal"
    mask, queries = torch.zeros(_B, 1, _N if is_causal else 1, _T + _M + _N), {2: "queries"} if is_causal else {}
    inputs = [
        GraphInput("anchors", torch.zeros(_B, 1, config.verifier.d_model), {0: "rows"}),
        GraphInput("is_anchor", torch.zeros(1, _N, 1), {1: "queries"}),
        GraphInput("slots", torch.zeros(_B, _N, config.width), {0: "rows", 1: "queries"}),
        GraphInput("mask", mask, {0: "rows", **queries, 3: "keys"}),
        GraphInput("source_mask", torch.zeros(_B, 1, 1, _S), {0: "rows", 3: "source"}),
    ]
    if config.bigram_rank:
        inputs.append(GraphInput("before", torch.zeros(_B, 1, 1, config.bigram_rank), {0: "rows"}))
    for layer in range(config.num_layers):
        inputs += [
            GraphInput(f"past_{part}{layer}", torch.zeros(_B, _T, heads, head_dim), {0: "rows", 1: "slots"})
            for part in ("keys", "values")
        ]
        inputs += [
            GraphInput(f"source_{part}{layer}", torch.zeros(_B, heads, _S, head_dim), {0: "rows", 2: "source"})
            for part in ("keys", "values")
        ]
    return inputs


class _SourceModule(nn.Module):
    def __init__(self, network: FeatureDrafterNetwork) -> None:
        super().__init__()
        self.reader = network.source_reader

    def forward(self, hidden: Tensor, places: Tensor) -> Tensor:
        return self.reader.read(hidden, places)


class _ReadModule(nn.Module):
    def __init__(self, network: FeatureDrafterNetwork) -> None:
        super().__init__()
        self.reader = network.prefix_reader

    def forward(self, states: Tensor) -> Tensor:
        keys_values: Tensor = self.reader(_mixed(self.reader, states))
        return keys_values


class DraftModule(nn.Module):
    """One round's drafting: the states that the verifier computed last and a block in, candidates for every place out.

    The keys and values of these states are used in the same call, and returned. The cache itself stays outside.
    """

    def __init__(self, network: FeatureDrafterNetwork) -> None:
        super().__init__()
        self.network = network
        reader, state_weight = network.prefix_reader, network.embedding.state_weight
        # what is made of the states, in one product: keys and values, and the last one's part of the block's input
        self.state_weight = nn.Parameter(torch.cat([reader.weight, state_weight]), requires_grad=False)
        self.state_bias = nn.Parameter(F.pad(reader.bias, (0, len(state_weight))), requires_grad=False)
        if network.bigrams is not None:
            before, after = network.bigrams.before, network.bigrams.after
            self.pairs = nn.Parameter(
                torch.cat([before if network.shortlist is None else before[network.shortlist], after], dim=1),
                requires_grad=False,
            )

    def forward(
        self,
        states: Tensor,
        anchors: Tensor,
        is_anchor: Tensor,
        slots: Tensor,
        mask: Tensor,
        source_mask: Tensor,
        *others: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the block through the layers.

        Args:
            states: [B, m, N, D] of the verifier; the last of the m is the one before the anchor, of whose keys nothing
                is seen.
            anchors: [B, 1, D] embedded.
            is_anchor: [1, k, 1] 1 in the first place, 0 in the others.
            slots: [B, k, width] what the places and their positions are.
            mask: [B, 1, 1 or k, T + m + k] added to the scores of self-attention: the cache, the states, the block.
            source_mask: [B, 1, 1, S].
            others: with a bigram table its row [B, 1, 1, r] of the anchors; then, per layer, cached keys and values
                [B, T, H, d], and those of the source [B, H, S, d].

        Returns:
            scores [B, k, V'] without the bigram table; keys and values of the states [B, m, L, 2, H, d]; with a bigram
            table the C best places [B, k, C] of the shortlist, and their scores behind each of the slot before
            [B, k, C, C].
        """
        network = self.network
        reader, embedding = network.prefix_reader, network.embedding
        before, layers = (None, others) if network.bigrams is None else (others[0], others[1:])
        projected = F.linear(_mixed(reader, states), self.state_weight, self.state_bias)
        new, last = torch.split(projected, [len(reader.weight), len(embedding.state_weight)], dim=2)
        new = new.reshape(*new.shape[:2], *reader.shape)
        block = slots + last[:, -1:] + is_anchor * F.linear(anchors, embedding.anchor_weight)
        for number, layer in enumerate(network.layers):
            assert isinstance(layer, DecoderLayer)  # module lists do not say what is in them
            keys, values, source_keys, source_values = layers[4 * number : 4 * number + 4]
            known = _Known(keys, values, new[:, :, number])
            block = layer(block, mask, cast("LayerWindow", known), (source_keys, source_values), source_mask)
        tables = network.tables
        scores = F.linear(network.outputs(block), tables.weight, tables.bias)
        return (scores, new) if before is None else (scores, new, *self._walk(scores, before))

    def _walk(self, scores: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Places and links; see `nn.bigrams`."""
        config = self.network.config
        values, places = scores.topk(min(config.bigram_candidates, config.num_outputs))
        before_them, after = torch.split(F.embedding(places, self.pairs), config.bigram_rank, dim=3)
        first = before.expand(-1, -1, values.shape[2], -1)
        additions = torch.cat([first, before_them[:, :-1]], dim=1) @ after.transpose(2, 3)
        return places, values[:, :, None] + additions


def _mixed(reader: StateReader, states: Tensor) -> Tensor:
    """As `StateReader.mixed`; sizes that are known before make one operator of the norm."""
    states = F.layer_norm(states, (reader.weight.shape[1],))
    return states[:, :, 0] if reader.mixture is None else (states * reader.mixture[:, None]).sum(2)


class _Known:
    """One layer's cached keys and values [B, T, H, d], then new ones [B, m, 2, H, d], then those of the block."""

    def __init__(self, keys: Tensor, values: Tensor, new: Tensor) -> None:
        self._keys, self._values, self._new = keys, values, new

    def exchange(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `LayerWindow.exchange`; nothing is stored."""
        queries, keys, values = qkv.unbind(2)
        keys = torch.cat([self._keys, self._new[:, :, 0], keys], dim=1)
        values = torch.cat([self._values, self._new[:, :, 1], values], dim=1)
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
