"""Drafting a block in one cheap pass over what the verifier has computed already."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from spec2seq.arrays import as_tensor, numbers, picked
from spec2seq.drafters.block_length import BlockLength
from spec2seq.types import DraftBlock, Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from spec2seq.interfaces import BlockScores, Cache, Choose, DraftSource, EncoderOutput, FeatureNetwork
    from spec2seq.types import Acceptance, DecoderOutput, Prefix, SourceBatch


_BEST, _LAWS = Wanted(), Wanted(logits=True)


class FeatureDrafter:
    """Lets a `FeatureNetwork` guess the next tokens of every prefix from the verifier's states of it.

    Args:
        network: on the device of the loop. "auto" drafts at most as many tokens as its blocks had in training.
    """

    def __init__(self, network: FeatureNetwork) -> None:
        self.network = network
        self.survival: Mapping[int, Sequence[float]] | None = None  # see `Drafter`; whoever loads it may know
        self.hidden_layers: tuple[int, ...] = network.config.hidden_layers
        self.default_num_draft_tokens = network.config.block_size
        self.max_draft_tokens: int | None = network.config.max_positions
        self._block = BlockLength(network.config.block_size)
        # places that see later ones say less where these are missing, in training never
        self._least_places = network.config.block_size if network.config.block_attention == "bidirectional" else 0
        self._rows: _Rows | None = None

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """As `Drafter.start`. The verifier's encoder is the only one."""
        num_rows = len(encoded.lengths)
        rows = _Rows(
            self.network.encode(encoded.hidden, encoded.lengths),
            self.network.new_cache(num_rows) if self._rows is None else self._rows.cache.append_rows(num_rows),
            torch.zeros_like(encoded.lengths),
        )
        self._rows = rows if self._rows is None else self._rows.concat(rows)

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        """As `Drafter.propose`. A row whose block would run past the network's positions gets an empty one.

        Warns:
            UserWarning: more tokens are asked for than the blocks of the training had; once.
        """
        rows = self._known_rows()
        self._block.warn_beyond(num_draft_tokens)
        lengths = numbers(prefix.lengths)
        is_possible = lengths + num_draft_tokens <= self.network.config.max_positions + 1
        if not any(is_possible.tolist()):
            return DraftBlock.empty(len(lengths), prefix.lengths.device)
        anchors = as_tensor(picked(numbers(prefix.ids), lengths - 1))
        scores = self.network.draft(
            anchors,
            as_tensor(lengths - 1),
            rows.num_known,
            max(num_draft_tokens, self._least_places),
            rows.cache,
            rows.source,
            _BEST if choose is None else _LAWS,
        )
        if choose is None:
            tokens = as_tensor(numbers(scores.tokens())[:, :num_draft_tokens])
        else:
            tokens = _chosen(scores, anchors, num_draft_tokens, choose)
        return DraftBlock(tokens, as_tensor(is_possible * num_draft_tokens))

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        """As `Drafter.commit`: keeps what the verifier made of the tokens that stay, and may keep what it made of the
        others, which the next block overwrites or does not look at."""
        rows, states = self._known_rows(), output.hidden
        assert states is not None  # they are what `hidden_layers` asks for
        self.network.remember(states, rows.num_known, rows.cache)
        num_known = numbers(prefix.lengths) + numbers(acceptance.num_accepted)
        self._rows = _Rows(rows.source, rows.cache, as_tensor(num_known))

    def select_rows(self, rows: Tensor) -> None:
        """As `Drafter.select_rows`."""
        self._rows = self._rows.select(rows) if self._rows is not None and len(rows) else None

    def _known_rows(self) -> _Rows:
        if self._rows is None:
            raise AssertionError("start was not called")
        return self._rows


class _Rows(NamedTuple):
    """What is known of the rows.

    Attributes:
        source: what cross-attention reads.
        cache: keys and values of the positions that the verifier was fed, stale ones behind them.
        num_known: [B] how many positions those are: all of the prefix but its last token. Forgetting what a round
            rejected is not counting it.
    """

    source: DraftSource
    cache: Cache
    num_known: Tensor

    def concat(self, other: _Rows) -> _Rows:
        """Both, self first; the cache is common already."""
        return _Rows(self.source.concat(other.source), other.cache, torch.cat([self.num_known, other.num_known]))

    def select(self, rows: Tensor) -> _Rows:
        return _Rows(self.source.select_rows(rows), self.cache.select_rows(rows), self.num_known[rows])


def _chosen(scores: BlockScores, anchors: Tensor, num_draft_tokens: int, choose: Choose) -> Tensor:
    """Tokens [B, k], each drawn from the law behind the one before it."""
    tokens, last = [], anchors
    for slot in range(num_draft_tokens):
        last = choose(scores.log_probs(slot, last), slot)
        tokens.append(last)
    return torch.stack(tokens, dim=1)
