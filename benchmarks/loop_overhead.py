#!/usr/bin/env python3
"""What a round of the loop costs beside the model: microseconds of this thread's time per round, by number of rows.

    python benchmarks/loop_overhead.py

The verifier answers from a table. What it needs for that is measured apart and left out, as is the first round with its
encoding. Every figure is the least of several repeats. Prints a table and appends one JSON line per setting to --out.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spec2seq.decoding.loop import Decoder
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import tiny_config
from spec2seq.types import DecoderOutput, DraftBlock, SourceBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from spec2seq.interfaces import Cache, Choose, Drafter, EncoderOutput, Verifier
    from spec2seq.types import Acceptance, Prefix, Wanted

VOCAB_SIZE = 8000
SOURCE_LENGTH = 28
NUM_TOKENS = 120
NUM_DRAFT_TOKENS = 8


class Rows:
    """Stands for the cache and for the encoded sources: nothing but a number of rows."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def select_rows(self, rows: Tensor) -> Rows:
        return Rows(len(rows))

    def append_rows(self, count: int) -> Rows:
        return Rows(self.num_rows + count)

    def concat(self, other: Rows) -> Rows:
        return Rows(self.num_rows + other.num_rows)


class BestIds:
    """Scores of which only the best ids are known."""

    def __init__(self, values: Tensor, ids: Tensor) -> None:
        self.values = values
        self.ids = ids

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        return self.values, self.ids


class TextVerifier:
    """Says the same text whatever the source: the token after position p is `text[p]`."""

    def __init__(self, text: list[int]) -> None:
        self.config = tiny_config(vocab_size=VOCAB_SIZE, max_positions=512)
        self.device = torch.device("cpu")
        self.seconds = 0.0
        self._text = torch.tensor(text)
        self._zeros = torch.zeros((64, 64, 1))

    def encode(self, source: SourceBatch) -> Rows:
        return Rows(len(source.lengths))

    def new_cache(self, num_rows: int) -> Rows:
        return Rows(num_rows)

    def decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        lengths: Tensor,
        cache: Cache,
        encoded: EncoderOutput,
        wanted: Wanted,
        *,
        queries: Tensor | None = None,
        slots: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> DecoderOutput:
        start = time.thread_time()
        asked = positions if queries is None else positions.gather(1, queries)
        ids = self._text[asked.clamp(max=len(self._text) - 1)][..., None]
        output = DecoderOutput(BestIds(self._zeros[: ids.shape[0], : ids.shape[1]], ids))  # type: ignore[arg-type]
        self.seconds += time.thread_time() - start
        return output


class TextDrafter:
    """Knows the text but for every third token, and needs next to no time."""

    hidden_layers: tuple[int, ...] = ()
    default_num_draft_tokens = NUM_DRAFT_TOKENS
    max_draft_tokens: int | None = None

    def __init__(self, text: list[int]) -> None:
        wrong = [token + (place % 3 == 0) for place, token in enumerate(text)]
        self._text = torch.tensor(wrong + wrong[-1:] * NUM_DRAFT_TOKENS)
        self._offsets = torch.arange(NUM_DRAFT_TOKENS)

    def start(self, source: SourceBatch, encoded: EncoderOutput) -> None:
        pass

    def propose(self, prefix: Prefix, num_draft_tokens: int, choose: Choose | None = None) -> DraftBlock:
        tokens = self._text[(prefix.lengths - 1)[:, None] + self._offsets[:num_draft_tokens]]
        return DraftBlock(tokens, torch.full_like(prefix.lengths, num_draft_tokens))

    def commit(self, prefix: Prefix, acceptance: Acceptance, output: DecoderOutput) -> None:
        pass

    def select_rows(self, rows: Tensor) -> None:
        pass


def measure(verifier: TextVerifier, drafter: Drafter | None, num_rows: int, source: list[int]) -> float:
    """Microseconds per round, verifier left out."""
    number = "auto" if drafter is None else NUM_DRAFT_TOKENS
    given = {"max_new_tokens": NUM_TOKENS, "num_draft_tokens": number}
    options = resolve_options({}, verifier.config, None, given)
    decoder = Decoder(verifier, drafter)  # type: ignore[arg-type]
    requests = decoder.add(SourceBatch.from_lists([source] * num_rows, 1), options)
    decoder.step()
    verifier.seconds, num_rounds, start = 0.0, 0, time.thread_time()
    while decoder.alive:
        decoder.step()
        num_rounds += 1
    seconds = time.thread_time() - start - verifier.seconds
    for request in requests:
        decoder.result(request)
    return seconds / num_rounds * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--label", default="", help="what to call this version of the loop in --out")
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(4, VOCAB_SIZE, (NUM_TOKENS,), generator=generator).tolist()
    source = text[:20] + text[40 : 40 + SOURCE_LENGTH - 20]
    verifier = TextVerifier(text)
    makers: dict[str, Callable[[Verifier], Drafter | None]] = {
        "none": lambda _: None,
        "text": lambda _: TextDrafter(text),
        "prompt_lookup": lambda verifier: PromptLookupDrafter(verifier.config),
    }
    print("| drafter | rows | us per round |\n| --- | --- | --- |")
    for name, make in makers.items():
        for num_rows in arguments.batch_sizes:
            least = min(
                measure(verifier, make(verifier), num_rows, source)  # type: ignore[arg-type]
                for _ in range(arguments.repeats)
            )
            print(f"| {name} | {num_rows} | {least:.0f} |", flush=True)
            if arguments.out:
                record = {
                    "label": arguments.label,
                    "drafter": name,
                    "rows": num_rows,
                    "microseconds_per_round": least,
                    "cpu": platform.processor(),
                    "torch": torch.__version__,
                }
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
