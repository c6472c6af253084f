"""Drafting with heads on the verifier's last hidden state (Stern et al. 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec2seq.drafters.independent_slots import chosen_tokens
from spec2seq.types import DraftBlock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from spec2seq.interfaces import Choose, EncoderOutput
    from spec2seq.nn.blockwise_heads import BlockwiseHeads
    from spec2seq.types import Acceptance, DecoderOutput, Prefix, SourceBatch


class BlockwiseDrafter:
    """Drafts from the state of the last token that the verifier was fed; before the first round there is none.

    Args:
        network: attached to the verifier, on the device of the loop. "auto" drafts at most a token per head.
    """

    def __init__(self, network: BlockwiseHeads) -> None:
        self.network = network
        self.survival: Mapping[int, Sequence[float]] | None = None  # see `Drafter`; whoever loads it may know
        self.hidden_layers: tuple[int, ...] = (network.config.verifier.decoder_layers,)
        self.default_num_draft_tokens = network.config.block_size
        self.max_draft_tokens: int | None = network.config.block_size
        self._num_fed: Tensor | None = None  # [B] positions before the last committed token; 0 where none was fed
        self._states: Tensor | None = None  # [B, D] of the last of them

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """As `Drafter.start`. Neither is read."""
        nothing = torch.zeros_like(encoded.lengths)
        states = encoded.hidden.new_zeros(len(nothing), self.network.config.verifier.d_model)
        if self._num_fed is None or self._states is None:
            self._num_fed, self._states = nothing, states
        else:
            self._num_fed, self._states = torch.cat([self._num_fed, nothing]), torch.cat([self._states, states])

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        """As `Drafter.propose`; empty blocks in a row's first round."""
        if self._num_fed is None or self._states is None:
            raise AssertionError("propose was called before start")
        lengths = (self._num_fed > 0) * num_draft_tokens
        if not bool(lengths.any()):
            return DraftBlock.empty(len(lengths), lengths.device)
        scores = self.network.draft(self._states, num_draft_tokens)
        return DraftBlock(chosen_tokens(scores, choose), lengths)

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        """As `Drafter.commit`: keeps the state of the last token that stays."""
        if self._num_fed is None or output.hidden is None:
            raise AssertionError("commit was called before start, or without the verifier's states")
        num_fed = prefix.lengths + acceptance.num_accepted
        rows = torch.arange(len(num_fed), device=num_fed.device)
        self._states = output.hidden[rows, num_fed - self._num_fed - 1, 0]
        self._num_fed = num_fed

    def select_rows(self, rows: Tensor) -> None:
        """As `Drafter.select_rows`."""
        if self._num_fed is None or self._states is None or not len(rows):
            self._num_fed = self._states = None
            return
        self._num_fed, self._states = self._num_fed[rows], self._states[rows]
