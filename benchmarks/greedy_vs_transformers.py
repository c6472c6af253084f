#!/usr/bin/env python3
"""Greedy search, this engine beside transformers' generate: same folder, same ids, same process, interleaved.

    python benchmarks/greedy_vs_transformers.py --model models/debian-en-it --tsv recipes/debian-en-it/test.tsv.gz
    python benchmarks/greedy_vs_transformers.py --synthetic base

Timed region: padded source ids in, output ids out. Each repeat times both systems on the same lines, one after the
other, the first of them changing from repeat to repeat. A ratio is transformers' time over ours in the same repeat.
Both are checked to give the same tokens. Prints a table and appends one JSON line per setting to --out.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

import spec2seq
from spec2seq import Pipeline
from spec2seq.evaluation.peers import TransformersPeer

if TYPE_CHECKING:
    from collections.abc import Callable

BASE_SIZE = {
    "vocab_size": 32001,
    "decoder_vocab_size": 32001,
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "activation_function": "silu",
    "scale_embedding": True,
    "pad_token_id": 32000,
    "eos_token_id": 0,
    "decoder_start_token_id": 32000,
    "forced_eos_token_id": None,
    "bos_token_id": None,
    "max_position_embeddings": 512,
}
SYNTHETIC_SOURCE_LENGTH = 28
SYNTHETIC_TARGET_LENGTH = 30


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/debian-en-it"), help="model folder")
    parser.add_argument("--tsv", type=Path, default=Path("recipes/debian-en-it/test.tsv.gz"), help="lines to translate")
    parser.add_argument("--synthetic", choices=["base"], help="random weights of this size and random sources instead")
    parser.add_argument("--lines", type=int, default=64, help="lines per repeat (default: 64)")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved repeats per setting (default: 7)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--drafter", help="prompt_lookup or a folder (default: plain search)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    return parser.parse_args()


def write_base_model(folder: Path) -> None:
    """A Marian of Transformer-base size with random weights."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(**BASE_SIZE)
    transformers.MarianMTModel(config).save_pretrained(folder)


def synthetic_sources(num_lines: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, BASE_SIZE["vocab_size"] - 1, (num_lines, SYNTHETIC_SOURCE_LENGTH - 1), generator=generator)
    return [[*row, BASE_SIZE["eos_token_id"]] for row in ids.tolist()]


def real_sources(tsv: Path, model: Path, num_lines: int) -> list[list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with gzip.open(tsv, "rt", encoding="utf-8") as lines:
        texts = [line.split("\t")[0] for line in lines][:num_lines]
    return [tokenizer(text)["input_ids"] for text in texts]


def batches_of(sources: list[list[int]], batch_size: int) -> list[list[list[int]]]:
    """The same batches for both systems, lines of like length together."""
    ordered = sorted(sources, key=len)
    return [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]


def run_ours(pipeline: Pipeline, batches: list[list[list[int]]], options: dict[str, Any]) -> list[list[int]]:
    return [result.token_ids for batch in batches for result in pipeline.generate_ids(batch, **options)]


def run_transformers(
    peer: TransformersPeer, batches: list[list[list[int]]], options: dict[str, Any]
) -> list[list[int]]:
    return [output for batch in batches for output in peer.generate(batch, options)]


def timed(run: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    start = time.perf_counter()
    outputs = run()
    return time.perf_counter() - start, outputs


def measure(
    ours: Callable[[], list[list[int]]], theirs: Callable[[], list[list[int]]], repeats: int
) -> tuple[list[float], list[float], int, int]:
    """Seconds of both per repeat, tokens per repeat, and how many lines differ."""
    our_seconds, their_seconds = [], []
    _, our_outputs = timed(ours)
    _, their_outputs = timed(theirs)
    for repeat in range(repeats):
        pair = [(ours, our_seconds), (theirs, their_seconds)]
        for run, seconds in pair if repeat % 2 == 0 else reversed(pair):
            seconds.append(timed(run)[0])
    num_different = sum(a != b for a, b in zip(our_outputs, their_outputs, strict=True))
    return our_seconds, their_seconds, sum(map(len, our_outputs)), num_different


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
        "transformers": transformers.__version__,
        "spec2seq": spec2seq.__version__,
    }


def prepare(arguments: argparse.Namespace, scratch: Path) -> tuple[Path, list[list[int]], dict[str, Any]]:
    """Model folder, source ids and generation options."""
    if arguments.synthetic:
        write_base_model(scratch)
        length = {"max_new_tokens": SYNTHETIC_TARGET_LENGTH, "min_new_tokens": SYNTHETIC_TARGET_LENGTH}
        return scratch, synthetic_sources(arguments.lines), {**length, "num_beams": 1}
    sources = real_sources(arguments.tsv, arguments.model, arguments.lines)
    return arguments.model, sources, {"max_new_tokens": 256, "num_beams": 1}


def figures(
    ours: list[float], theirs: list[float], num_tokens: int, num_lines: int, num_different: int
) -> dict[str, Any]:
    """Seconds of both, what follows from them, and where they were measured."""
    low, middle, high = statistics.quantiles([b / a for a, b in zip(ours, theirs, strict=True)], n=4)
    return {
        "lines": num_lines,
        "tokens": num_tokens,
        "seconds_ours": ours,
        "seconds_transformers": theirs,
        "ratio_median": middle,
        "ratio_quartiles": [low, high],
        "lines_different": num_different,
        "machine": machine(),
    }


def table_row(record: dict[str, Any]) -> str:
    low, high = record["ratio_quartiles"]
    speeds = [record["tokens"] / statistics.median(record[f"seconds_{who}"]) for who in ("ours", "transformers")]
    setting = " | ".join(str(record[name]) for name in ("size", "drafter", "threads", "batch_size"))
    return (
        f"| {setting} | {speeds[0]:.0f} | {speeds[1]:.0f} "
        f"| {record['ratio_median']:.2f} | {low:.2f} to {high:.2f} "
        f"| {record['lines_different']} of {record['lines']} |"
    )


def main() -> None:
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        folder, sources, options = prepare(arguments, Path(scratch) / "base")
        peer = TransformersPeer(folder, arguments.device)
        pipeline = Pipeline.from_pretrained(str(folder), drafter=arguments.drafter, device=arguments.device)
    print("| size | drafter | threads | batch | ours, token/s | transformers, token/s | ratio | quartiles | differ |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    size = {
        "size": arguments.synthetic or str(arguments.model),
        "drafter": arguments.drafter or "none",
        "device": arguments.device,
    }
    for threads, batch_size in itertools.product(arguments.threads, arguments.batch_sizes):
        torch.set_num_threads(threads)
        batches = batches_of(sources, batch_size)
        ours, theirs, num_tokens, num_different = measure(
            partial(run_ours, pipeline, batches, options),
            partial(run_transformers, peer, batches, options),
            arguments.repeats,
        )
        setting = {**size, "threads": threads, "batch_size": batch_size}
        record = setting | figures(ours, theirs, num_tokens, len(sources), num_different)
        print(table_row(record), flush=True)
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
