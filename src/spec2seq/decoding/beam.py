"""Selection of beam search: a pure function of scores, over many sources at once.

G sources ("groups") of K beams each; every group has its own length, prompt and budget, and its outcome does not depend
on its neighbours. Semantics, down to the -1e9 that stands for "not yet": transformers 5.24, `_beam_search`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from spec2seq.decoding.state import grown_width
from spec2seq.types import Hypothesis

if TYPE_CHECKING:
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.types import Prefix

# Finite, so that it can be added and divided; the sums of log-probabilities of real outputs are far above it.
_NOT_YET = -1.0e9


@dataclass(frozen=True)
class BeamSettings:
    """What selection needs to know of the options."""

    num_beams: int
    eos_token_ids: tuple[int, ...]
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1

    @classmethod
    def from_options(cls, options: ResolvedOptions) -> BeamSettings:
        """The part of the options that concerns selection."""
        return cls(
            options.num_beams,
            options.eos_token_ids,
            options.length_penalty,
            options.early_stopping,
            options.num_return_sequences,
        )

    @property
    def num_candidates(self) -> int:
        """Continuations looked at per group and step: enough for num_beams of them that do not end."""
        return max(2, 1 + len(self.eos_token_ids)) * self.num_beams


@dataclass(frozen=True)
class BeamState:
    """Running and finished hypotheses of G groups.

    Attributes:
        tokens: [G, K, T] ids of the running beams, prompt included; stale beyond the group's length.
        lengths: [G] tokens of every running beam.
        scores: [G, K] sums of log-probabilities, best first.
        finished_tokens: [G, K, T] ids of the finished hypotheses.
        finished_lengths: [G, K] their lengths, end of sequence included.
        finished_scores: [G, K] length-normalised, best first; -1e9 in places not taken yet.
        is_finished: [G, K] bool, places that hold a finished hypothesis.
        prompt_lengths: [G] tokens that were given.
        max_lengths: [G] the length, prompt included, at which a group is cut.
    """

    tokens: Tensor
    lengths: Tensor
    scores: Tensor
    finished_tokens: Tensor
    finished_lengths: Tensor
    finished_scores: Tensor
    is_finished: Tensor
    prompt_lengths: Tensor
    max_lengths: Tensor

    @classmethod
    def start(cls, prefix: Prefix, prompt_lengths: Tensor, max_lengths: Tensor, num_beams: int) -> BeamState:
        """One group per row of the prefix.

        Args:
            prefix: committed tokens [G, T]: prompt, and a forced first token where there is one.
            prompt_lengths: [G] how many of them were given; a forced first token counts as generated.
            max_lengths: [G] prompt and budget.
            num_beams: K.
        """
        tokens = prefix.ids[:, None, :].expand(-1, num_beams, -1).clone()
        scores = torch.full(tokens.shape[:2], _NOT_YET, dtype=torch.float32, device=tokens.device)
        running = scores.clone()
        # All beams are still the same: only the first one may be continued.
        running[:, 0] = 0.0
        return cls(
            tokens=tokens,
            lengths=prefix.lengths,
            scores=running,
            finished_tokens=tokens.clone(),
            finished_lengths=prompt_lengths[:, None].expand(-1, num_beams).clone(),
            finished_scores=scores,
            is_finished=torch.zeros_like(scores, dtype=torch.bool),
            prompt_lengths=prompt_lengths,
            max_lengths=max_lengths,
        )

    def select_groups(self, groups: Tensor) -> BeamState:
        """The groups `groups` [G'] in that order."""
        return BeamState(**{name: getattr(self, name)[groups] for name in self.__dataclass_fields__})

    def append(self, other: BeamState) -> BeamState:
        """The groups of both, self first."""
        width = max(self.tokens.shape[-1], other.tokens.shape[-1])
        one, two = self.widened(width), other.widened(width)
        return BeamState(
            **{name: torch.cat([getattr(one, name), getattr(two, name)]) for name in self.__dataclass_fields__}
        )

    def widened(self, width: int) -> BeamState:
        """The same with room for `width` ids per hypothesis."""
        extra = width - self.tokens.shape[-1]
        if extra <= 0:
            return self
        pad = torch.nn.functional.pad
        return replace(self, tokens=pad(self.tokens, (0, extra)), finished_tokens=pad(self.finished_tokens, (0, extra)))


@dataclass(frozen=True)
class BeamStep:
    """What one step chose.

    Attributes:
        state: the hypotheses after it.
        parents: [G, K] the beam within its group that each running beam continues: how the caches must be reordered.
        tokens: [G, K] the token each running beam continues it with.
        is_done: [G] bool, groups whose outcome is settled.
    """

    state: BeamState
    parents: Tensor
    tokens: Tensor
    is_done: Tensor


@dataclass(frozen=True)
class _Candidates:
    """The best N continuations of every group, [G, N] each, best first; `ends` says that they end there."""

    scores: Tensor
    parents: Tensor
    tokens: Tensor
    ends: Tensor


def advance(state: BeamState, values: Tensor, ids: Tensor, settings: BeamSettings) -> BeamStep:
    """Continue every group by one token.

    Among equal scores the lower beam comes first, then the lower place in its list.

    Args:
        state: G groups of K beams, none of them done: those leave before the next step.
        values: [G, K, C] each beam's best log-probabilities, processed, descending.
        ids: [G, K, C] their token ids. C is `settings.num_candidates`, or the whole vocabulary if that is smaller.
        settings: the same in all steps.
    """
    state = state.widened(grown_width(int(state.lengths.max()) + 1))
    candidates = _best_candidates(state, values, ids, settings)
    # Continuations that end are put behind all others; there are always enough of these, except at the last position.
    scores, picks = _best(candidates.scores + candidates.ends * _NOT_YET, settings.num_beams)
    parents, tokens = candidates.parents.gather(1, picks), candidates.tokens.gather(1, picks)
    state = replace(
        _finish(state, candidates, settings),
        tokens=_extend(state.tokens, parents, tokens, state.lengths),
        lengths=state.lengths + 1,
        scores=scores,
    )
    is_done = ~_can_improve(state, settings) | candidates.ends.all(-1)
    if settings.early_stopping is True:
        is_done |= state.is_finished.all(-1)
    return BeamStep(state, parents, tokens, is_done)


def finalize(state: BeamState, group: int, settings: BeamSettings) -> list[Hypothesis]:
    """The outcome of a group: `num_return_sequences` hypotheses, best first.

    Token ids are those after the decoder start. The score is the sum of log-probabilities divided by generated length
    (end of sequence included) ** length_penalty. A place that nothing ever took holds the bare prompt.
    """
    count = settings.num_return_sequences
    tokens, lengths = state.finished_tokens[group, :count].tolist(), state.finished_lengths[group, :count].tolist()
    scores = state.finished_scores[group, :count].tolist()
    return [Hypothesis(row[1:length], score) for row, length, score in zip(tokens, lengths, scores, strict=True)]


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best scores of each group and where they are; equal ones in order of place."""
    best, places = scores.sort(dim=-1, descending=True, stable=True)
    return best[:, :count], places[:, :count]


def _extend(tokens: Tensor, beams: Tensor, next_tokens: Tensor, lengths: Tensor) -> Tensor:
    """The beams [G, M] of tokens [G, N, T], each with its next token [G, M] written at the group's length [G]."""
    chosen = tokens.gather(1, beams[..., None].expand(-1, -1, tokens.shape[-1]))
    return chosen.scatter_(2, lengths[:, None, None].expand(-1, beams.shape[1], 1), next_tokens[..., None])


def _best_candidates(state: BeamState, values: Tensor, ids: Tensor, settings: BeamSettings) -> _Candidates:
    num_per_beam = values.shape[-1]
    totals = (values + state.scores[..., None]).flatten(1)
    scores, places = _best(totals, settings.num_candidates)
    tokens = ids.flatten(1).gather(1, places)
    ends = (state.lengths + 1 >= state.max_lengths)[:, None].expand_as(tokens)
    for token_id in settings.eos_token_ids:
        ends = ends | (tokens == token_id)
    return _Candidates(scores, places // num_per_beam, tokens, ends)


def _finish(state: BeamState, candidates: _Candidates, settings: BeamSettings) -> BeamState:
    """Keep the best of the finished hypotheses and of the candidates that end now."""
    num_beams = settings.num_beams
    is_new = candidates.ends.clone()
    is_new[:, num_beams:] = False  # the rest is there only to have enough beams that go on
    scores = candidates.scores / _penalty(state.lengths + 1 - state.prompt_lengths, settings)
    best, picks = _best(torch.cat([state.finished_scores, scores + ~is_new * _NOT_YET], dim=1), num_beams)
    # The hypotheses are picked from a pool of the finished ones and, behind them, the running beams that end now.
    candidate = (picks - num_beams).clamp(min=0)
    is_old = picks < num_beams
    beams = torch.where(is_old, picks, candidates.parents.gather(1, candidate) + num_beams)
    pool = torch.cat([state.finished_tokens, state.tokens], dim=1)
    # Old hypotheses are no longer than the running beams, so that what is written there lies behind their end.
    lengths = torch.where(
        is_old, state.finished_lengths.gather(1, picks.clamp(max=num_beams - 1)), state.lengths[:, None] + 1
    )
    return replace(
        state,
        finished_tokens=_extend(pool, beams, candidates.tokens.gather(1, candidate), state.lengths),
        finished_lengths=lengths,
        finished_scores=best,
        is_finished=torch.cat([state.is_finished, is_new], dim=1).gather(1, picks),
    )


def _can_improve(state: BeamState, settings: BeamSettings) -> Tensor:
    """[G] bool: whether the best running beam may still beat the worst finished hypothesis.

    Its score at the present length is compared; with early_stopping "never" and a length penalty that favours long
    outputs, its score if it never lost a nat until the limit.
    """
    is_bound = settings.early_stopping == "never" and settings.length_penalty > 0.0
    lengths = state.max_lengths if is_bound else state.lengths
    best = state.scores[:, :1] / _penalty(lengths - state.prompt_lengths, settings)
    return best[:, 0] > state.finished_scores[:, -1]


def _penalty(generated: Tensor, settings: BeamSettings) -> Tensor:
    """[G, 1] what the sum of log-probabilities of `generated` [G] tokens is divided by."""
    return (generated.double() ** settings.length_penalty).float()[:, None]
