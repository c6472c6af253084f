"""How many tokens per round a drafter will give, from outputs that are known already: no verifier, no decoding.

In exact greedy search the text after every round is a beginning of the verifier's own output. So where rounds begin,
and what they keep, follows from the output and the drafts alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn import functional as F

from spec2seq.errors import InputError, OptionError
from spec2seq.types import DraftBlock, Prefix, SourceBatch, Wanted, pad_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from spec2seq.interfaces import DraftNetwork

    # (rows to keep [R'] of those of the last call, starts [R']) -> drafts of the kept rows
    Draft = Callable[[Tensor, Tensor], DraftBlock]

DEFAULT_WALK_TOKENS = 8192


class ReferencePair(Protocol):
    """A source and the verifier's output for it, its first `num_forced` tokens forced."""

    @property
    def source_ids(self) -> Sequence[int]: ...

    @property
    def target_ids(self) -> Sequence[int]: ...

    @property
    def num_forced(self) -> int: ...


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
def walk_network(
    network: DraftNetwork,
    pairs: Sequence[ReferencePair],
    num_draft_tokens: int,
    batch_tokens: int = DEFAULT_WALK_TOKENS,
    device: torch.device | str = "cpu",
) -> WalkFigures:
    """What exact greedy search with this drafting network gives on these outputs.

    Args:
        network: not in training mode.
        pairs: with the verifier's greedy outputs. Leave out those that run in circles: they flatter the figures.
        num_draft_tokens: k, as many slots as are laid in decoding.
        batch_tokens: most rows x (source + target + k) tokens in one pass.
        device: where the network is.

    Raises:
        OptionError: num_draft_tokens is below 1, or more than the network has positions.
        InputError: there is no pair.
    """
    limit = network.config.max_positions
    if not 1 <= num_draft_tokens <= limit:
        raise OptionError(
            f"num_draft_tokens={num_draft_tokens} is not allowed: use 1 to {limit}, the network's positions"
        )
    if not pairs:
        raise InputError("there are no pairs to walk over; give at least one")
    figures = WalkFigures()
    for group in _groups(pairs, num_draft_tokens, batch_tokens):
        figures += _walk_group(network, group, num_draft_tokens, device)
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


def _walk_group(
    network: DraftNetwork, group: Sequence[ReferencePair], num_draft_tokens: int, device: torch.device | str
) -> WalkFigures:
    pad_id, limit = network.config.model.pad_token_id, network.config.max_positions
    source = network.encode(SourceBatch.from_lists([pair.source_ids for pair in group], pad_id))
    targets, lengths = pad_rows([pair.target_ids for pair in group], pad_id, device)
    # the network drops the first token of a prefix, the decoder start
    prefixes = F.pad(targets, (1, 0))

    def draft(rows: Tensor, starts: Tensor) -> DraftBlock:
        nonlocal source, prefixes
        if len(rows) < len(prefixes):
            source, prefixes = source.select_rows(rows), prefixes[rows]
        tokens = network.draft(Prefix(prefixes, starts + 1), num_draft_tokens, source, Wanted()).top(1)[1][..., 0]
        # where the slots run past the positions, the decoder gets an empty block
        return DraftBlock(tokens, (starts + num_draft_tokens <= limit) * num_draft_tokens)

    first = torch.tensor([pair.num_forced for pair in group], device=device)
    return walk(targets, lengths, first, draft)
