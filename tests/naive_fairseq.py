"""The released models written down as directly as can be: one sequence, fairseq's names, no cache, no padding.

What the package computes in batches and blocks must be what these few functions compute. Leading dimensions are let
through, so that equally long sequences can be trained on together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

EOS, UNKNOWN = 2, 3
OFFSET = 2  # of the first position in a table


@dataclass(frozen=True)
class NaiveModel:
    """A `transformer` or a `block`: learned positions, norms last, GELU."""

    tensors: Mapping[str, Tensor]
    num_heads: int
    scale: float

    def encode(self, source: Tensor) -> Tensor:
        """Source ids [..., S] to states [..., S, D]."""
        states = self._embedded(source) + self._positions("encoder", source.shape[-1])
        for layer in self._layers("encoder"):
            states = self._attended(f"{layer}.self_attn", states, states, None)
            states = self._fed_forward(layer, states)
        return states

    def next_logits(self, source_states: Tensor, target: Tensor) -> Tensor:
        """What follows each of the target ids [..., T], start token first: logits [..., T, V]."""
        length = target.shape[-1]
        states = self._embedded(target) + self._positions("decoder", length)
        causal = torch.full((length, length), -torch.inf, dtype=states.dtype).triu(1)
        for layer in self._layers("decoder"):
            states = self._attended(f"{layer}.self_attn", states, states, causal)
            states = self._attended(f"{layer}.encoder_attn", states, source_states, None)
            states = self._fed_forward(layer, states)
        return states @ self.tensors["decoder.output_projection.weight"].T

    def draft_logits(self, source: Tensor, source_states: Tensor, target: Tensor) -> Tensor:
        """What stands in each place of the target ids [..., T] without start token, `<unk>` marking slots."""
        positions = self._positions("decoder", target.shape[-1])
        embedded = self._embedded(source)
        keys = embedded + self._positions("encoder", source.shape[-1])
        queries = positions @ self.tensors["decoder.copy_attn.weight"].T
        copied = (queries @ keys.transpose(-1, -2)).softmax(-1) @ embedded
        states = torch.where((target == UNKNOWN)[..., None], copied, self._embedded(target))
        for layer in self._layers("decoder"):
            states = states + positions
            states = self._attended(f"{layer}.self_attn", states, states, None)
            states = self._attended(f"{layer}.encoder_attn", states, source_states, None)
            states = self._fed_forward(layer, states)
        return states @ self.tensors["decoder.output_projection.weight"].T

    def _layers(self, side: str) -> list[str]:
        numbers = {name.split(".")[2] for name in self.tensors if name.startswith(f"{side}.layers.")}
        return [f"{side}.layers.{number}" for number in sorted(numbers, key=int)]

    def _embedded(self, ids: Tensor) -> Tensor:
        return self.tensors["encoder.embed_tokens.weight"][ids] * self.scale

    def _positions(self, side: str, length: int) -> Tensor:
        return self.tensors[f"{side}.embed_positions.weight"][OFFSET : OFFSET + length]

    def _linear(self, name: str, states: Tensor) -> Tensor:
        return states @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def _normed(self, name: str, states: Tensor) -> Tensor:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return F.layer_norm(states, (states.shape[-1],), weight, bias, 1e-5)

    def _attended(self, name: str, states: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        width = states.shape[-1] // self.num_heads
        queries, keys, values = (
            self._linear(f"{name}.{kind}_proj", inputs).split(width, dim=-1)
            for kind, inputs in (("q", states), ("k", memory), ("v", memory))
        )
        heads = []
        for query, key, value in zip(queries, keys, values, strict=True):
            scores = query @ key.transpose(-1, -2) * width**-0.5
            heads.append((scores if mask is None else scores + mask).softmax(-1) @ value)
        return self._normed(f"{name}_layer_norm", states + self._linear(f"{name}.out_proj", torch.cat(heads, -1)))

    def _fed_forward(self, layer: str, states: Tensor) -> Tensor:
        inner = F.gelu(self._linear(f"{layer}.fc1", states))
        return self._normed(f"{layer}.final_layer_norm", states + self._linear(f"{layer}.fc2", inner))


@torch.no_grad()
def greedy(verifier: NaiveModel, source: Sequence[int], max_length: int) -> list[int]:
    """Plain greedy search: the ids before the end of sequence, at most `max_length`."""
    states, target = verifier.encode(torch.tensor(source)), [EOS]
    while len(target) <= max_length:
        best = int(verifier.next_logits(states, torch.tensor(target))[-1].argmax())
        if best == EOS:
            break
        target.append(best)
    return target[1:]


@torch.no_grad()
def speculate(
    verifier: NaiveModel, drafter: NaiveModel, source: Sequence[int], rules: tuple[int, int, float], max_length: int
) -> tuple[list[int], list[int]]:
    """Speculative decoding by the rules of the release (k, top_beta, tau): ids, and tokens gained in each round."""
    k, top_beta, tau = rules
    ids, gained = torch.tensor(source), []
    states, drafter_states = verifier.encode(ids), drafter.encode(ids)
    target: list[int] = []
    while True:
        slots = torch.tensor([*target, *[UNKNOWN] * k])
        draft = drafter.draft_logits(ids, drafter_states, slots)[-k:].argmax(-1).tolist()
        scores = verifier.next_logits(states, torch.tensor([EOS, *target, *draft]))[len(target) :]
        accepted: list[int] = []
        for token, row in zip(draft, scores, strict=False):
            is_near = float(row.max() - row[token]) <= tau and int((row > row[token]).sum()) < top_beta
            if not is_near:
                break
            accepted.append(token)
        accepted.append(int(scores[len(accepted)].argmax()))
        room = max_length - len(target)
        kept = accepted[: accepted.index(EOS)] if EOS in accepted else accepted
        target += kept[:room]
        gained.append(len(kept[:room]))
        if EOS in accepted[: room + 1] or len(accepted) > room:
            return target, gained
