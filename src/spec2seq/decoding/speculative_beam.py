"""Exact speculative beam search: a round asks the verifier about several steps of the search at once.

Beam search is a deterministic program that only asks for the best continuations of prefixes. What it may ask next is
guessed from what drafter and verifier know, and evaluated in the same call; as long as the answers are there, the
search advances without a call. Its outcome, scores included, is that of plain beam search, however bad the guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch

from spec2seq.decoding.beam import BeamState, advance
from spec2seq.decoding.beam_search import BeamSearch
from spec2seq.decoding.draft_tree import LawRecorder, grow_draft_tree
from spec2seq.decoding.processors import QueryContext
from spec2seq.decoding.stats import Stopwatch, record_beam_round
from spec2seq.decoding.trie import NOWHERE, PrefixTrie
from spec2seq.types import Acceptance, DraftBlock, Emission, Prefix, TensorScores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.decoding.search import Request
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Drafter, EncoderOutput, Verifier
    from spec2seq.types import DecoderOutput, SourceBatch

# Every level holds twice as many prefixes as there are beams, and is reached more rarely than the one before it.
DEFAULT_NUM_DRAFT_TOKENS = 2
WIDTH_PER_BEAM = 2


@dataclass(frozen=True)
class _Walk:
    """How far the search came with what is known.

    Attributes:
        origins: [G, K] which of the hypotheses before the walk each hypothesis continues.
        num_steps: [G] steps taken, at least one.
        num_found: [G] hypotheses on the way, of all steps, that were in the trie before they were needed.
        is_done, is_broken: [G] bool, settled, and scored NaN or infinite.
    """

    origins: Tensor
    num_steps: Tensor
    num_found: Tensor
    is_done: Tensor
    is_broken: Tensor


class SpeculativeBeamSearch(BeamSearch):
    """Beam search over a batch of sources that drafts ahead; one cache row per source holds its whole trie.

    The drafter sees `num_beams` rows per source, its running hypotheses.

    Args:
        num_draft_tokens: by how many tokens hypotheses are drafted ahead per round, at least 1.
    """

    def __init__(self, verifier: Verifier, drafter: Drafter, options: ResolvedOptions, num_draft_tokens: int) -> None:
        super().__init__(verifier, options, rows_per_request=1)
        self.drafter: Drafter = drafter
        self.num_draft_tokens = num_draft_tokens
        banned = torch.tensor(self.processors.static_bans, dtype=torch.long, device=verifier.device)
        self._never = torch.cat([self._eos, banned])
        self._trie: PrefixTrie | None = None
        # Where the hypotheses live in the trie, and where their parents do, [G, K].
        self._slots = self._parents = torch.zeros((0, options.num_beams), dtype=torch.long, device=verifier.device)

    @property
    def trie(self) -> PrefixTrie:
        assert self._trie is not None, "no request was admitted yet"
        return self._trie

    def admit(self, requests: Sequence[Request], source: SourceBatch) -> None:
        num_before = len(self.requests)
        super().admit(requests, source)
        whole = self.state.prefix
        prefix = Prefix(whole.ids[num_before:], whole.lengths[num_before:])
        trie = PrefixTrie.start(prefix, self._num_candidates)
        self._trie = self.trie.append(trie) if num_before else trie
        slots = prefix.lengths[:, None].expand(-1, self.options.num_beams)  # of the last committed token
        self._slots, self._parents = torch.cat([self._slots, slots]), torch.cat([self._parents, slots - 1])

    def round(self) -> list[Emission]:
        watch = Stopwatch()
        draft, num_drafted = self._draft()
        watch.lap("draft")
        output = self._evaluate()
        watch.lap("verify")
        before = self.beams
        walk = self._walk()
        watch.lap("rest")
        self._follow_with_drafter(before, walk, draft, output)
        watch.lap("draft")
        finished = self._book(walk, num_drafted)
        watch.lap("rest")
        watch.share(request.stats for request in self.requests)
        emissions = [self._finish(i, is_broken=is_broken) for i, is_broken in finished]
        if finished:
            self.remove([i for i, _ in finished])
        return emissions

    def _draft(self) -> tuple[DraftBlock, Tensor]:
        """Put the hypotheses that were not guessed and new guesses into the trie.

        Returns:
            What the drafter proposed for the G x K hypotheses, and how many guesses there are per source [G].
        """
        beams, num_beams = self.beams, self.options.num_beams
        recorder = LawRecorder(self._num_candidates, self._never)
        draft = self.drafter.propose(_hypotheses(beams), self.num_draft_tokens, recorder)
        last = beams.tokens.gather(2, (beams.lengths - 1)[:, None, None].expand(-1, num_beams, 1))[..., 0]
        self._slots = self._slots + self.trie.insert(self._parents, last, self._slots == NOWHERE)
        num_needed = self.trie.num_pending
        laws = recorder.laws(draft, len(self.requests), self.num_draft_tokens)
        room = beams.max_lengths - 1 - beams.lengths
        grow_draft_tree(self.trie, self._slots, beams.scores, laws, self._eos, room, WIDTH_PER_BEAM * num_beams)
        return draft, self.trie.num_pending - num_needed

    def _evaluate(self) -> DecoderOutput:
        """Ask the verifier about all new nodes, in one call for all sources, and keep its answers in the trie."""
        # Of the committed tokens that a newcomer begins with, only the last one is asked about.
        num_skipped = torch.where(self.trie.is_fed[:, 1], 0, self.beams.lengths - 1)
        feed = self.trie.feed()
        queries, slots = None, feed.slots
        if bool(num_skipped.any()):
            num_queries = feed.lengths - num_skipped
            offsets = torch.arange(int(num_queries.max()), device=slots.device)
            queries = (num_skipped[:, None] + offsets).clamp(max=slots.shape[1] - 1)
            slots = slots.gather(1, queries).masked_fill(offsets >= num_queries[:, None], NOWHERE)
        output = self.verifier.decode(
            feed.tokens,
            feed.positions,
            feed.lengths,
            self.cache,
            self.encoded,
            self._wanted,
            queries=queries,
            slots=feed.slots,
            visible=feed.visible,
        )
        self.trie.store(slots, *self._best_continuations(output, slots))
        return output

    def _best_continuations(self, output: DecoderOutput, slots: Tensor) -> tuple[Tensor, Tensor]:
        """By processed log-probability: values and ids [G, m, C] of the nodes in `slots` [G, m]."""
        if self.processors.is_empty:
            return self._top_log_probs(output)
        tokens, lengths = self.trie.prefixes(slots)
        num_queries = slots.shape[1]
        # Every node has a prefix of its own: to the processors it is a row with one query.
        context = QueryContext(
            tokens=tokens.flatten(0, 1),
            lengths=lengths.reshape(-1, 1),
            prompt_lengths=self.beams.prompt_lengths.repeat_interleave(num_queries),
            max_lengths=self.beams.max_lengths.repeat_interleave(num_queries),
            valid=slots.reshape(-1, 1) != NOWHERE,
        )
        scores = self.processors(output.scores.logits().flatten(0, 1)[:, None], context)
        values, ids = TensorScores(scores).top(self._num_candidates)
        return values.view(*slots.shape, -1), ids.view(*slots.shape, -1)

    def _walk(self) -> _Walk:
        """Advance every source until it needs an answer that is not there, or is settled."""
        num_groups, num_beams, device = *self._slots.shape, self._slots.device
        origins = torch.arange(num_beams, device=device).repeat(num_groups, 1)
        num_steps = num_found = torch.zeros(num_groups, dtype=torch.long, device=device)
        is_done = is_broken = torch.zeros(num_groups, dtype=torch.bool, device=device)
        is_moving = ~is_done
        while bool(is_moving.any()):
            values, ids = self.trie.candidates(self._slots)
            step = advance(self.beams, values, ids, self._settings)
            parents = self._slots.gather(1, step.parents)
            slots = self.trie.find(parents, step.tokens)
            self._beams = _merged(is_moving, step.state, self.beams)
            self._slots = torch.where(is_moving[:, None], slots, self._slots)
            self._parents = torch.where(is_moving[:, None], parents, self._parents)
            origins = torch.where(is_moving[:, None], origins.gather(1, step.parents), origins)
            num_steps = num_steps + is_moving
            num_found = num_found + is_moving * (slots != NOWHERE).sum(1)
            is_done = is_done | is_moving & step.is_done
            is_broken = is_broken | is_moving & ~values[..., 0].isfinite().all(-1)
            is_moving = is_moving & ~is_done & ~is_broken & (slots != NOWHERE).all(-1)
        self.trie.prune(self._slots, self._parents)
        return _Walk(origins, num_steps, num_found, is_done, is_broken)

    def _follow_with_drafter(self, before: BeamState, walk: _Walk, draft: DraftBlock, output: DecoderOutput) -> None:
        """Tell the drafter which of its rows live on, and how much of their blocks came true."""
        firsts = torch.arange(len(self.requests), device=walk.origins.device)[:, None] * self.options.num_beams
        rows = (walk.origins + firsts).flatten()
        self.drafter.select_rows(rows)
        prefix, drafted = _hypotheses(before), draft.tokens[rows]
        after = _hypotheses(self.beams)
        starts = prefix.lengths[rows]
        offsets = torch.arange(draft.num_slots + 1, device=rows.device)
        places = (starts[:, None] + offsets).clamp(max=after.ids.shape[1] - 1)
        added = after.ids.gather(1, places)
        # The last token counts as the verifier's own: there always is one.
        limits = (after.lengths - starts - 1).minimum(draft.lengths[rows])
        is_kept = (added[:, :-1] == drafted) & (offsets[:-1] < limits[:, None])
        num_accepted = is_kept.long().cumprod(1).sum(1)
        acceptance = Acceptance(num_accepted, added.gather(1, num_accepted[:, None])[:, 0])
        self.drafter.commit(Prefix(prefix.ids[rows], starts), acceptance, output)

    def _book(self, walk: _Walk, num_drafted: Tensor) -> list[tuple[int, bool]]:
        """Hand the round's figures to the requests. Returns which ones are finished, and whether they broke."""
        figures = [walk.num_steps, num_drafted, walk.num_found, walk.is_done.long(), walk.is_broken.long()]
        finished: list[tuple[int, bool]] = []
        for i, (num_steps, drafted, found, is_done, is_broken) in enumerate(torch.stack(figures, dim=1).tolist()):
            record_beam_round(self.requests[i].stats, self.num_draft_tokens, num_steps, drafted, found)
            if is_done or is_broken:
                finished.append((i, bool(is_broken)))
        return finished

    def _start_drafting(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        num_beams, num_old = self.options.num_beams, len(self.requests) * self.options.num_beams
        self.drafter.start(source, encoded)
        rows = torch.arange(num_old + len(source.lengths), device=self.verifier.device)
        self.drafter.select_rows(torch.cat([rows[:num_old], rows[num_old:].repeat_interleave(num_beams)]))

    def _select_groups(self, groups: Tensor) -> None:
        super()._select_groups(groups)
        self._trie = self.trie.select_groups(groups)
        self._slots, self._parents = self._slots[groups], self._parents[groups]
        beams = torch.arange(self.options.num_beams, device=groups.device)
        self.drafter.select_rows((groups[:, None] * self.options.num_beams + beams).flatten())


def _hypotheses(beams: BeamState) -> Prefix:
    """The running hypotheses of all sources as rows, [G x K, T]."""
    return Prefix(beams.tokens.flatten(0, 1), beams.lengths.repeat_interleave(beams.tokens.shape[1]))


def _merged(is_moved: Tensor, moved: BeamState, others: BeamState) -> BeamState:
    """The groups of `moved` where `is_moved` [G], those of `others` elsewhere."""
    if bool(is_moved.all()):
        return moved
    others = others.widened(moved.tokens.shape[-1])
    parts = {}
    for name in (field.name for field in fields(BeamState)):
        new, old = getattr(moved, name), getattr(others, name)
        parts[name] = torch.where(is_moved.view(-1, *[1] * (new.dim() - 1)), new, old)
    return BeamState(**parts)
