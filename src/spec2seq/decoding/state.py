"""What a batch has committed so far, and the arithmetic of a round on it.

Counts are on the host: the loop decides by them, nobody has to ask a GPU for them, and small operations of NumPy cost a
third of torch's. Token ids are where the model is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from spec2seq.arrays import as_tensor, joined, numbers, picked
from spec2seq.decoding.transfer import on_device
from spec2seq.types import DraftBlock, Prefix, pad_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from spec2seq.types import Acceptance

    Counts = NDArray[np.int64]
    Flags = NDArray[np.bool_]

GROWTH = 64  # few enough that little is computed on stale ids, so many that copying is rare


class VerifyInput(NamedTuple):
    """Arguments of one verifier call: tokens [B, n], positions [B, n] on the host, real queries [B], scored queries
    [B, m] or None."""

    tokens: Tensor
    positions: Tensor
    lengths: Tensor
    queries: Tensor | None


class Commitment(NamedTuple):
    """What a round appended to each row, on the host: token ids [B, k+1], how many of them are real [B] and how many
    of those are draft tokens [B], and whether the last real one ends the sequence [B]."""

    tokens: Counts
    num_tokens: Counts
    num_accepted: Counts
    is_ended: Flags


@dataclass(frozen=True)
class DecodeState:
    """Committed tokens of B live rows.

    Attributes:
        tokens: [B, T] ids on the model's device; what lies beyond a row's length is stale. Written in place by
            `commit`, always beyond the lengths of the states that share it.
        lengths: [B] committed tokens, decoder start included; on the host, as all that follows.
        cached: [B] how many of them the verifier's cache holds.
        prompt_lengths: [B] tokens given before generation: decoder start and target prefix.
        max_lengths: [B] the length at which a row is cut.
    """

    tokens: Tensor
    lengths: Counts
    cached: Counts
    prompt_lengths: Counts
    max_lengths: Counts

    @classmethod
    def start(
        cls,
        committed: Sequence[Sequence[int]],
        prompt_lengths: Sequence[int],
        max_lengths: Sequence[int],
        device: torch.device | str,
    ) -> DecodeState:
        """Rows that have committed their prompts (and forced first tokens) and cached nothing."""
        tokens, lengths = pad_rows(committed, 0)
        return cls(
            on_device(tokens.numpy(), torch.device(device)),
            lengths.numpy(),
            np.zeros(len(committed), dtype=np.int64),
            np.array(prompt_lengths, dtype=np.int64),
            np.array(max_lengths, dtype=np.int64),
        )

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.tokens, on_device(self.lengths, self.tokens.device))

    def concat(self, other: DecodeState) -> DecodeState:
        """The rows of both, self first."""
        width = max(self.tokens.shape[1], other.tokens.shape[1])
        return DecodeState(
            torch.cat([_widen(self.tokens, width), _widen(other.tokens, width)]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.cached, other.cached]),
            np.concatenate([self.prompt_lengths, other.prompt_lengths]),
            np.concatenate([self.max_lengths, other.max_lengths]),
        )

    def select_rows(self, rows: Tensor) -> DecodeState:
        """The rows `rows` [B'] in that order."""
        kept = rows.cpu().numpy()
        return DecodeState(
            self.tokens[rows],
            self.lengths[kept],
            self.cached[kept],
            self.prompt_lengths[kept],
            self.max_lengths[kept],
        )

    def fit(self, draft: DraftBlock) -> DraftBlock:
        """Cut the draft so that it and the verifier's own token stay within every row's budget.

        Columns that no row uses any more are dropped, as far as that can be told without waiting for a GPU.
        """
        if not draft.num_slots:
            return draft
        room = self.max_lengths - self.lengths - 1
        lengths = draft.lengths
        if min(room.tolist()) < draft.num_slots:
            lengths = torch.minimum(lengths, on_device(room, lengths.device))
        width = max((numbers(lengths) if lengths.is_cpu else room).tolist())
        if width >= draft.num_slots:
            return draft if lengths is draft.lengths else DraftBlock(draft.tokens, lengths, draft.log_probs)
        log_probs = None if draft.log_probs is None else draft.log_probs[:, :width]
        return DraftBlock(draft.tokens[:, :width], lengths, log_probs)

    def with_draft(self, draft: DraftBlock) -> Tensor:
        """Committed tokens of every row followed directly by its draft tokens, [B, T'] with T' >= longest + k."""
        tokens = self.reserve(draft.num_slots)
        if not draft.num_slots:
            return tokens
        return tokens.scatter(1, on_device(self._slots(draft.num_slots), tokens.device), draft.tokens)

    def verify_input(self, draft: DraftBlock) -> VerifyInput:
        """Every committed token that is not cached yet, then the draft; a query is scored for the last committed
        token and for each drafted one."""
        pending = self.lengths - self.cached
        num_slots, device = draft.num_slots, self.tokens.device
        longest = max(pending.tolist())
        positions = as_tensor(self.cached[:, None] + np.arange(longest + num_slots))
        lengths = on_device(pending, device)
        if num_slots:
            lengths = as_tensor(numbers(lengths) + numbers(draft.lengths))
        if longest == 1:
            tokens = picked(numbers(self.tokens), numbers(on_device(self.cached, device)))[:, None]
            if num_slots:
                tokens = joined(tokens, numbers(draft.tokens))
            return VerifyInput(as_tensor(tokens), positions, lengths, None)
        all_tokens = self.with_draft(draft)
        tokens = all_tokens.gather(1, positions.clamp(max=all_tokens.shape[1] - 1).to(device, non_blocking=True))
        queries = on_device((pending - 1)[:, None] + np.arange(num_slots + 1), device)
        return VerifyInput(tokens, positions, lengths, queries)

    def reserve(self, num_tokens: int) -> Tensor:
        """`tokens` with room for `num_tokens` more ids behind the longest row; grows in steps of `GROWTH`."""
        needed = max(self.lengths.tolist()) + num_tokens
        return self.tokens if needed <= self.tokens.shape[1] else _widen(self.tokens, grown_width(needed))

    def commit(
        self, draft: DraftBlock, acceptance: Acceptance, eos_token_ids: Sequence[int]
    ) -> tuple[DecodeState, Commitment]:
        """Append accepted draft tokens and the verifier's token, cut after the first EOS.

        Args:
            draft: tokens [B, k], already fitted; its tensors, as those of the other two, are on the host.
            acceptance: what the rule decided about them.
            eos_token_ids: those that end a sequence; there may be none.
        """
        num_slots, num_accepted = draft.num_slots, numbers(acceptance.num_accepted)
        emitted = numbers(acceptance.next_tokens)[:, None]
        if num_slots:
            # the verifier's token comes last too: what is stale must still be an id
            emitted = joined(numbers(draft.tokens), emitted)
            emitted[np.arange(len(emitted)), num_accepted] = emitted[:, -1]
        num_tokens, is_ended = _cut_at_ends(emitted, num_accepted, eos_token_ids)
        tokens = self.reserve(num_slots + 1)
        if tokens.is_cpu:
            numbers(tokens)[np.arange(len(emitted))[:, None], self._slots(num_slots + 1)] = emitted
        else:
            slots = on_device(self._slots(num_slots + 1), tokens.device)
            tokens.scatter_(1, slots, on_device(emitted, tokens.device))
        lengths = self.lengths + num_tokens
        state = DecodeState(tokens, lengths, lengths - 1, self.prompt_lengths, self.max_lengths)
        return state, Commitment(emitted, num_tokens, np.minimum(num_accepted, num_tokens), is_ended)

    def _slots(self, count: int) -> Counts:
        """The columns of `tokens` behind every row's last token, [B, count]."""
        return self.lengths[:, None] + np.arange(count)


def grown_width(needed: int) -> int:
    """The width that a buffer of at least `needed` token ids gets."""
    return -(-needed // GROWTH) * GROWTH


def _cut_at_ends(emitted: Counts, num_accepted: Counts, eos_token_ids: Sequence[int]) -> tuple[Counts, Flags]:
    """How many of the emitted tokens [B, k+1] are real, and whether the last of them is an EOS, [B] each."""
    ends = np.zeros(emitted.shape, dtype=np.bool_)
    for eos in eos_token_ids:
        ends |= emitted == eos
    if not np.logical_or.reduce(ends, axis=None):
        return num_accepted + 1, ends[:, 0]
    ends &= np.arange(emitted.shape[1]) <= num_accepted[:, None]
    is_ended = np.asarray(ends.any(-1))
    return np.where(is_ended, ends.argmax(-1), num_accepted) + 1, is_ended


def _widen(tokens: Tensor, width: int) -> Tensor:
    extra = width - tokens.shape[1]
    return as_tensor(joined(numbers(tokens), numbers(tokens.new_zeros(len(tokens), extra)))) if extra > 0 else tokens
