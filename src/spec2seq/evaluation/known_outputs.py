"""Outputs of a verifier that are known already, and its states over them: one call for all positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional as F

from spec2seq.types import SourceBatch, Wanted, pad_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.config import ModelConfig
    from spec2seq.interfaces import EncoderOutput, Verifier


class ReferencePair(Protocol):
    """A source and the verifier's output for it, its first `num_forced` tokens forced.

    `decoder_start` is what stands before the output, where that is not the model's own start token.
    """

    @property
    def source_ids(self) -> Sequence[int]: ...

    @property
    def target_ids(self) -> Sequence[int]: ...

    @property
    def num_forced(self) -> int: ...

    @property
    def decoder_start(self) -> int | None: ...


@dataclass(frozen=True)
class KnownOutputs:
    """Sources and outputs of B pairs.

    Attributes:
        targets: [B, T] outputs, ends of sequence included; lengths [B].
        inputs: [B, T + 1] the same behind their decoder start tokens.
        num_forced: [B] first tokens of the outputs that are never drafted.
    """

    source: SourceBatch
    targets: Tensor
    lengths: Tensor
    inputs: Tensor
    num_forced: Tensor

    @classmethod
    def of(cls, pairs: Sequence[ReferencePair], config: ModelConfig, device: torch.device) -> KnownOutputs:
        """Pairs of a model of this configuration, padded."""
        source = SourceBatch.from_lists([pair.source_ids for pair in pairs], config.pad_token_id, device)
        targets, lengths = pad_rows([pair.target_ids for pair in pairs], config.pad_token_id, device)
        starts = [
            pair.decoder_start if pair.decoder_start is not None else config.decoder_start_token_id for pair in pairs
        ]
        inputs = torch.cat([torch.tensor(starts, device=device)[:, None], targets], dim=1)
        return cls(source, targets, lengths, inputs, torch.tensor([pair.num_forced for pair in pairs], device=device))


def forced_states(
    verifier: Verifier, encoded: EncoderOutput, known: KnownOutputs, hidden_layers: tuple[int, ...]
) -> Tensor | None:
    """What layers of the decoder make of known outputs.

    Args:
        encoded: the sources of `known`.
        hidden_layers: which layers.

    Returns:
        [B, T, N, D] at every position that precedes a token of an output; behind a row's last one, whatever. None where
        no layer is wanted.
    """
    if not hidden_layers:
        return None
    inputs = known.inputs[:, :-1]
    positions = torch.arange(inputs.shape[1], device=inputs.device).expand_as(inputs)
    # no scores are wanted, but a call has to ask for some
    first = torch.zeros_like(known.lengths)[:, None]
    wanted = Wanted(top=0, hidden_layers=hidden_layers)
    cache = verifier.new_cache(len(inputs))
    return verifier.decode(inputs, positions, known.lengths, cache, encoded, wanted, queries=first).hidden


def states_from(states: Tensor, begins: Tensor, count: int) -> Tensor:
    """The states [B, T, N, D] of `count` positions of each row, from begins [B] on; zeros behind the last."""
    places = begins[:, None] + torch.arange(count, device=begins.device)
    padded = F.pad(states, (0, 0, 0, 0, 0, 1))
    rows = torch.arange(len(states), device=begins.device)[:, None]
    return padded[rows, places.clamp(max=states.shape[1])]
