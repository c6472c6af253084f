"""What a few lines and a few updates take on this machine."""

from __future__ import annotations

import warnings
from time import perf_counter
from typing import TYPE_CHECKING

from spec2seq.training.accelerate.source_split import evenly
from spec2seq.training.drafter_training import train_drafter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spec2seq.pipelines.arguments import GenerationArguments
    from spec2seq.pipelines.pipeline import Pipeline
    from spec2seq.training.accelerate.request import AccelerationRequest
    from spec2seq.training.settings import TrainingPlan
    from spec2seq.weights import LoadedModel

NUM_PROBED = 48  # lines in a batch
NUM_SINGLE = 6
PROBE_STEPS = 12


def search_arguments(request: AccelerationRequest) -> GenerationArguments:
    """Options of the greedy search that is to be accelerated."""
    return {"num_beams": 1, "do_sample": False, "top_beta": 1, "max_new_tokens": request.max_new_tokens}


def time_lines(pipeline: Pipeline, lines: Sequence[str], request: AccelerationRequest) -> tuple[float, float]:
    """Seconds per line of greedy search, in a batch and one line at a time."""
    _generate(pipeline, lines[:1], request)
    batch, single = evenly(lines, NUM_PROBED), evenly(lines, NUM_SINGLE)
    begin = perf_counter()
    _generate(pipeline, batch, request)
    middle = perf_counter()
    for line in single:
        _generate(pipeline, [line], request)
    return (middle - begin) / len(batch), (perf_counter() - middle) / len(single)


def _generate(pipeline: Pipeline, lines: Sequence[str], request: AccelerationRequest) -> None:
    pipeline.generate(
        lines,
        source_lang=request.source_lang,
        target_lang=request.target_lang,
        source_prefix=request.source_prefix,
        long_input="split",
        **search_arguments(request),
    )


def time_training(model: LoadedModel, pairs: Path, folder: Path, plan: TrainingPlan, device: str) -> float:
    """Seconds per update, by a training of a few in a folder of its own. `plan` looks at the held-out pairs after every
    second update: what is timed is from one look to the next two updates' end."""
    looks: list[float] = []
    updates: list[float] = []

    def note(step: int, logs: dict[str, float]) -> None:
        if "eval_tokens_per_round" in logs:
            looks.append(perf_counter())
        elif "loss" in logs and looks:
            updates.append(perf_counter() - looks[-1])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few updates
        train_drafter(model, [pairs], folder, plan, device, note)
    return sum(updates) / len(updates) / 2
