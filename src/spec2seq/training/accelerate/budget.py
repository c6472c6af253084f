"""How much of everything a time allows, from what was timed on this machine. Plain arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spec2seq.training.settings import DEFAULT_PLANS
from spec2seq.training.shapes import FeatureShape

if TYPE_CHECKING:
    from spec2seq.training.settings import TrainingPlan
    from spec2seq.training.shapes import Kind

DISTILLING, MEASURING, TRYING = 0.3, 0.15, 0.2  # shares of the budget, at most; the training has the rest
MIN_DISTILLED, MIN_MEASURED = 400, 10  # lines, where the text has them
MIN_STEPS, MAX_STEPS = 50, 60_000
SHORT_BUDGET = 900.0  # below this, many small updates beat few large ones
MEDIUM_BUDGET = 3600.0  # below this, one kind is tried, and the last places of a long block learn nothing
LONG_BUDGET = 4 * 3600.0  # from here on a second layer has the time to learn
_SMALL_BLOCK = 6
_NUM_LOOKS, _NUM_SAVES, _NUM_AVERAGED = 10, 20, 5


def lines_to_distil(budget_seconds: float, seconds_per_line: float, num_available: int) -> int:
    """How many lines the distillation's share of the budget is enough for."""
    affordable = int(DISTILLING * budget_seconds / seconds_per_line)
    return min(num_available, max(MIN_DISTILLED, affordable))


def lines_to_measure(budget_seconds: float, seconds_per_line: float, num_available: int) -> int:
    """How many held-out lines the measurement's share is enough for, `seconds_per_line` being those of all systems."""
    affordable = int(MEASURING / 2 * budget_seconds / seconds_per_line)
    return min(num_available, max(MIN_MEASURED, affordable))


def kinds_to_try(kind: Kind | None, budget_seconds: float) -> list[Kind]:
    """The kinds among which the measured speed decides; one where it is said, or where time is short."""
    if kind is not None:
        return [kind]
    return ["feature", "spec"] if budget_seconds >= MEDIUM_BUDGET else ["feature"]


def training_steps(seconds: float, seconds_per_step: float) -> int:
    """Updates that fit into a time."""
    return min(MAX_STEPS, max(MIN_STEPS, int(seconds / seconds_per_step)))


def probe_plan(kind: Kind, budget_seconds: float, steps: int) -> TrainingPlan:
    """A few updates of the size that the budget's training will have, with a look at the clock after every two."""
    plan = sized_plan(kind, budget_seconds, steps)
    settings = replace(plan.settings, eval_steps=2, save_steps=steps, num_averaged=1, num_held_out=1)
    return replace(plan, settings=settings)


def sized_plan(kind: Kind, budget_seconds: float, steps: int) -> TrainingPlan:
    """What to train in so many updates: sizes and intervals that suit their number and the budget."""
    plan = DEFAULT_PLANS[kind]
    settings = replace(
        plan.settings,
        steps=steps,
        batch_tokens=_batch_tokens(budget_seconds),
        warmup_steps=min(plan.settings.warmup_steps, max(1, steps // 10)),
        eval_steps=max(1, steps // _NUM_LOOKS),
        save_steps=max(1, steps // _NUM_SAVES),
        num_averaged=_NUM_AVERAGED,
        num_held_out=200,
    )
    shape = plan.shape
    if budget_seconds < MEDIUM_BUDGET:
        shape = replace(shape, block_size=min(shape.block_size, _SMALL_BLOCK))
    if isinstance(shape, FeatureShape) and budget_seconds >= LONG_BUDGET:
        shape = replace(shape, decoder_layers=2)
    return replace(plan, shape=shape, settings=settings)


def _batch_tokens(budget_seconds: float) -> int:
    """Tokens per update."""
    if budget_seconds < SHORT_BUDGET:
        return 1024
    return 2048 if budget_seconds < MEDIUM_BUDGET else 4096
