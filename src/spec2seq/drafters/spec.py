"""Drafting a whole block in one parallel pass with a network trained for it: the paper's Spec-Drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec2seq.drafters.block_length import BlockLength
from spec2seq.drafters.independent_slots import chosen_tokens
from spec2seq.types import DraftBlock, Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from spec2seq.interfaces import Choose, DraftNetwork, DraftSource, EncoderOutput
    from spec2seq.types import Acceptance, DecoderOutput, Prefix, SourceBatch


class SpecDrafter:
    """Lets a `DraftNetwork` guess the next tokens of every prefix, all at once.

    Args:
        network: on the device of the loop. "auto" drafts at most as many tokens as its blocks had in training.
    """

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, network: DraftNetwork) -> None:
        self.network = network
        self.survival: Mapping[int, Sequence[float]] | None = None  # see `Drafter`; whoever loads it may know
        self._block = BlockLength(network.config.block_size)
        self.default_num_draft_tokens = network.config.block_size
        self.max_draft_tokens: int | None = network.config.max_positions
        self._source: DraftSource | None = None

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """As `Drafter.start`. The network has an encoder of its own: the verifier's `encoded` is not read."""
        mine = self.network.encode(source)
        self._source = mine if self._source is None else self._source.concat(mine)

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        """As `Drafter.propose`. A row whose block would run past the network's positions gets an empty one; the others
        have `num_draft_tokens` slots laid all the same: what is drafted depends on how many there are.

        Warns:
            UserWarning: more tokens are asked for than the blocks of the training had; once.
        """
        if self._source is None:
            raise AssertionError("propose was called before start")
        self._block.warn_beyond(num_draft_tokens)
        is_possible = prefix.lengths - 1 + num_draft_tokens <= self.network.config.max_positions
        if not bool(is_possible.any()):
            return DraftBlock.empty(len(is_possible), is_possible.device)
        scores = self.network.draft(prefix, num_draft_tokens, self._source, Wanted(logits=choose is not None))
        return DraftBlock(chosen_tokens(scores, choose), is_possible * num_draft_tokens)

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        """As `Drafter.commit`: every block is drafted from the whole prefix, there is nothing to remember."""

    def select_rows(self, rows: Tensor) -> None:
        """As `Drafter.select_rows`."""
        self._source = self._source.select_rows(rows) if self._source is not None and len(rows) else None
