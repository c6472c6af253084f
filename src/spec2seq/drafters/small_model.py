"""Drafting with a smaller model of the same vocabulary, token after token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec2seq.types import DraftBlock, SourceBatch, Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from spec2seq.interfaces import Cache, Choose, EncoderOutput, Verifier
    from spec2seq.types import Acceptance, DecoderOutput, Prefix, Scores


class SmallModelDrafter:
    """Lets a smaller encoder-decoder continue every prefix by greedy search, or as the loop chooses.

    It encodes the sources itself and keeps its own cache, of which `_cached` tokens per row belong to the prefix. What
    a round rejects is forgotten by shortening that number; what it never saw is fed before the next draft: tokens of
    the verifier, given and forced ones, and its own last draft token.

    Args:
        verifier: the engine of the small model, on the device of the loop. Sources too long for it are cut: a draft may
            be wrong. Prefixes too long for it get empty blocks.
    """

    hidden_layers: tuple[int, ...] = ()
    default_num_draft_tokens = 5

    def __init__(self, verifier: Verifier) -> None:
        self.network = verifier
        self._limit = verifier.config.max_target_positions
        self.max_draft_tokens = self._limit
        # pad is no text, yet the likeliest id of Marian models, which ban it in their generation settings
        self._banned = (verifier.config.pad_token_id,)
        self._encoded: EncoderOutput | None = None
        self._cache: Cache = verifier.new_cache(0)
        self._cached = torch.zeros(0, dtype=torch.long, device=verifier.device)  # [B]

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        """As `Drafter.start`. The verifier's `encoded` is of no use to another model."""
        limit, ids, lengths = self.network.config.max_source_positions, source.ids, source.lengths
        if limit is not None:
            ids, lengths = ids[:, :limit], lengths.clamp(max=limit)
        mine = self.network.encode(SourceBatch(ids, lengths))
        if self._encoded is None:
            self._encoded, self._cache = mine, self.network.new_cache(len(lengths))
        else:
            self._encoded, self._cache = self._encoded.concat(mine), self._cache.append_rows(len(lengths))
        self._cached = torch.cat([self._cached, torch.zeros_like(lengths)])

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        """As `Drafter.propose`; the block ends early when every row of it has ended."""
        lengths = self._num_possible(prefix.lengths, num_draft_tokens)
        if not bool(lengths.any()):
            return DraftBlock.empty(len(lengths), lengths.device)
        is_ended = lengths == 0
        wanted = Wanted(top=0 if choose else 1, logits=choose is not None, banned=self._banned)
        scores = self._catch_up(prefix, wanted)
        ones = torch.ones_like(lengths)
        drafted: list[Tensor] = []
        while True:
            drafted.append(_pick(scores, choose, len(drafted)))
            for eos in self.network.config.eos_token_ids:
                is_ended = is_ended | (drafted[-1] == eos)
            if len(drafted) == num_draft_tokens or bool(is_ended.all()):
                break
            scores = self._feed(drafted[-1][:, None], self._cached[:, None], ones, None, wanted)
            self._cached = self._cached + 1
        return DraftBlock(torch.stack(drafted, dim=1), lengths.clamp(max=len(drafted)))

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        """As `Drafter.commit`: the cache keeps the accepted tokens it holds."""
        self._cached = self._cached.minimum(prefix.lengths + acceptance.num_accepted)

    def select_rows(self, rows: Tensor) -> None:
        """As `Drafter.select_rows`."""
        if self._encoded is None or not len(rows):
            self._encoded, self._cached = None, self._cached[:0]
            return
        self._encoded, self._cache = self._encoded.select_rows(rows), self._cache.select_rows(rows)
        self._cached = self._cached[rows]

    def _num_possible(self, prefix_lengths: Tensor, num_draft_tokens: int) -> Tensor:
        """All tokens or none per row [B]: feeding all but the last must not run past the positions."""
        wanted = torch.full_like(prefix_lengths, num_draft_tokens)
        if self._limit is None:
            return wanted
        return wanted.masked_fill_(prefix_lengths + num_draft_tokens - 1 > self._limit, 0)

    def _catch_up(self, prefix: Prefix, wanted: Wanted) -> Scores:
        """Feed what the cache lacks of the prefix. Returns the scores [B, 1, V] of the next token."""
        # the last token is always fed: its scores are wanted, even if a round was given up before its commit
        begins = self._cached.minimum(prefix.lengths - 1)
        pending = prefix.lengths - begins
        positions = begins[:, None] + torch.arange(int(pending.max()), device=pending.device)
        tokens = prefix.ids.gather(1, positions.clamp(max=prefix.ids.shape[1] - 1))
        start = self.network.config.decoder_start_token_id
        if start >= 0:  # below 0 each row starts with its language code
            tokens = tokens.masked_fill(positions == 0, start)
        self._cached = prefix.lengths
        queries = None if positions.shape[1] == 1 else pending[:, None] - 1
        return self._feed(tokens, positions, pending, queries, wanted)

    def _feed(
        self, tokens: Tensor, positions: Tensor, lengths: Tensor, queries: Tensor | None, wanted: Wanted
    ) -> Scores:
        if self._encoded is None:
            raise RuntimeError("propose was called before start")
        return self.network.decode(
            tokens, positions, lengths, self._cache, self._encoded, wanted, queries=queries
        ).scores


def _pick(scores: Scores, choose: Choose | None, index: int) -> Tensor:
    """Token `index` of the block [B]: the best one, or what `choose` draws from the law."""
    if choose is None:
        return scores.top(1)[1][:, 0, 0]
    return choose(scores.logits()[:, 0].log_softmax(dim=-1), index)
