"""The verifier as it teaches drafters that read its states: frozen, one pass per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.evaluation.known_outputs import KnownOutputs, forced_states
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.types import SourceBatch

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.training.batches import TrainingBatch


class TaughtStates(NamedTuple):
    """What the verifier makes of a batch.

    Attributes:
        known: the batch.
        encoded: [B, S, D] encoder states.
        states: [B, T, N, D] of the decoder's asked layers, at every position that precedes a target token.
        last: [B, T, D] of its last layer.
    """

    known: KnownOutputs
    encoded: Tensor
    states: Tensor
    last: Tensor


class Teacher:
    """A verifier that is not trained. It follows the batches to their device, and multiplies as the training does.

    Args:
        network: in fp32.
        hidden_layers: the decoder layers whose outputs are learned from.
    """

    def __init__(self, network: Seq2Seq, hidden_layers: tuple[int, ...]) -> None:
        self.network = network
        self._hidden_layers = hidden_layers
        self._engine: TorchVerifier | None = None

    def move(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Be on this device and multiply in this type; returns whether anything changed."""
        if self._engine is not None and (self._engine.device, self._engine.dtype) == (device, dtype):
            return False
        self.network.to(device)
        self._engine = TorchVerifier(_copy_of(self.network, dtype), device)
        return True

    @torch.no_grad()
    def states(self, batch: TrainingBatch) -> TaughtStates:
        """The states of a batch; after `move`."""
        assert self._engine is not None
        engine = self._engine
        inputs = torch.cat([batch.decoder_starts[:, None], batch.target_ids], dim=1)
        source = SourceBatch(batch.source_ids, batch.source_lengths)
        known = KnownOutputs(source, batch.target_ids, batch.target_lengths, inputs, batch.num_forced)
        with torch.autocast(engine.device.type, enabled=False):
            # not `encode`, which would cut the padding that makes batches alike
            hidden = engine.network.encode(source.ids, source.lengths)
            encoded = engine.from_encoder(hidden, source.lengths)
            layers = (*self._hidden_layers, self.network.config.decoder_layers)
            states = forced_states(engine, encoded, known, layers)
        assert states is not None
        return TaughtStates(known, hidden, states[:, :, :-1], states[:, :, -1])


def _copy_of(network: Seq2Seq, dtype: torch.dtype) -> Seq2Seq:
    """The network itself where it is of that type, else a copy."""
    if network.dtype == dtype:
        return network
    copy = Seq2Seq(network.config, dtype)
    for mine, stored in zip(copy.parameters(), network.parameters(), strict=True):
        mine.data.copy_(stored.data)
    return copy


def product_type(states: torch.Tensor) -> torch.dtype:
    """The type that products of such numbers have here: autocast's where it is on."""
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
