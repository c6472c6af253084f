"""Sampling as rounds of the decoder: the same loop, with warped scores, and random numbers that belong to the rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from spec2seq.acceptance import draw_tokens
from spec2seq.decoding.noise import RowNoise
from spec2seq.decoding.speculative import SpeculativeSearch
from spec2seq.decoding.warpers import Warpers
from spec2seq.types import SourceBatch, TensorScores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.decoding.drafting import Drafting
    from spec2seq.decoding.search import Request
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import AcceptanceRule, Drafter, EncoderOutput, Verifier
    from spec2seq.types import Acceptance, DecoderOutput, DraftBlock, Prefix, Scores


class SamplingSearch(SpeculativeSearch):
    """Plain and speculative sampling over a batch; every row has random numbers of its own.

    With a given seed the rule is `ExactMatch` on scores with Gumbel noise: the text is that of plain sampling with this
    seed. Without one it is `SpeculativeSampling`, which keeps more of a draft that was drawn from a law.
    """

    def __init__(
        self, verifier: Verifier, drafting: Drafting | None, rule: AcceptanceRule, options: ResolvedOptions
    ) -> None:
        super().__init__(verifier, drafting, rule, options)
        self.warpers = Warpers.from_options(options)
        self._banned = torch.tensor(self.processors.static_bans, dtype=torch.long, device=verifier.device)
        self._noise = RowNoise.from_seeds([], [])

    def admit(self, requests: Sequence[Request], source: SourceBatch) -> None:
        super().admit(requests, source)
        seeds = [request.seed or 0 for request in requests]
        self._noise = self._noise.concat(RowNoise.from_seeds(seeds, [request.sample for request in requests]))

    @property
    def _counts(self) -> Tensor:
        """How many tokens each row has generated, [B], on the host."""
        return torch.from_numpy(self.state.lengths - self.state.prompt_lengths)

    def _encode(self, requests: Sequence[Request], source: SourceBatch) -> EncoderOutput:
        """Samples of one source follow each other and share its encoding."""
        is_new = [i == 0 or request.source_ids is not requests[i - 1].source_ids for i, request in enumerate(requests)]
        if all(is_new):
            return super()._encode(requests, source)
        marks = torch.tensor(is_new, device=source.ids.device)
        firsts = [request for request, is_first in zip(requests, is_new, strict=True) if is_first]
        encoded = super()._encode(firsts, SourceBatch(source.ids[marks], source.lengths[marks]))
        return encoded.select_rows(marks.cumsum(0) - 1)

    def _select_groups(self, groups: Tensor) -> None:
        super()._select_groups(groups)
        self._noise = self._noise.select_rows(groups)

    def _ask(self, drafter: Drafter, prefix: Prefix, num_draft_tokens: int) -> DraftBlock:
        chooser = DraftChooser(self.warpers, self._banned, self._noise, self._counts, self.options.is_seeded)
        draft = drafter.propose(prefix, num_draft_tokens, chooser)
        return chooser.with_laws(self._cut_behind_eos(draft))

    def _cut_behind_eos(self, draft: DraftBlock) -> DraftBlock:
        """Nothing is judged behind a drafted end of sequence.

        A block's verification looks at all of its tokens. How far a drafter goes on behind the end of one row is up to
        the other rows, and they must not matter.
        """
        ends = (draft.tokens[..., None] == self._eos).any(-1)
        num_kept = torch.where(ends.any(-1), ends.long().argmax(-1) + 1, draft.lengths) if draft.num_slots else 0
        return replace(draft, lengths=draft.lengths.clamp(max=num_kept))

    def _scores(self, output: DecoderOutput, draft: DraftBlock) -> Scores:
        return TensorScores(self.warpers(super()._scores(output, draft).logits()))

    def _accept(self, draft: DraftBlock, scores: Scores) -> Acceptance:
        counts = self._counts
        if self.options.is_seeded:
            noise = self._noise.gumbel(scores.logits(), counts[:, None] + torch.arange(draft.num_slots + 1))
        else:
            noise = self._noise.verification(counts, draft.num_slots).to(self.verifier.device)
        return self.rule.accept(draft, scores, noise)


class DraftChooser:
    """Picks the tokens of one block for a drafter that has a law for each, and remembers the laws it drew from.

    With a given seed it adds the noise that the verifier's scores will get at the same place: where the two laws are
    alike, so are the choices.

    Args:
        warpers: the verifier's.
        banned: [N] ids that are never drawn.
        noise: of the B rows.
        counts: [B] tokens that each row has generated before the block, on the host.
        is_seeded: whether the text follows a given seed.
    """

    def __init__(self, warpers: Warpers, banned: Tensor, noise: RowNoise, counts: Tensor, is_seeded: bool) -> None:
        self._warpers = warpers
        self._banned = banned
        self._noise = noise
        self._counts = counts
        self._is_seeded = is_seeded
        self._laws: dict[int, Tensor] = {}

    def __call__(self, log_probs: Tensor, slot: int) -> Tensor:
        """Token `slot` of every row's block, [B], from log-probabilities or logits [B, V]."""
        scores = self._warpers(log_probs.float().index_fill(-1, self._banned, -torch.inf))
        if self._is_seeded:
            noise = self._noise.gumbel(scores[:, None], self._counts[:, None] + slot)
            return (scores + noise[:, 0]).max(dim=-1).indices
        law = scores.log_softmax(dim=-1)
        # A drafter's broken scores cost acceptance, not exactness: any law will do that the token is drawn from.
        law = law.masked_fill(law.isnan().any(dim=-1, keepdim=True), -math.log(law.shape[-1]))
        self._laws[slot] = law
        return draw_tokens(law.exp(), self._noise.drafting(self._counts, slot).to(law.device))

    def with_laws(self, draft: DraftBlock) -> DraftBlock:
        """The block with the laws of its tokens, [B, k, V]; as it is when none of them was drawn here."""
        if not self._laws or not draft.num_slots:
            return draft
        return replace(draft, log_probs=torch.stack([self._laws[slot] for slot in range(draft.num_slots)], dim=1))
