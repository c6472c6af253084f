"""What a batch has committed so far, and the arithmetic of a round on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from spec2seq.types import DraftBlock, Prefix, pad_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.types import Acceptance

GROWTH = 64  # few enough that little is computed on stale ids, so many that copying is rare


@dataclass(frozen=True)
class VerifyInput:
    """Arguments of one verifier call: tokens and positions [B, n], real queries [B], scored queries [B, m] or None."""

    tokens: Tensor
    positions: Tensor
    lengths: Tensor
    queries: Tensor | None


@dataclass(frozen=True)
class Commitment:
    """What a round appended to each row: token ids [B, k+1], how many of them are real [B] and how many of those
    are draft tokens [B], and whether the last real one ends the sequence [B]."""

    tokens: Tensor
    num_tokens: Tensor
    num_accepted: Tensor
    is_ended: Tensor


@dataclass(frozen=True)
class DecodeState:
    """Committed tokens of B live rows.

    Attributes:
        tokens: [B, T] ids; what lies beyond a row's length is stale. Written in place by `commit`, always beyond the
            lengths of the states that share it.
        lengths: [B] committed tokens, decoder start included.
        cached: [B] how many of them the verifier's cache holds.
        prompt_lengths: [B] tokens given before generation: decoder start and target prefix.
        max_lengths: [B] the length at which a row is cut.
    """

    tokens: Tensor
    lengths: Tensor
    cached: Tensor
    prompt_lengths: Tensor
    max_lengths: Tensor

    @classmethod
    def start(
        cls,
        committed: Sequence[Sequence[int]],
        prompt_lengths: Sequence[int],
        max_lengths: Sequence[int],
        device: torch.device | str,
    ) -> DecodeState:
        """Rows that have committed their prompts (and forced first tokens) and cached nothing."""
        tokens, lengths = pad_rows(committed, 0, device)
        return cls(
            tokens,
            lengths,
            torch.zeros_like(lengths),
            torch.tensor(prompt_lengths, dtype=torch.long, device=device),
            torch.tensor(max_lengths, dtype=torch.long, device=device),
        )

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.tokens, self.lengths)

    def concat(self, other: DecodeState) -> DecodeState:
        """The rows of both, self first."""
        width = max(self.tokens.shape[1], other.tokens.shape[1])
        return DecodeState(
            torch.cat([_widen(self.tokens, width), _widen(other.tokens, width)]),
            torch.cat([self.lengths, other.lengths]),
            torch.cat([self.cached, other.cached]),
            torch.cat([self.prompt_lengths, other.prompt_lengths]),
            torch.cat([self.max_lengths, other.max_lengths]),
        )

    def select_rows(self, rows: Tensor) -> DecodeState:
        """The rows `rows` [B'] in that order."""
        return DecodeState(
            self.tokens[rows],
            self.lengths[rows],
            self.cached[rows],
            self.prompt_lengths[rows],
            self.max_lengths[rows],
        )

    def fit(self, draft: DraftBlock) -> DraftBlock:
        """Cut the draft so that it and the verifier's own token stay within every row's budget.

        Columns that no row uses any more are dropped.
        """
        lengths = torch.minimum(draft.lengths, self.max_lengths - self.lengths - 1)
        width = int(lengths.max())
        log_probs = None if draft.log_probs is None else draft.log_probs[:, :width]
        return DraftBlock(draft.tokens[:, :width], lengths, log_probs)

    def with_draft(self, draft: DraftBlock) -> Tensor:
        """Committed tokens of every row followed directly by its draft tokens, [B, T'] with T' >= longest + k."""
        num_slots = draft.num_slots
        state = self.reserve(num_slots)
        slots = self.lengths[:, None] + torch.arange(num_slots, device=self.tokens.device)
        return state.tokens.scatter(1, slots, draft.tokens) if num_slots else state.tokens

    def verify_input(self, draft: DraftBlock) -> VerifyInput:
        """Every committed token that is not cached yet, then the draft; a query is scored for the last committed
        token and for each drafted one."""
        pending = self.lengths - self.cached
        num_slots, device = draft.num_slots, self.tokens.device
        longest = int(pending.max())
        if longest == 1:
            last = self.tokens.gather(1, self.cached[:, None])
            offsets = torch.arange(num_slots + 1, device=device)
            tokens = torch.cat([last, draft.tokens], dim=1) if num_slots else last
            return VerifyInput(tokens, self.cached[:, None] + offsets, draft.lengths + 1, None)
        all_tokens = self.with_draft(draft)
        positions = self.cached[:, None] + torch.arange(longest + num_slots, device=device)
        tokens = all_tokens.gather(1, positions.clamp(max=all_tokens.shape[1] - 1))
        queries = (pending - 1)[:, None] + torch.arange(num_slots + 1, device=device)
        return VerifyInput(tokens, positions, pending + draft.lengths, queries)

    def reserve(self, num_tokens: int) -> DecodeState:
        """Make room for `num_tokens` more ids behind the longest row, in steps of `GROWTH`."""
        needed = int(self.lengths.max()) + num_tokens
        if needed <= self.tokens.shape[1]:
            return self
        return replace(self, tokens=_widen(self.tokens, grown_width(needed)))

    def commit(
        self, draft: DraftBlock, acceptance: Acceptance, eos_token_ids: Tensor
    ) -> tuple[DecodeState, Commitment]:
        """Append accepted draft tokens and the verifier's token, cut after the first EOS.

        Args:
            draft: tokens [B, k], already fitted.
            acceptance: what the rule decided about them.
            eos_token_ids: [E] ids that end a sequence; E may be 0.
        """
        num_accepted = acceptance.num_accepted[:, None]
        offsets = torch.arange(draft.num_slots + 1, device=self.tokens.device)
        emitted = acceptance.next_tokens[:, None]
        if draft.num_slots:
            emitted = torch.where(
                offsets < num_accepted, torch.cat([draft.tokens, emitted], dim=1), emitted.expand(-1, len(offsets))
            )
        ends = (emitted[..., None] == eos_token_ids).any(-1) & (offsets <= num_accepted)
        is_ended = ends.any(-1)
        first_end = ends.long().argmax(-1)
        num_tokens = torch.where(is_ended, first_end, acceptance.num_accepted) + 1
        state = self.reserve(draft.num_slots + 1)
        state.tokens.scatter_(1, self.lengths[:, None] + offsets, emitted)
        lengths = self.lengths + num_tokens
        accepted = torch.minimum(acceptance.num_accepted, num_tokens)
        return (
            replace(state, lengths=lengths, cached=lengths - 1),
            Commitment(emitted, num_tokens, accepted, is_ended),
        )


def grown_width(needed: int) -> int:
    """The width that a buffer of at least `needed` token ids gets."""
    return -(-needed // GROWTH) * GROWTH


def _widen(tokens: Tensor, width: int) -> Tensor:
    extra = width - tokens.shape[1]
    return torch.nn.functional.pad(tokens, (0, extra)) if extra > 0 else tokens
