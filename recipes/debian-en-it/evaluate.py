#!/usr/bin/env python3
"""Compare ways of decoding on the test lines: tokens per round, acceptance, time, BLEU and chrF.

    python recipes/debian-en-it/evaluate.py --model model --test corpus/test.tsv.gz --output results \\
        --drafter drafters/spec --also feature=drafters/feature --also blockwise=drafters/blockwise:10,25 \\
        --also small_model=small/model --slots-of 6+2=drafters/spec --slots-of 6+1=drafters/spec-6+1

Compared are greedy search, beam search, exact and relaxed speculative search with --drafter, that drafter alone
(nothing checks it), exact search with every --also, and prompt_lookup. --slots-of adds a table of tokens per round by
the number of slots. The same command continues an interrupted run: every output is kept in OUTPUT/runs. At the end
OUTPUT holds figures.jsonl, figures.md and tokens_per_round.png.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from command_line import run_main
from compared_systems import (
    ALONE,
    BEAMS,
    GREEDY,
    PROMPT_LOOKUP,
    WEIGHTS,
    ComparedSystem,
    NamedDrafter,
    SystemLoader,
    exact_systems,
    main_systems,
)
from figures import TABLE_FILE, write_records

from spec2seq.evaluation.benchmark.inputs import BenchmarkInputs, prepare_inputs
from spec2seq.evaluation.benchmark.lines import read_lines
from spec2seq.evaluation.benchmark.provenance import commit, machine, now
from spec2seq.evaluation.line_runs import FiledSystem, LineRun, LineRunFile, run_by_turns
from spec2seq.evaluation.system_figures import lines_that_count, system_figures
from spec2seq.pipelines.plans import TextOptions
from spec2seq.weights.fingerprints import file_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from figures import Record

    from spec2seq.evaluation.benchmark.timing import IdLists

SLOTS = (5, 10, 15, 20, 25)
TELL_SECONDS = 20


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the verifier")
    parser.add_argument(
        "--test", type=Path, required=True, metavar="FILE", help="lines and references, .tsv or .tsv.gz"
    )
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="DIR", help="where the results go")
    parser.add_argument("--drafter", metavar="DIR", help="a Spec-Drafter, to be used in every way")
    parser.add_argument(
        "--num-draft-tokens", type=int, metavar="K", help="slots for --drafter (default: those of its training)"
    )
    parser.add_argument(
        "--also",
        type=NamedDrafter.parse,
        action="append",
        default=[],
        metavar="NAME=DIR[:K,...]",
        help="exact search with this drafter, or smaller model, and K draft tokens",
    )
    parser.add_argument(
        "--slots-of",
        type=NamedDrafter.parse,
        action="append",
        default=[],
        metavar="NAME=DIR[:K,...]",
        help=f"tokens per round of this drafter with K slots (default: {','.join(map(str, SLOTS))})",
    )
    parser.add_argument("--lines", type=int, metavar="N", help="only the first N lines (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--backend", default="torch", help="engine of the models (default: torch)")
    return parser.parse_args()


def slot_systems(drafters: Sequence[NamedDrafter]) -> list[tuple[NamedDrafter, int, ComparedSystem]]:
    """What the table of slots is made from."""
    return [
        (drafter, slots, ComparedSystem(f"slots of {drafter.name}, k = {slots}", drafter.folder, slots))
        for drafter in drafters
        for slots in drafter.slots or SLOTS
    ]


def run_systems(
    systems: Sequence[ComparedSystem], loader: SystemLoader, sources: IdLists, folder: Path, job: Record
) -> dict[str, list[LineRun]]:
    """The runs of every system, those that were there before included."""
    filed = [
        FiledSystem(loader.load(system), LineRunFile(folder / system.file_name, {**job, **system.job()}))
        for system in systems
    ]
    run_by_turns(filed, sources, time.perf_counter, progress_teller())
    return {system.name: one.file.first(len(sources)) for system, one in zip(systems, filed, strict=True)}


def progress_teller() -> Callable[[int, int], None]:
    """Prints now and then how many lines are done, and how long the others will take."""
    begin = last = time.monotonic()
    num_before: int | None = None

    def tell(done: int, total: int) -> None:
        nonlocal last, num_before
        num_before = done - 1 if num_before is None else num_before
        if time.monotonic() - last >= TELL_SECONDS or done == total:
            last = time.monotonic()
            left = (last - begin) / (done - num_before) * (total - done) / 60
            print(f"{done} of {total} lines, {left:.1f} min left", file=sys.stderr, flush=True)

    return tell


def figures_of(
    systems: Sequence[ComparedSystem],
    slots: Sequence[tuple[NamedDrafter, int, ComparedSystem]],
    runs: Mapping[str, Sequence[LineRun]],
    inputs: BenchmarkInputs,
) -> list[Record]:
    """A record of every system, and of every number of slots."""
    names = [system.name for system in systems]
    shown = system_figures(
        {name: runs[name] for name in names},
        inputs.references,
        inputs.tokenizer.decode,
        exact=GREEDY,
        baseline=BEAMS,
        unchecked=[ALONE],
        beams=[BEAMS],
    )
    records: list[Record] = [
        {"record": "system", **one.as_dict(), "num_draft_tokens": system.num_draft_tokens}
        for system, one in zip(systems, shown, strict=True)
    ]
    kept = lines_that_count({name: runs[name] for name in names}, [ALONE])
    for drafter, count, system in slots:
        rate = rate_of([runs[system.name][i] for i in kept])
        records.append({"record": "slots", "drafter": drafter.name, "slots": count, "tokens_per_round": rate})
    return records


def rate_of(runs: Sequence[LineRun]) -> float:
    """Tokens per round."""
    return sum(run.num_tokens for run in runs) / sum(run.num_rounds for run in runs)


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    lines = read_lines(arguments.test, limit=arguments.lines)
    inputs = prepare_inputs(arguments.model, lines, TextOptions(long_input="truncate"), time.perf_counter)
    also = [*arguments.also, NamedDrafter(PROMPT_LOOKUP, PROMPT_LOOKUP)]
    loader = SystemLoader(arguments.model, arguments.backend, arguments.threads)
    wanted = [*main_systems(arguments.drafter, arguments.num_draft_tokens), *exact_systems(also)]
    systems = [loader.resolved(system) for system in wanted]
    slots = slot_systems(arguments.slots_of)
    weights = file_fingerprint(arguments.model / WEIGHTS)
    job = {"weights": weights, "input": lines.name, "backend": arguments.backend, "threads": arguments.threads}
    all_systems = [*systems, *(system for _, _, system in slots)]
    runs = run_systems(all_systems, loader, inputs.sources, arguments.output / "runs", job)
    run = {**job, "lines": len(inputs.sources), "date": now(), "commit": commit(), "machine": machine()}
    write_records(arguments.output, [{"record": "run", **run}, *figures_of(systems, slots, runs, inputs)])
    print((arguments.output / TABLE_FILE).read_text(encoding="utf-8"))


if __name__ == "__main__":
    run_main(main)
