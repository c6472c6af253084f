#!/usr/bin/env python3
"""Draw one round of speculative decoding, as it happened, for docs/drafters.md.

    python docs/draw_round.py --drafter models/debian-en-it-drafter "a library for reading and writing image files"

Of the text's rounds the one with the longest kept part is drawn, of those the first with a rejected token. Needs
matplotlib.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec2seq import Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from spec2seq.interfaces import Choose, Drafter, EncoderOutput
    from spec2seq.types import Acceptance, DecoderOutput, DraftBlock, Prefix, SourceBatch

ROOT = Path(__file__).parent.parent
NUM_BEFORE = 5  # tokens shown in front of the block
KNOWN, KEPT, REJECTED, OWN, UNUSED = "#d9dee7", "#b7e1c1", "#f6c6c0", "#fbe3a6", "#f0f0f0"


@dataclass(frozen=True)
class Round:
    """Token ids of one round: the text before, the draft, and the verifier's choice behind each of its queries."""

    before: list[int]
    draft: list[int]
    choices: list[int]
    num_accepted: int


class Recorder:
    """A drafter that hands everything to another one and remembers what became of its drafts; for one row."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.rounds: list[Round] = []
        self._draft: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        self._drafter.start(source, encoded)

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        draft = self._drafter.propose(prefix, num_draft_tokens, choose)
        self._draft = draft.tokens[0, : int(draft.lengths[0])].tolist()
        return draft

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        self._drafter.commit(prefix, acceptance, output)
        choices = output.scores.top(1)[1][0, :, 0].tolist()[: len(self._draft) + 1]
        before = prefix.ids[0, : int(prefix.lengths[0])].tolist()
        self.rounds.append(Round(before, self._draft, choices, int(acceptance.num_accepted[0])))

    def select_rows(self, rows: Tensor) -> None:
        self._drafter.select_rows(rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", help="to decode")
    parser.add_argument(
        "--model", type=Path, default=ROOT / "models" / "debian-en-it", help="(default: the bundled one)"
    )
    parser.add_argument("--drafter", default="prompt_lookup", help="(default: prompt_lookup)")
    parser.add_argument("--num-draft-tokens", type=int, default=6, metavar="K", help="(default: 6)")
    parser.add_argument("--output", "-o", type=Path, default=ROOT / "docs" / "images" / "round.png", metavar="FILE")
    return parser.parse_args()


def record(pipeline: Pipeline, text: str, num_draft_tokens: int) -> list[Round]:
    """The rounds of a text."""
    make = pipeline.make_drafter
    if make is None:
        raise SystemExit("there is nothing to draw without a drafter")
    recorders: list[Recorder] = []

    def make_recorder() -> Recorder:
        recorders.append(Recorder(make()))
        return recorders[-1]

    recording = Pipeline(pipeline.model, pipeline.verifier, make_recorder)
    recording.generate(text, num_beams=1, num_draft_tokens=num_draft_tokens)
    return recorders[-1].rounds


def draw(chosen: Round, to_piece: Callable[[int], str], file: Path) -> None:
    """Write the picture."""
    from matplotlib import pyplot

    start = len(chosen.before[-NUM_BEFORE:])
    width = start + len(chosen.draft) + 1
    figure, axes = pyplot.subplots(figsize=(1.15 * width + 1.6, 3.3))
    axes.set_xlim(-1.5, width)
    axes.set_ylim(-0.75, 2.7)
    axes.axis("off")

    def box(column: int, row: float, token: int, colour: str) -> None:
        axes.add_patch(pyplot.Rectangle((column + 0.04, row), 0.92, 0.6, facecolor=colour, edgecolor="#55606e", lw=0.8))
        axes.text(column + 0.5, row + 0.3, to_piece(token), ha="center", va="center", fontsize=9)

    for column, token in enumerate(chosen.before[-NUM_BEFORE:]):
        box(column, 2.0, token, KNOWN)
    for i, token in enumerate(chosen.draft):
        box(start + i, 1.0, token, KEPT if i < chosen.num_accepted else REJECTED)
    for i, token in enumerate(chosen.choices):
        is_own = i == chosen.num_accepted
        box(start + i, 0.0, token, KEPT if i < chosen.num_accepted else OWN if is_own else UNUSED)
        axes.annotate(
            "",
            (start + i + 0.5, 0.62),
            (start + i - 0.5, 1.95 if i == 0 else 0.98),
            arrowprops={"arrowstyle": "->", "color": "#8a93a0", "lw": 0.8},
        )
    for row, name in ((2.3, "text so far"), (1.3, "draft"), (0.3, "verifier")):
        axes.text(-0.1, row, name, ha="right", va="center", fontsize=10, weight="bold")
    told = f"one call of the verifier: {chosen.num_accepted} drafted tokens kept, and its own one behind them"
    axes.text(start, -0.45, told, ha="left", va="center", fontsize=10)
    figure.savefig(file, dpi=130, bbox_inches="tight")


def main() -> None:
    from transformers import AutoTokenizer

    arguments = parse_arguments()
    pipeline = Pipeline.from_pretrained(arguments.model, arguments.drafter, backend="torch")
    rounds = record(pipeline, arguments.text, arguments.num_draft_tokens)
    shown = [one for one in rounds if one.num_accepted < len(one.draft)] or rounds
    chosen = max(shown, key=lambda one: one.num_accepted)
    draw(chosen, AutoTokenizer.from_pretrained(arguments.model).convert_ids_to_tokens, arguments.output)
    print(f"{arguments.output}: round {1 + rounds.index(chosen)} of {len(rounds)}")


if __name__ == "__main__":
    main()
