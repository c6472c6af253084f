"""From lines of text to what every system is given: ids, and how outputs begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec2seq.errors import InputError
from spec2seq.option_resolution import resolve_options
from spec2seq.pipelines.plans import TextOptions, TextPlanner
from spec2seq.tokenization import TargetStart, TextTokenizer
from spec2seq.weights import read_model_config

if TYPE_CHECKING:
    from pathlib import Path

    from spec2seq.evaluation.benchmark.lines import BenchmarkLines
    from spec2seq.evaluation.benchmark.timing import Clock


@dataclass(frozen=True)
class BenchmarkInputs:
    """Tokenised lines.

    Attributes:
        sources: ids of every line.
        references: of the same lines, or None.
        start: how every output begins.
        tokenizer: for the way back.
        seconds: that tokenisation took.
    """

    sources: list[list[int]]
    references: list[str] | None
    start: TargetStart
    tokenizer: TextTokenizer
    seconds: float


def prepare_inputs(model: Path, lines: BenchmarkLines, text_options: TextOptions, clock: Clock) -> BenchmarkInputs:
    """Tokenise lines as the pipeline would; what is longer than the model's positions is cut, with a warning.

    Raises:
        OptionError: languages that do not fit the model.
        InputError: nothing is left of a line.
    """
    config, generation = read_model_config(model)
    tokenizer = TextTokenizer.from_folder(model, config)
    forced = resolve_options(generation, config).forced_first_tokens(len(lines.sources))
    planner = TextPlanner(tokenizer, config, text_options, forced)
    planner.plan(lines.sources[:1])  # the first call makes tables
    start = clock()
    plans = planner.plan(lines.sources)
    seconds = clock() - start
    pieces = [piece for plan in plans for piece in plan.pieces]
    if len(pieces) != len(lines.sources):
        raise InputError(f"{lines.name}: {len(lines.sources)} lines gave {len(pieces)} inputs; leave out odd lines")
    sources = [piece.source_ids for piece in pieces]
    return BenchmarkInputs(sources, lines.references, pieces[0].start, tokenizer, seconds)
