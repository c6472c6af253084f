"""What a finished training says about its data and its length."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEW_PAIRS = 10_000
LAST_PART = 0.2  # of the training, in which the gain should have become small
LARGE_CHANGE = 1.02
_WATCHED = "eval_tokens_per_round"


def training_advice(history: Sequence[Mapping[str, float]], num_pairs: int, num_beams: int) -> list[str]:
    """Sentences for the user, none where all is well.

    Args:
        history: what the Trainer logged.
        num_pairs: trained on.
        num_beams: of the search that the pairs come from.
    """
    advice = []
    if num_beams > 1:
        advice.append(
            f"the pairs are outputs of a search with num_beams={num_beams}: the tokens per round told here are not "
            "those of greedy decoding; distil without --num-beams for that"
        )
    if num_pairs < FEW_PAIRS:
        advice.append(f"only {num_pairs} pairs to train on; drafters gain from tens of thousands: distil more lines")
    return advice + _on_length(history)


def _on_length(history: Sequence[Mapping[str, float]]) -> list[str]:
    looks = [(entry["step"], entry[_WATCHED]) for entry in history if _WATCHED in entry]
    before = [value for step, value in looks if step <= looks[-1][0] * (1 - LAST_PART)]
    if not before:
        return []
    last, best = looks[-1][1], max(before)
    if last > before[-1] * LARGE_CHANGE and last > best:
        return [
            f"tokens per round still rose from {before[-1]:.2f} to {last:.2f} in the last fifth of the training; "
            "train longer with more --steps"
        ]
    if best > last * LARGE_CHANGE:
        return [
            f"tokens per round fell from {best:.2f} to {last:.2f}: the pairs are too few for so many steps; "
            "distil more lines, or train with fewer --steps"
        ]
    return []
