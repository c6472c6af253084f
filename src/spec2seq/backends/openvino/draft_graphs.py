"""The Spec-Drafter's network, cut into the graphs that the engine calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spec2seq.backends.openvino.tracing import GraphInput, trace_graph, with_scaled_queries

if TYPE_CHECKING:
    from spec2seq.drafter_config import SpecDrafterConfig
    from spec2seq.nn.draft_source import EncodedDraftSource
    from spec2seq.nn.spec_drafter import SpecDrafterNetwork

# sizes to trace with: rows, prefix tokens and slots, source positions, scored slots
_B, _N, _S, _M = 2, 5, 7, 4


def draft_graphs(network: SpecDrafterNetwork) -> dict[str, Any]:
    """The graphs "encoder" and "draft" of a network in fp32, as openvino.Models.

    encoder: ids [B, S], mask [B, 1, 1, S] -> cross [L, 2, B, H, S, d], copy_keys and copy_values [B, S, D]
    draft: see `DraftModule`.
    """
    network = cast("SpecDrafterNetwork", with_scaled_queries(network))
    inputs = draft_inputs(network.config)
    return {
        "encoder": trace_graph(_EncoderModule(network), inputs["encoder"], ["cross", "copy_keys", "copy_values"]),
        "draft": trace_graph(DraftModule(network), inputs["draft"], ["logits"]),
    }


def draft_inputs(config: SpecDrafterConfig) -> dict[str, list[GraphInput]]:
    """The inputs of every graph."""
    ids = GraphInput("ids", torch.zeros(_B, _S, dtype=torch.int32), {0: "rows", 1: "source"})
    mask = GraphInput("mask", torch.zeros(_B, 1, 1, _S), {0: "rows", 3: "source"})
    return {"encoder": [ids, mask], "draft": _draft_inputs(config)}


def _draft_inputs(config: SpecDrafterConfig) -> list[GraphInput]:
    """The inputs of `DraftModule.forward`, in order."""
    model = config.decoder
    inputs = [
        GraphInput("ids", torch.zeros(_B, _N, dtype=torch.int32), {0: "rows", 1: "places"}),
        GraphInput("is_slot", torch.zeros(_B, _N, dtype=torch.bool), {0: "rows", 1: "places"}),
        GraphInput("mask", torch.zeros(_B, 1, 1, _N), {0: "rows", 3: "places"}),
        GraphInput("scored", torch.zeros(_M, dtype=torch.int32), {0: "scored"}),
        GraphInput("source_mask", torch.zeros(_B, 1, 1, _S), {0: "rows", 3: "source"}),
        GraphInput("copy_keys", torch.zeros(_B, _S, model.d_model), {0: "rows", 1: "source"}),
        GraphInput("copy_values", torch.zeros(_B, _S, model.d_model), {0: "rows", 1: "source"}),
    ]
    shape = (_B, model.decoder_heads, _S, model.head_dim)
    for layer in range(model.decoder_layers):
        inputs += [
            GraphInput(f"source_{part}{layer}", torch.zeros(shape), {0: "rows", 2: "source"})
            for part in ("keys", "values")
        ]
    return inputs


class _EncoderModule(nn.Module):
    def __init__(self, network: SpecDrafterNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.network.source_tensors(ids, self.network.encoder.states(ids, mask))


class DraftModule(nn.Module):
    """Prefixes with masked slots in, scores of chosen slots out."""

    def __init__(self, network: SpecDrafterNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        ids: Tensor,
        is_slot: Tensor,
        mask: Tensor,
        scored: Tensor,
        source_mask: Tensor,
        copy_keys: Tensor,
        copy_values: Tensor,
        *layers: Tensor,
    ) -> Tensor:
        """Run the decoder.

        Args:
            ids, is_slot: [B, n].
            mask: [B, 1, 1, n] hides padding.
            scored: [m] which of the B * n states are projected.
            source_mask, copy_keys, copy_values: of the sources.
            layers: per layer, keys and values of the source [B, H, S, d].

        Returns:
            logits [m, V].
        """
        keys_values = list(zip(layers[::2], layers[1::2], strict=True))
        source = cast("EncodedDraftSource", _Source(source_mask, copy_keys, copy_values, keys_values))
        states = self.network.decoder(ids, self.network.with_slot_tokens(ids, is_slot), mask, source)
        return self.network.project(F.embedding(scored, states.flatten(0, 1)))


@dataclass(frozen=True)
class _Source:
    """What the decoder reads of an `EncodedDraftSource`."""

    mask: Tensor
    copy_keys: Tensor
    copy_values: Tensor
    layers: list[tuple[Tensor, Tensor]]
