"""Logits processors: what options do to scores, with the prefix of each query.

Every function edits the scores of all rows and queries at once. Which edits come in which order, and what they do, is
that of transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.generation_options import ResolvedOptions

_BANNED = float("-inf")


@dataclass(frozen=True)
class QueryContext:
    """What the m queries of each row have before them.

    Attributes:
        tokens: [B, T] committed tokens followed directly by the row's draft tokens; stale ids may follow.
        lengths: [B, m] how many of them precede the token that query i predicts, at least 1.
        prompt_lengths: [B] tokens given before generation: decoder start and target prefix, no forced first token.
        max_lengths: [B] prompt and budget together.
        valid: [B, m] bool, queries that exist. Scores of the others mean nothing and nobody may read them.
    """

    tokens: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    max_lengths: Tensor
    valid: Tensor


Processor = Callable[[Tensor, QueryContext], None]
"""Edits scores [B, m, V] in place."""


@dataclass(frozen=True)
class Processors:
    """All processors of one set of options, in order.

    Attributes:
        dynamic: processors that must see scores and prefixes.
        static_bans: ids that score minus infinity everywhere; the engine folds them into its output bias, so that they
            are not among `dynamic`.
        is_beam: scores are log-probabilities, as beam search adds them up.
        is_renormalized: log-probabilities are normalised again after the last processor.
    """

    dynamic: tuple[Processor, ...]
    static_bans: tuple[int, ...]
    is_beam: bool
    is_renormalized: bool

    @property
    def is_empty(self) -> bool:
        """Whether scores stay as they are: logits, or in beam search logits minus their log-sum-exp."""
        return not self.dynamic

    def __call__(self, scores: Tensor, context: QueryContext) -> Tensor:
        """Processed scores of every query.

        Args:
            scores: [B, m, V] fp32 logits, in beam search too. They may be edited in place: do not use them afterwards.
            context: the prefixes of the same queries.

        Returns:
            [B, m, V] fp32 scores to choose from: logits in greedy search, log-probabilities in beam search.
        """
        if self.is_beam:
            scores = scores.log_softmax(dim=-1)
        for process in self.dynamic:
            process(scores, context)
        return scores.log_softmax(dim=-1) if self.is_renormalized else scores


def build_processors(
    options: ResolvedOptions, *, is_beam: bool, forces_eos: bool = True, device: torch.device | str = "cpu"
) -> Processors:
    """The processors that options ask for.

    Greedy search sees raw logits; beam search sees log-probabilities, which no ban makes larger unless
    `renormalize_logits` is set. In greedy search normalising again moves all scores of a query alike, changes neither a
    choice nor a difference, and is left out. A forced first token is not among the processors: it is committed before
    the search starts.

    Args:
        options: what to build.
        is_beam: for beam search.
        forces_eos: False leaves the forced end of sequence to a caller who puts it in place without any scores.
        device: where the scores will be.

    Source: order of processors in transformers 5.24, `_get_logits_processor`.
    """
    single_bans = [word[0] for word in options.bad_words_ids if len(word) == 1]
    # Leaving tokens out before the first normalisation equals leaving them out before the second one, unless a
    # repetition penalty scales log-probabilities in between.
    is_static = not is_beam or (options.renormalize_logits and options.repetition_penalty == 1.0)
    # who wants to see the model's own scores must get them before any ban
    is_static = is_static and not options.output_logits
    dynamic: list[Processor] = []
    if options.repetition_penalty != 1.0:
        dynamic.append(RepetitionPenalty(options.repetition_penalty))
    if options.no_repeat_ngram_size > 0:
        dynamic.append(NoRepeatNGram(options.no_repeat_ngram_size))
    if single_bans and not is_static:
        dynamic.append(Ban(torch.tensor(single_bans, device=device)))
    dynamic += _sequence_bans(options.bad_words_ids, device)
    if options.eos_token_ids and (options.min_length > 0 or options.min_new_tokens > 0):
        dynamic.append(MinLength(options.min_length, options.min_new_tokens, options.eos_token_ids))
    if options.forced_eos_token_ids and forces_eos:
        dynamic.append(ForcedEos(torch.tensor(options.forced_eos_token_ids, device=device)))
    if options.suppress_tokens and not is_static:
        dynamic.append(Ban(torch.tensor(options.suppress_tokens, device=device)))
    bans = sorted({*single_bans, *options.suppress_tokens}) if is_static else []
    return Processors(tuple(dynamic), tuple(bans), is_beam, is_beam and options.renormalize_logits)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Scores of tokens of the prefix are divided by the penalty where positive and multiplied by it where negative."""

    penalty: float

    def __call__(self, scores: Tensor, context: QueryContext) -> None:
        positions = torch.arange(context.tokens.shape[1], device=scores.device)
        is_before = positions < context.lengths[..., None]
        # Tokens behind the prefix are replaced by its first one: writing the same score twice does no harm.
        tokens = torch.where(is_before, context.tokens[:, None, :], context.tokens[:, None, :1])
        before = scores.gather(-1, tokens)
        after = torch.where(before < 0, before * self.penalty, before / self.penalty)
        scores.scatter_(-1, tokens, torch.where(context.valid[..., None], after, before))


@dataclass(frozen=True)
class NoRepeatNGram:
    """Bans tokens that would complete an n-gram which the prefix already holds."""

    size: int

    def __call__(self, scores: Tensor, context: QueryContext) -> None:
        if context.tokens.shape[1] < self.size:
            return
        windows = context.tokens.unfold(1, self.size, 1)  # [B, W, n]
        ends = torch.arange(self.size, context.tokens.shape[1] + 1, device=scores.device)
        is_inside = (ends <= context.lengths[..., None]) & context.valid[..., None]  # [B, m, W]
        last = _last_tokens(context, self.size - 1)  # [B, m, n - 1]
        is_match = (windows[:, None, :, :-1] == last[:, :, None]).all(-1) & is_inside
        rows, queries, starts = is_match.nonzero(as_tuple=True)
        scores[rows, queries, windows[rows, starts, -1]] = _BANNED


@dataclass(frozen=True)
class SequenceBan:
    """Bans the last token of sequences whose other tokens, n of them, end the prefix.

    Attributes:
        heads: [N, n] all tokens but the last.
        tails: [N] last tokens.
    """

    heads: Tensor
    tails: Tensor

    def __call__(self, scores: Tensor, context: QueryContext) -> None:
        size = self.heads.shape[1]
        is_match = (_last_tokens(context, size)[:, :, None] == self.heads).all(-1)  # [B, m, N]
        is_match &= ((context.lengths >= size) & context.valid)[..., None]
        rows, queries, sequences = is_match.nonzero(as_tuple=True)
        scores[rows, queries, self.tails[sequences]] = _BANNED


@dataclass(frozen=True)
class Ban:
    """Bans token ids [N] everywhere."""

    token_ids: Tensor

    def __call__(self, scores: Tensor, context: QueryContext) -> None:
        scores.index_fill_(-1, self.token_ids, _BANNED)


@dataclass(frozen=True)
class MinLength:
    """Bans the end of sequence in prefixes shorter than `length`, or with fewer generated tokens than `num_new`."""

    length: int
    num_new: int
    eos_token_ids: tuple[int, ...]

    def __call__(self, scores: Tensor, context: QueryContext) -> None:
        shortest = (context.prompt_lengths + self.num_new).clamp(min=self.length)
        is_short = (context.lengths < shortest[:, None]) & context.valid
        for token_id in self.eos_token_ids:
            scores[..., token_id].masked_fill_(is_short, _BANNED)


@dataclass(frozen=True)
class ForcedEos:
    """Where only one token is left, scores are 0 for the forced ids [N] and minus infinity for all others."""

    token_ids: Tensor

    def __call__(self, scores: Tensor, context: QueryContext) -> None:
        rows, queries = ((context.lengths == context.max_lengths[:, None] - 1) & context.valid).nonzero(as_tuple=True)
        scores[rows, queries] = _BANNED
        scores[rows[:, None], queries[:, None], self.token_ids] = 0.0


def _last_tokens(context: QueryContext, count: int) -> Tensor:
    """The last `count` tokens before each query's prediction [B, m, count]; meaningless where there are fewer."""
    offsets = torch.arange(-count, 0, device=context.tokens.device)
    positions = (context.lengths[..., None] + offsets).clamp(0, context.tokens.shape[1] - 1)
    num_rows, num_queries, _ = positions.shape
    return context.tokens.gather(1, positions.reshape(num_rows, -1)).reshape(num_rows, num_queries, count)


def _sequence_bans(words: Sequence[tuple[int, ...]], device: torch.device | str) -> list[Processor]:
    """One processor per length of the sequences with more than one token."""
    bans: list[Processor] = []
    for length in sorted({len(word) for word in words if len(word) > 1}):
        same = torch.tensor([word for word in words if len(word) == length], device=device)
        bans.append(SequenceBan(same[:, :-1], same[:, -1]))
    return bans
