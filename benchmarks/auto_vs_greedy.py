#!/usr/bin/env python3
"""Drafting as much as pays (num_draft_tokens="auto") beside plain greedy search of the same engine, in pairs.

    python benchmarks/auto_vs_greedy.py --out benchmarks/results/auto_vs_greedy.jsonl

A pair decodes the same lines in the same batches both ways, one after the other; which comes first changes from pair to
pair, and every pair has other lines as long as there are any. The timed region is source ids in, output ids out. One
pair more is decoded before, and not counted: an engine learns its costs once. The speed of auto relative to plain
search is the ratio of the two times; its mean over the pairs (of logarithms) is told with a 95 % interval. Prints a
table and appends one JSON line per batch size to --out. --batch-sizes makes a run in pieces.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import spec2seq
from spec2seq import Pipeline
from spec2seq.pipelines.results import sum_stats

# Two-sided 95 % of Student's t, by degrees of freedom; beyond the last one the limit is close enough.
QUANTILES = {5: 2.571, 9: 2.262, 14: 2.145, 19: 2.093, 24: 2.064, 29: 2.045, 39: 2.023, 59: 2.001}
LIMIT = 1.96

Batches = list[list[list[int]]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="models/debian-en-it", help="model folder")
    parser.add_argument("--tsv", type=Path, default=Path("recipes/debian-en-it/test.tsv.gz"), help="lines to translate")
    parser.add_argument("--drafter", default="prompt_lookup", help="prompt_lookup or a folder")
    parser.add_argument("--backend", default="torch", help="engine (default: torch)")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--pairs", type=int, default=20, help="pairs per batch size (default: 20)")
    parser.add_argument("--lines", type=int, default=8, help="lines per pair (default: 8); at least one batch")
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    return parser.parse_args()


def read_sources(arguments: argparse.Namespace, pipeline: Pipeline) -> list[list[int]]:
    with gzip.open(arguments.tsv, "rt", encoding="utf-8") as lines:
        texts = [line.split("\t")[0] for line in lines]
    return pipeline.tokenizer.encode(texts)


def batches_of_pair(sources: list[list[int]], pair: int, num_lines: int, batch_size: int) -> Batches:
    """The lines of a pair in batches of like length."""
    start = pair * num_lines
    lines = sorted((sources[i % len(sources)] for i in range(start, start + num_lines)), key=len)
    return [lines[i : i + batch_size] for i in range(0, num_lines, batch_size)]


class Runner:
    """Decodes batches in one of the two ways; remembers what the other half of a pair is compared with."""

    def __init__(self, pipeline: Pipeline, num_draft_tokens: int | str) -> None:
        self._pipeline = pipeline
        self._num_draft_tokens = num_draft_tokens
        self.seconds: list[float] = []
        self.outputs: list[list[int]] = []
        self.rounds_by_num_draft_tokens: list[int] = []

    def run(self, batches: Batches) -> None:
        options = {"num_beams": 1, "max_new_tokens": 256, "num_draft_tokens": self._num_draft_tokens}
        start = time.perf_counter()
        results = [result for batch in batches for result in self._pipeline.generate_ids(batch, **options)]
        self.seconds.append(time.perf_counter() - start)
        self.outputs += [result.token_ids for result in results]
        stats = [result.stats for result in results]
        self.rounds_by_num_draft_tokens = sum_stats(
            [spec2seq.RequestStats(rounds_by_num_draft_tokens=self.rounds_by_num_draft_tokens), *stats]
        ).rounds_by_num_draft_tokens


def measure(
    pipeline: Pipeline, sources: list[list[int]], batch_size: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    num_lines = -(-max(batch_size, arguments.lines) // batch_size) * batch_size
    auto, plain = Runner(pipeline, "auto"), Runner(pipeline, 0)
    for pair in range(arguments.pairs + 1):
        batches = batches_of_pair(sources, pair, num_lines, batch_size)
        for runner in (auto, plain) if pair % 2 else (plain, auto):
            runner.run(batches)
    ratios = [a / b for a, b in zip(plain.seconds[1:], auto.seconds[1:], strict=True)]
    mean, low, high = interval(ratios)
    num_tokens = sum(map(len, plain.outputs[num_lines:]))
    return {
        "batch_size": batch_size,
        "pairs": len(ratios),
        "lines": num_lines * len(ratios),
        "ratio": mean,
        "interval": [low, high],
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
        "tokens_per_second": {"auto": num_tokens / sum(auto.seconds[1:]), "plain": num_tokens / sum(plain.seconds[1:])},
        "rounds_by_num_draft_tokens": auto.rounds_by_num_draft_tokens,
        "lines_different": sum(a != b for a, b in zip(auto.outputs, plain.outputs, strict=True)),
    }


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean of the ratios and the ends of its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    known = [freedom for freedom in QUANTILES if freedom <= len(logs) - 1]
    quantile = QUANTILES[max(known)] if known else 4.3
    middle, half = statistics.fmean(logs), quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def machine() -> dict[str, Any]:
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "spec2seq": spec2seq.__version__,
    }


def table_row(record: dict[str, Any]) -> str:
    low, high = record["interval"]
    speeds = record["tokens_per_second"]
    rounds = record["rounds_by_num_draft_tokens"]
    is_plain = rounds[0] / max(sum(rounds), 1) if rounds else 1.0
    return (
        f"| {record['drafter']} | {record['batch_size']} | {speeds['auto']:.0f} | {speeds['plain']:.0f} "
        f"| {record['ratio']:.3f} | {low:.3f} to {high:.3f} | {is_plain:.0%} | {record['lines_different']} |"
    )


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    pipeline = Pipeline.from_pretrained(
        arguments.model,
        drafter=arguments.drafter,
        backend=arguments.backend,
        dtype=arguments.dtype,
        num_threads=arguments.threads,
    )
    sources = read_sources(arguments, pipeline)
    print("| drafter | batch | auto, token/s | plain, token/s | ratio | 95 % interval | plain rounds | differ |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for batch_size in arguments.batch_sizes:
        record = {
            "model": arguments.model,
            "drafter": arguments.drafter,
            "backend": arguments.backend,
            "dtype": arguments.dtype,
            "threads": arguments.threads,
            **measure(pipeline, sources, batch_size, arguments),
            "machine": machine(),
        }
        print(table_row(record), flush=True)
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
