"""How many tokens per round a drafter will give, from outputs that are known already: without decoding.

In exact greedy search the text after every round is a beginning of the verifier's own output. So where rounds begin,
and what they keep, follows from the output and the drafts alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from spec2seq.errors import InputError, OptionError
from spec2seq.evaluation.known_outputs import KnownOutputs, forced_states, states_from
from spec2seq.types import Acceptance, DecoderOutput, DraftBlock, Prefix, TensorScores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from spec2seq.evaluation.known_outputs import ReferencePair
    from spec2seq.interfaces import Drafter, Verifier

    # (rows to keep [R'] of those of the last call, starts [R']) -> drafts of the kept rows
    Draft = Callable[[Tensor, Tensor], DraftBlock]

DEFAULT_WALK_TOKENS = 8192
_NO_SCORES = TensorScores(torch.empty(0, 0, 0))  # drafters are told states, not scores


@dataclass
class WalkFigures:
    """What walks over some outputs came to.

    Attributes:
        num_tokens: tokens of the outputs, forced first ones not counted.
        num_rounds: rounds they take.
        reached: for each slot of a block, how many rounds had an output token there.
        kept: for each slot, how many rounds kept it, and with it all slots before it.
    """

    num_tokens: int = 0
    num_rounds: int = 0
    reached: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens per round, 0.0 where there was none."""
        return self.num_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def survival(self) -> list[float]:
        """For each slot i from 1 on, the probability s_i that a block is kept up to and with slot i."""
        return [kept / reached if reached else 0.0 for kept, reached in zip(self.kept, self.reached, strict=True)]

    def __add__(self, other: WalkFigures) -> WalkFigures:
        return WalkFigures(
            self.num_tokens + other.num_tokens,
            self.num_rounds + other.num_rounds,
            [one + two for one, two in zip_longest(self.reached, other.reached, fillvalue=0)],
            [one + two for one, two in zip_longest(self.kept, other.kept, fillvalue=0)],
        )


def walk(targets: Tensor, lengths: Tensor, first: Tensor, draft: Draft) -> WalkFigures:
    """From a start t, the A(t) leading draft tokens that agree and one token more make a round, until the end.

    Args:
        targets: [B, T] outputs; lengths [B] of them are real, ends of sequence included.
        first: [B] where each row's first round starts: behind forced tokens.
        draft: drafts for rows of the last call (at first all rows) that go on, from their new starts.
    """
    figures = WalkFigures(num_tokens=int((lengths - first).clamp(min=0).sum()))
    starts = first
    while True:
        rows = (starts < lengths).nonzero()[:, 0]
        if not len(rows):
            return figures
        targets, lengths, starts = targets[rows], lengths[rows], starts[rows]
        block = draft(rows, starts)
        num_agreeing, num_targets = _count_agreeing(block, targets, lengths - starts, starts)
        slots = torch.arange(block.num_slots, device=starts.device)
        reached = (slots < num_targets[:, None]).sum(0).tolist()
        kept = (slots < num_agreeing[:, None]).sum(0).tolist()
        figures += WalkFigures(0, len(rows), reached, kept)
        starts = starts + num_agreeing + 1


def _count_agreeing(block: DraftBlock, targets: Tensor, num_left: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """How many leading draft tokens are those of the output, and how many slots have one, [B] each."""
    slots = torch.arange(block.num_slots, device=starts.device)
    expected = F.pad(targets, (0, block.num_slots)).gather(1, starts[:, None] + slots)
    has_target = slots < num_left[:, None]
    agrees = (block.tokens == expected) & has_target & (slots < block.lengths[:, None])
    return agrees.long().cumprod(1).sum(1), has_target.sum(1)


@torch.inference_mode()
def walk_drafter(
    drafter: Drafter,
    pairs: Sequence[ReferencePair],
    num_draft_tokens: int,
    verifier: Verifier,
    batch_tokens: int = DEFAULT_WALK_TOKENS,
) -> WalkFigures:
    """What exact greedy search with this drafter gives on these outputs.

    Args:
        drafter: without rows; it is left so.
        pairs: with the verifier's greedy outputs. Leave out those that run in circles: they flatter the figures.
        num_draft_tokens: k, as many tokens as are asked for in decoding.
        verifier: of these outputs; gives the states that the drafter reads.
        batch_tokens: most rows x (source + target + k) tokens in one pass.

    Raises:
        OptionError: num_draft_tokens is below 1, or more than can be drafted at once.
        InputError: there is no pair.
    """
    limit = drafter.max_draft_tokens
    if num_draft_tokens < 1 or (limit is not None and num_draft_tokens > limit):
        raise OptionError(f"num_draft_tokens={num_draft_tokens} is not allowed: use 1 to {limit or 'some 25'}")
    if not pairs:
        raise InputError("there are no pairs to walk over; give at least one")
    figures = WalkFigures()
    for group in _groups(pairs, num_draft_tokens, batch_tokens):
        figures += _GroupWalk(drafter, group, num_draft_tokens, verifier).figures()
    return figures


def _groups(pairs: Sequence[ReferencePair], extra: int, batch_tokens: int) -> Iterator[list[ReferencePair]]:
    """Pairs of about equal length, at most `batch_tokens` tokens with padding; one pair at least."""
    group: list[ReferencePair] = []
    widths = 0, 0
    for pair in sorted(pairs, key=lambda pair: (len(pair.source_ids), len(pair.target_ids))):
        grown = max(widths[0], len(pair.source_ids)), max(widths[1], len(pair.target_ids))
        if group and (len(group) + 1) * (sum(grown) + extra) > batch_tokens:
            yield group
            group, grown = [], (len(pair.source_ids), len(pair.target_ids))
        group.append(pair)
        widths = grown
    yield group


class _GroupWalk:
    """Plays the loop's part to a drafter for some pairs: what the verifier would say is known.

    Attributes:
        rows: [B'] which pairs go on.
        starts: [B'] where their last blocks started.
        num_told: [B'] from how many positions the drafter has the verifier's states.
    """

    def __init__(
        self, drafter: Drafter, group: Sequence[ReferencePair], num_draft_tokens: int, verifier: Verifier
    ) -> None:
        self.drafter, self.num_draft_tokens = drafter, num_draft_tokens
        self.known = KnownOutputs.of(group, verifier.config, verifier.device)
        self.encoded = verifier.encode(self.known.source)
        self.states = forced_states(verifier, self.encoded, self.known, drafter.hidden_layers)
        first = self.known.num_forced
        self.rows, self.starts = torch.arange(len(first), device=first.device), first
        self.num_told: Tensor | None = None

    def figures(self) -> WalkFigures:
        known = self.known
        self.drafter.start(known.source, self.encoded)
        figures = walk(known.targets, known.lengths, known.num_forced, self._draft)
        self.drafter.select_rows(self.rows[:0])
        return figures

    def _draft(self, rows: Tensor, starts: Tensor) -> DraftBlock:
        """Tell what the last round gave the rows that go on, and draft from their new starts."""
        if len(rows) < len(self.rows):
            self.drafter.select_rows(rows)
        self.rows, old_starts = self.rows[rows], self.starts[rows]
        if self.num_told is None:
            self.num_told = torch.zeros_like(starts)
        else:
            self._commit(old_starts, starts, self.num_told[rows])
            self.num_told = starts
        self.starts = starts
        return self.drafter.propose(Prefix(self.known.inputs[self.rows], starts + 1), self.num_draft_tokens)

    def _commit(self, old_starts: Tensor, starts: Tensor, num_told: Tensor) -> None:
        inputs = self.known.inputs[self.rows]
        acceptance = Acceptance(starts - old_starts - 1, inputs.gather(1, starts[:, None])[:, 0])
        # the call fed what the cache lacked, and the block
        num_fed = int((old_starts + 1 - num_told).max()) + self.num_draft_tokens
        output = DecoderOutput(_NO_SCORES)
        if self.states is not None:
            output = DecoderOutput(_NO_SCORES, states_from(self.states[self.rows], num_told, num_fed))
        self.drafter.commit(Prefix(inputs, old_starts + 1), acceptance, output)
