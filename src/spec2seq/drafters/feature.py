"""Drafting a block in one cheap pass over what the verifier has computed already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec2seq.drafters.block_length import BlockLength
from spec2seq.types import DraftBlock, Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.interfaces import BlockScores, Cache, Choose, DraftSource, EncoderOutput, FeatureNetwork
    from spec2seq.types import Acceptance, DecoderOutput, Prefix, SourceBatch


class FeatureDrafter:
    """Lets a `FeatureNetwork` guess the next tokens of every prefix from the verifier's states of it.

    Its cache has the keys and values of the positions that the verifier was fed, `_num_known` per row: all tokens of
    the prefix but the last. Forgetting what a round rejected is not counting it.

    Args:
        network: on the device of the loop. "auto" drafts as many tokens as its blocks had in training.
    """

    def __init__(self, network: FeatureNetwork) -> None:
        self.network = network
        self.hidden_layers: tuple[int, ...] = network.config.hidden_layers
        self._block = BlockLength(network.config.block_size)
        self.default_num_draft_tokens = network.config.block_size
        self.max_draft_tokens: int | None = network.config.max_positions
        self._source: DraftSource | None = None
        self._cache: Cache = network.new_cache(0)
        self._num_known: Tensor | None = None  # [B]

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """As `Drafter.start`. The verifier's encoder is the only one."""
        mine = self.network.encode(encoded.hidden, encoded.lengths)
        nothing = torch.zeros_like(encoded.lengths)
        if self._source is None or self._num_known is None:
            self._source, self._num_known = mine, nothing
            self._cache = self.network.new_cache(len(nothing))
        else:
            self._source, self._num_known = self._source.concat(mine), torch.cat([self._num_known, nothing])
            self._cache = self._cache.append_rows(len(nothing))

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        """As `Drafter.propose`. A row whose block would run past the network's positions gets an empty one.

        Warns:
            UserWarning: more tokens are asked for than the blocks of the training had; once.
        """
        if self._source is None or self._num_known is None:
            raise AssertionError("propose was called before start")
        self._block.warn_beyond(num_draft_tokens)
        positions = prefix.lengths - 1
        is_possible = positions + num_draft_tokens <= self.network.config.max_positions
        if not bool(is_possible.any()):
            return DraftBlock.empty(len(is_possible), is_possible.device)
        anchors = prefix.ids.gather(1, positions[:, None])[:, 0]
        scores = self.network.draft(
            anchors,
            positions,
            self._num_known,
            num_draft_tokens,
            self._cache,
            self._source,
            Wanted(logits=choose is not None),
        )
        tokens = scores.tokens() if choose is None else _chosen(scores, anchors, num_draft_tokens, choose)
        return DraftBlock(tokens, is_possible * num_draft_tokens)

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        """As `Drafter.commit`: keeps what the verifier made of the tokens that stay, and may keep what it made of the
        others, which the next block overwrites or does not look at."""
        if self._num_known is None or output.hidden is None:
            raise AssertionError("commit was called before start, or without the verifier's states")
        fed = torch.arange(output.hidden.shape[1], device=self._num_known.device)
        self.network.remember(output.hidden, self._num_known[:, None] + fed, self._cache)
        self._num_known = prefix.lengths + acceptance.num_accepted

    def select_rows(self, rows: Tensor) -> None:
        """As `Drafter.select_rows`."""
        if self._source is None or self._num_known is None or not len(rows):
            self._source = self._num_known = None
            return
        self._source, self._num_known = self._source.select_rows(rows), self._num_known[rows]
        self._cache = self._cache.select_rows(rows)


def _chosen(scores: BlockScores, anchors: Tensor, num_draft_tokens: int, choose: Choose) -> Tensor:
    """Tokens [B, k], each drawn from the law behind the one before it."""
    tokens, last = [], anchors
    for slot in range(num_draft_tokens):
        last = choose(scores.log_probs(slot, last), slot)
        tokens.append(last)
    return torch.stack(tokens, dim=1)
