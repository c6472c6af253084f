#!/usr/bin/env python3
"""Is the output really the same? Real lines through plain and speculative search on one engine, and transformers.

    for engine in torch:float32 openvino:float32 openvino:bfloat16 openvino:int8; do
        python benchmarks/exactness_on_real_text.py --engine $engine --drafter prompt_lookup=prompt_lookup \\
            --drafter feature=models/debian-en-it-drafter --out benchmarks/results/exactness.jsonl
    done

Every system is compared with our own greedy search at batch 1 on the same engine: ours at batch 16, speculative search
with each drafter at batch 1 and 16, which drafts in every round, and in fp32 transformers' greedy search. Where two
outputs part, the line, the position and the margin between the verifier's two best scores there are listed. Exact
means: no line parts at a margin above the tolerance, and in fp32 at most 2 in 1000 lines part below it. Exit status 1
otherwise. In fp32 the tolerance is 1e-4. Coarser numbers come out otherwise in larger batches, so that ties are more
frequent and wider there: see TOLERANCES. Where steps are machine code of our own (docs/cpu.md) there is no tolerance:
scores are the same bits in every batch.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from spec2seq import Pipeline
from spec2seq.backends.native.support import can_run
from spec2seq.decoding.loop import Decoder
from spec2seq.evaluation.exactness import first_difference, top_two_margin
from spec2seq.evaluation.near_ties import FP32_TOLERANCE
from spec2seq.evaluation.peers import TransformersPeer
from spec2seq.pipelines.results import sum_stats
from spec2seq.types import SourceBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.types import DecodedRequest

    Run = Callable[[], list[Any]]
    Record = dict[str, Any]

BATCH_SIZES = (1, 16)
MAX_TIES_PER_LINE = 2 / 1000
NUM_DRAFT_TOKENS = 8
# In nats. Products over more rows are added up in another order, and each sum is rounded to 8 bits.
TOLERANCES = {"float32": FP32_TOLERANCE, "bfloat16": 0.1, "int8": 0.1}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/debian-en-it"), help="model folder")
    parser.add_argument("--tsv", type=Path, default=Path("recipes/debian-en-it/test.tsv.gz"), help="lines to translate")
    parser.add_argument(
        "--drafter",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="prompt_lookup, a drafter, or a smaller model; may be repeated",
    )
    parser.add_argument("--engine", default="torch:float32", metavar="BACKEND:DTYPE", help="(default: torch:float32)")
    parser.add_argument("--lines", type=int, default=1000, help="number of lines (default: 1000)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    arguments = parser.parse_args()
    arguments.backend, _, arguments.dtype = arguments.engine.partition(":")
    if arguments.dtype not in TOLERANCES:
        parser.error(f"--engine {arguments.engine}: say torch or openvino, a colon and one of {', '.join(TOLERANCES)}")
    return arguments


def load(arguments: argparse.Namespace, drafter: str | None) -> Pipeline:
    return Pipeline.from_pretrained(
        str(arguments.model), drafter, arguments.backend, dtype=arguments.dtype, num_threads=arguments.threads
    )


def tolerance_of(arguments: argparse.Namespace, plain: Pipeline) -> float:
    """The margin up to which a difference is a near tie; 0 where scores do not depend on the batch."""
    if arguments.dtype == "int8" and can_run(plain.model.config):
        return 0.0
    return TOLERANCES[arguments.dtype]


def run_ours(pipeline: Pipeline, sources: list[list[int]], max_rows: int) -> list[DecodedRequest]:
    """Greedy search of all sources in order, up to `max_rows` of them in a batch."""
    drafter = pipeline.make_drafter() if pipeline.make_drafter else None
    decoder = Decoder(pipeline.verifier, drafter, max_rows=max_rows)
    batch = SourceBatch.from_lists(sources, pipeline.model.config.pad_token_id)
    requests = decoder.add(batch, pipeline.options(num_beams=1, num_draft_tokens=NUM_DRAFT_TOKENS))
    while decoder.alive:
        decoder.step()
    return [decoder.result(request) for request in requests]


def run_transformers(folder: Path, sources: list[list[int]], batch_size: int) -> list[list[int]]:
    """transformers' greedy search, lines of like length together."""
    peer = TransformersPeer(folder)
    outputs: dict[int, list[int]] = {}
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for start in range(0, len(order), batch_size):
        lines = order[start : start + batch_size]
        outputs |= zip(lines, peer.generate([sources[i] for i in lines], {"num_beams": 1}), strict=True)
    return [outputs[i] for i in range(len(sources))]


def differences(
    pipeline: Pipeline, sources: list[list[int]], expected: list[list[int]], outputs: list[list[int]]
) -> list[dict[str, Any]]:
    """Line, position and margin of every line that parts from the expected one."""
    found = []
    prompt = [pipeline.model.config.decoder_start_token_id]
    options = pipeline.options(num_beams=1)
    for line, (source, one, other) in enumerate(zip(sources, expected, outputs, strict=True)):
        if one != other:
            position = first_difference(one, other)
            margin = top_two_margin(pipeline.verifier, source, prompt, one[:position], options)
            found.append({"line": line, "position": position, "margin": margin})
    return found


def totals(results: list[DecodedRequest]) -> dict[str, float]:
    """Tokens per round and acceptance over all lines that did not run in circles."""
    stats = [result.stats for result in results if not result.stats.is_degenerate]
    total = sum_stats(stats)
    return {
        "tokens_per_round": total.tokens_per_round,
        "acceptance_rate": total.acceptance_rate,
        "degenerate_lines": len(results) - len(stats),
    }


def real_lines(tsv: Path, num_lines: int) -> list[str]:
    with gzip.open(tsv, "rt", encoding="utf-8") as lines:
        return [line.split("\t")[0] for line in islice(lines, num_lines)]


def runs_to_compare(arguments: argparse.Namespace, plain: Pipeline, sources: list[list[int]]) -> dict[str, Run]:
    """Every system but the one that all are compared with, by its name."""
    runs: dict[str, Run] = {"greedy, batch 16": lambda: run_ours(plain, sources, max_rows=16)}
    if arguments.dtype == "float32":
        runs["transformers greedy, batch 16"] = lambda: run_transformers(arguments.model, sources, 16)
    for name, drafter in (said.split("=", 1) for said in arguments.drafter):
        pipeline = load(arguments, drafter)
        for batch_size in BATCH_SIZES:
            runs[f"{name}, batch {batch_size}"] = partial(run_ours, pipeline, sources, batch_size)
    return runs


def compare(run: Run, plain: Pipeline, sources: list[list[int]], expected: list[list[int]]) -> Record:
    """Run a system, and say where its outputs part from the expected ones."""
    start = time.perf_counter()
    results = run()
    seconds = time.perf_counter() - start
    is_ours = not isinstance(results[0], list)
    outputs = [result.hypotheses[0].token_ids for result in results] if is_ours else results
    found = differences(plain, sources, expected, outputs)
    record = {"lines": len(sources), "differences": found, "seconds": seconds}
    return record | totals(results) if is_ours else record


def tell(record: Record) -> None:
    """Print a comparison, its differences line by line."""
    found = record["differences"]
    told = f", {record['tokens_per_round']:.3f} tokens per round" if "tokens_per_round" in record else ""
    num_identical = record["lines"] - len(found)
    print(f"{record['system']}: {num_identical} identical{told}, {record['seconds']:.0f} s", flush=True)
    for difference in found:
        kind = "MISTAKE" if difference["margin"] > record["tolerance"] else "near tie"
        place = f"line {difference['line']}, token {difference['position']}"
        print(f"  {kind}: {place}, margin {difference['margin']:.2e}")


def is_exact(record: Record) -> bool:
    found = record["differences"]
    is_few = record["tolerance"] > FP32_TOLERANCE or len(found) <= max(1, MAX_TIES_PER_LINE * record["lines"])
    return is_few and all(difference["margin"] <= record["tolerance"] for difference in found)


def main() -> int:
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    plain = load(arguments, None)
    sources = plain.tokenizer.encode(real_lines(arguments.tsv, arguments.lines))
    expected = [result.hypotheses[0].token_ids for result in run_ours(plain, sources, max_rows=1)]
    print(f"{len(sources)} lines, {sum(map(len, expected))} tokens of greedy search at batch 1")
    records = []
    for label, run in runs_to_compare(arguments, plain, sources).items():
        described = {"engine": arguments.engine, "tolerance": tolerance_of(arguments, plain), "system": label}
        records.append(described | compare(run, plain, sources, expected))
        tell(records[-1])
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(records[-1]) + "\n")
    return 0 if all(map(is_exact, records)) else 1


if __name__ == "__main__":
    sys.exit(main())
