"""The verifier's network, cut into the graphs that the engine calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spec2seq.backends.openvino.tracing import GraphInput, trace_graph, with_scaled_queries
from spec2seq.nn.masks import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.config import ModelConfig
    from spec2seq.nn.kv_cache import KeyValueCache
    from spec2seq.nn.seq2seq import Seq2Seq

# sizes to trace with: rows, queries, cached slots, source positions, scored queries
_B, _N, _T, _S, _M = 2, 3, 5, 7, 4


def verifier_graphs(network: Seq2Seq) -> dict[str, Any]:
    """The graphs "encoder", "cross" and "step" of a network in fp32, as openvino.Models.

    encoder: ids [B, S], mask [B, 1, 1, S] -> hidden [B, S, D]
    cross: hidden [B, S, D] -> cross [L, 2, B, H, S, d], keys and values of every decoder layer
    step: see `StepModule`.
    """
    network = cast("Seq2Seq", with_scaled_queries(network))
    step = trace_graph(StepModule(network), verifier_inputs(network.config)["step"], ["logits", "new", "states"])
    return {**source_graphs(network), "step": step}


def source_graphs(network: Seq2Seq) -> dict[str, Any]:
    """The graphs "encoder" and "cross" alone."""
    network = cast("Seq2Seq", with_scaled_queries(network))
    inputs = verifier_inputs(network.config)
    return {
        "encoder": trace_graph(_EncoderModule(network), inputs["encoder"], ["hidden"]),
        "cross": trace_graph(network.cross, inputs["cross"], ["cross"]),
    }


def verifier_inputs(config: ModelConfig) -> dict[str, list[GraphInput]]:
    """The inputs of every graph."""
    ids = GraphInput("ids", torch.zeros(_B, _S, dtype=torch.int32), {0: "rows", 1: "source"})
    mask = GraphInput("mask", torch.zeros(_B, 1, 1, _S), {0: "rows", 3: "source"})
    hidden = GraphInput("hidden", torch.zeros(_B, _S, config.d_model), {0: "rows", 1: "source"})
    return {"encoder": [ids, mask], "cross": [hidden], "step": _step_inputs(config)}


def step_outputs(hidden_layers: Sequence[int] = ()) -> tuple[str, ...]:
    """The outputs of the step that a call computes which asks for the states of these layers."""
    return ("logits", "new", "states") if hidden_layers else ("logits", "new")


def _step_inputs(config: ModelConfig) -> list[GraphInput]:
    """The inputs of `StepModule.forward`, in order."""
    heads, width = config.decoder_heads, config.head_dim
    inputs = [
        GraphInput("tokens", torch.zeros(_B, _N, dtype=torch.int32), {0: "rows", 1: "queries"}),
        GraphInput("positions", torch.zeros(_B, _N, dtype=torch.int32), {0: "rows", 1: "queries"}),
        GraphInput("key_positions", torch.zeros(_B, _T + _N, dtype=torch.int32), {0: "rows", 1: "keys"}),
        GraphInput("mask", torch.zeros(_B, 1, _N, _T + _N), {0: "rows", 2: "queries", 3: "keys"}),
        GraphInput("source_mask", torch.zeros(_B, 1, 1, _S), {0: "rows", 3: "source"}),
        GraphInput("scored", torch.zeros(_M, dtype=torch.int32), {0: "scored"}),
    ]
    for layer in range(config.decoder_layers):
        inputs += [
            GraphInput(f"past_{part}{layer}", torch.zeros(_B, _T, heads, width), {0: "rows", 1: "slots"})
            for part in ("keys", "values")
        ]
        inputs += [
            GraphInput(f"source_{part}{layer}", torch.zeros(_B, heads, _S, width), {0: "rows", 2: "source"})
            for part in ("keys", "values")
        ]
    return inputs


class _EncoderModule(nn.Module):
    def __init__(self, network: Seq2Seq) -> None:
        super().__init__()
        self.encoder = network.encoder

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.encoder.states(ids, mask)


class StepModule(nn.Module):
    """One verifier call: queries in, scores and their keys and values out. The cache itself stays outside."""

    def __init__(self, network: Seq2Seq) -> None:
        super().__init__()
        self.network = network

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        key_positions: Tensor,
        mask: Tensor,
        source_mask: Tensor,
        scored: Tensor,
        *layers: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the decoder.

        Args:
            tokens, positions: [B, n].
            key_positions: [B, T + n] of the cached slots, then of the queries. Read for relative positions only.
            mask: [B, 1, n, T + n] added to the scores of self-attention.
            source_mask: [B, 1, 1, S].
            scored: [m] which of the B * n queries are projected.
            layers: per layer, cached keys and values [B, T, H, d], and those of the source [B, H, S, d].

        Returns:
            logits [m, V]; the queries' own projections [L * B, n, 3, H, d] (queries, keys, values); states
            [B, n, L + 1, D] of every layer, embeddings first.
        """
        windows = [_Window(keys, values) for keys, values in zip(layers[::4], layers[1::4], strict=True)]
        source = list(zip(layers[2::4], layers[3::4], strict=True))
        placement = Placement(positions, positions, None, mask.shape[3], True)
        cache = cast("KeyValueCache", _OpenedCache(windows, key_positions))
        states = self.network.decoder.forward(tokens, placement, mask, cache, source, source_mask)
        logits = self.network.project(F.embedding(scored, states[-1].flatten(0, 1)))
        # in one output: taking one out of the engine costs more than a layer that nobody asked for
        return logits, torch.cat([window.new for window in windows]), torch.stack(states, dim=2)


class _Window:
    """One layer's cached keys and values [B, T, H, d], followed by those of the call."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values

    def exchange(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `LayerWindow.exchange`; what is new is kept in `new` [B, n, 3, H, d] for somebody else to store."""
        self.new = qkv
        queries, keys, values = qkv.flatten(2, 3).chunk(3, dim=2)
        keys, values = torch.cat([self._keys, keys], dim=1), torch.cat([self._values, values], dim=1)
        return queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)


class _OpenedCache:
    """What `Decoder.forward` asks of a `KeyValueCache`, on the inputs of a graph."""

    def __init__(self, windows: Sequence[_Window], key_positions: Tensor) -> None:
        self._windows = windows
        self.slot_positions = key_positions

    def open(self, slots: Tensor, num_slots: int, first_slot: int | None, is_final: bool) -> Sequence[_Window]:
        """The windows; there is always room."""
        return self._windows

    def remember_positions(self, slots: Tensor, positions: Tensor, num_slots: int) -> Tensor:
        """The positions of all keys [B, T + n]."""
        return self.slot_positions
