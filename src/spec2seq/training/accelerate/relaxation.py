"""Which tolerance of relaxed search to use: the fastest whose outputs the model finds about as likely as its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spec2seq.evaluation.teacher_forcing import forced_scores
from spec2seq.training.accelerate.systems import EXACT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spec2seq.evaluation.line_runs import LineRun
    from spec2seq.training.accelerate.systems import DecodingSystem

TOLERANCES = ((2, 1.0), (3, 1.0), (3, 2.0), (5, 3.0))  # top_beta and tau; the last is the paper's
MAX_LOSS = 0.05  # nats per token


def relaxed_name(tolerance: tuple[int, float]) -> str:
    """For tables and files."""
    return f"relaxed {tolerance[0]}, {tolerance[1]}"


def choose_tolerance(
    runs: Mapping[str, Sequence[LineRun]], sources: Sequence[Sequence[int]], exact: DecodingSystem
) -> dict[str, Any]:
    """The tolerance to use, or None, with what led to it.

    Args:
        runs: of exact search, and of every tolerance by its name, on the same lines.
        sources: ids of all lines that were run.
        exact: the system whose model judges.
    """
    own = _log_prob(exact, sources, runs[EXACT])
    tried = []
    for tolerance in TOLERANCES:
        mine = runs[relaxed_name(tolerance)]
        loss = own - _log_prob(exact, sources, mine)
        seconds = sum(run.seconds for run in mine)
        tried.append({"top_beta": tolerance[0], "tau": tolerance[1], "seconds": seconds, "loss": loss})
    exact_seconds = sum(run.seconds for run in runs[EXACT])
    good = [one for one in tried if one["loss"] <= MAX_LOSS and one["seconds"] < exact_seconds]
    return {"chosen": min(good, key=lambda one: one["seconds"]) if good else None, "tried": tried}


@torch.inference_mode()
def _log_prob(exact: DecodingSystem, sources: Sequence[Sequence[int]], runs: Sequence[LineRun]) -> float:
    """Mean log-probability of the outputs' tokens, in nats."""
    verifier, start = exact.pipeline.verifier, exact.start.decoder_start
    prompt = [verifier.config.decoder_start_token_id if start is None else start]
    total, count = 0.0, 0
    for source, run in zip(sources, runs, strict=True):
        scores = forced_scores(verifier, source, prompt, run.token_ids[:-1], exact.options).logits()[0]
        targets = torch.tensor(run.token_ids, device=scores.device)
        chosen = torch.log_softmax(scores.float(), dim=-1).gather(1, targets[:, None])
        total += float(chosen.sum())
        count += len(run.token_ids)
    return total / count
