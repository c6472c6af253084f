"""What a caller may ask for besides tokens: the scores behind each, and how close the choices were."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from spec2seq.decoding.search import encode_requests
from spec2seq.decoding.transfer import on_device
from spec2seq.types import SourceBatch, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.decoding.search import Request
    from spec2seq.decoding.state import Counts, Flags
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Verifier
    from spec2seq.types import Scores


@dataclass
class ScoreRecord:
    """Of one output, as far as it got, on the CPU.

    Attributes:
        scores: processed scores of its tokens, in parts [n, V].
        logits: the model's own scores, likewise.
        min_margin: smallest gap between the two best scores of a token; infinity where no scores decided anything.
    """

    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    min_margin: float = math.inf

    @classmethod
    def wanted_by(cls, options: ResolvedOptions) -> ScoreRecord | None:
        """An empty record, or None where nothing of it was asked for."""
        is_wanted = options.output_scores or options.output_logits or options.output_margin
        return cls() if is_wanted and options.num_beams == 1 else None

    def copy(self) -> ScoreRecord:
        """The same beginning for another output."""
        return ScoreRecord(list(self.scores), list(self.logits), self.min_margin)


class ScoreRecorder:
    """Writes the records of a search's requests, round by round."""

    def __init__(self, options: ResolvedOptions) -> None:
        self._options = options

    def raw(self, scores: Scores) -> Tensor | None:
        """The model's scores [B, m, V], before processors edit them in place; None where nobody asked for them."""
        return scores.logits().clone() if self._options.output_logits else None

    def write(
        self, requests: Sequence[Request], raw: Tensor | None, scores: Scores, num_tokens: Counts, is_forced_end: Flags
    ) -> None:
        """Add what the round's tokens were chosen from.

        Args:
            requests: B, the broken ones marked as such.
            raw: what `raw` gave.
            scores: final scores [B, m, V]; row i gave token i.
            num_tokens: [B] tokens of the round, on the host.
            is_forced_end: [B] rows whose last token no scores decided.
        """
        values = self._values(scores) if self._options.output_scores else None
        num_decided = num_tokens - is_forced_end
        margins = _min_margins(scores, num_decided) if self._options.output_margin else [math.inf] * len(requests)
        counts = zip(num_tokens.tolist(), num_decided.tolist(), strict=True)
        for i, (request, (count, num_decided_here)) in enumerate(zip(requests, counts, strict=True)):
            if request.record is None or request.error:
                continue
            request.record.min_margin = min(request.record.min_margin, margins[i])
            if raw is not None:
                request.record.logits.append(raw[i, :count].to("cpu", copy=True))
            if values is not None:
                request.record.scores.append(values[i, :num_decided_here].to("cpu", copy=True))
                if num_decided_here < count:
                    request.record.scores.append(certain_scores(self._options.forced_eos_token_ids, values.shape[-1]))

    def _values(self, scores: Scores) -> Tensor:
        # searches leave out a normalisation that changes no choice
        values = scores.logits()
        return values.log_softmax(dim=-1) if self._options.renormalize_logits else values


def certain_scores(token_ids: Sequence[int], vocab_size: int) -> Tensor:
    """Scores [1, V] that leave nothing but these tokens."""
    scores = torch.full((1, vocab_size), -torch.inf)
    scores[:, list(token_ids)] = 0.0
    return scores


@torch.inference_mode()
def record_start_logits(verifier: Verifier, requests: Sequence[Request]) -> None:
    """Record the logits in whose place the forced first tokens of `requests` stand.

    Nothing else needs them, so that they cost a verifier call of their own. The sources stay encoded.
    """
    device, config = verifier.device, verifier.config
    source = SourceBatch.from_lists([request.source_ids.tolist() for request in requests], config.pad_token_id, device)
    encoded = encode_requests(verifier, requests, source)
    starts = torch.tensor([request.committed[:1] for request in requests], device=device)
    lengths = torch.ones(len(requests), dtype=torch.long, device=device)
    cache = verifier.new_cache(len(requests))
    output = verifier.decode(starts, torch.zeros_like(starts), lengths, cache, encoded, Wanted(logits=True))
    for i, request in enumerate(requests):
        request.encoder_states = encoded.hidden[i, : len(request.source_ids)]
        if request.record is not None:
            request.record.logits.append(output.scores.logits()[i].to("cpu", copy=True))


def _min_margins(scores: Scores, num_decided: Counts) -> list[float]:
    """The smallest gap between the two best scores [B, m, V] of the first `num_decided` [B] queries of every row."""
    best, _ = scores.top(2)
    gaps = best[..., 0] - best[..., -1]
    is_undecided = on_device(np.arange(gaps.shape[1]) >= num_decided[:, None], gaps.device)
    margins: list[float] = gaps.masked_fill(is_undecided, torch.inf).amin(dim=-1).tolist()
    return margins
