#!/usr/bin/env python3
"""Does a seed fix the text? Real lines sampled with the same seeds, plainly and speculatively, in fp32.

    python benchmarks/seeded_sampling_on_real_text.py --small-model small/hf --out benchmarks/results/seeded.jsonl

For every seed, plain sampling at batch 1 is compared with plain sampling at batch 8 and with speculative sampling for
both drafters, blocks of 2 and 10, batches of 1 and 8. Exit status 1 where a line differs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spec2seq import Pipeline
from spec2seq.decoding.loop import Decoder
from spec2seq.evaluation.exactness import first_difference
from spec2seq.pipelines.results import sum_stats
from spec2seq.types import SourceBatch

if TYPE_CHECKING:
    from spec2seq.types import DecodedRequest

BATCH_SIZES = (1, 8)
BLOCKS = (2, 10)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/debian-en-it"), help="model folder")
    parser.add_argument("--tsv", type=Path, default=Path("recipes/debian-en-it/test.tsv.gz"), help="lines to translate")
    parser.add_argument("--small-model", type=Path, required=True, help="folder of a smaller model, same vocabulary")
    parser.add_argument("--lines", type=int, default=200, help="number of lines (default: 200)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds (default: 1 2 3)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    return parser.parse_args()


def sample(
    pipeline: Pipeline, sources: list[list[int]], seed: int, max_rows: int, num_draft_tokens: int
) -> list[DecodedRequest]:
    """One sampled output of every source, top_k 50, at most 128 tokens."""
    drafter = pipeline.make_drafter() if pipeline.make_drafter else None
    decoder = Decoder(pipeline.verifier, drafter, max_rows=max_rows)
    options = pipeline.options(do_sample=True, seed=seed, num_draft_tokens=num_draft_tokens, max_new_tokens=128)
    batch = SourceBatch.from_lists(sources, pipeline.model.config.pad_token_id)
    requests = decoder.add(batch, options)
    while decoder.alive:
        decoder.step()
    return [decoder.result(request) for request in requests]


def compare(label: str, seed: int, results: list[DecodedRequest], expected: list[list[int]]) -> dict[str, Any]:
    outputs = [result.hypotheses[0].token_ids for result in results]
    differences = [
        {"line": line, "position": first_difference(one, other)}
        for line, (one, other) in enumerate(zip(expected, outputs, strict=True))
        if one != other
    ]
    stats = sum_stats([result.stats for result in results])
    record = {"system": label, "seed": seed, "lines": len(outputs), "differences": differences}
    record["tokens_per_round"] = stats.tokens_per_round
    told = (
        f"{len(outputs) - len(differences)} of {len(outputs)} identical, {stats.tokens_per_round:.3f} tokens per round"
    )
    print(f"seed {seed}, {label}: {told}", *differences, flush=True)
    return record


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    names = {"plain": None, "prompt_lookup": "prompt_lookup", "small_model": str(arguments.small_model)}
    pipelines = {
        name: Pipeline.from_pretrained(str(arguments.model), drafter=drafter) for name, drafter in names.items()
    }
    plain = pipelines["plain"]
    with gzip.open(arguments.tsv, "rt", encoding="utf-8") as lines:
        texts = [line.split("\t")[0] for line in islice(lines, arguments.lines)]
    sources = plain.load_tokenizer().encode(texts)
    records = []
    for seed in arguments.seeds:
        expected = [result.hypotheses[0].token_ids for result in sample(plain, sources, seed, 1, 0)]
        records.append(compare("plain, batch 8", seed, sample(plain, sources, seed, 8, 0), expected))
        for name, block, batch_size in product(("prompt_lookup", "small_model"), BLOCKS, BATCH_SIZES):
            results = sample(pipelines[name], sources, seed, batch_size, block)
            records.append(compare(f"{name}, block {block}, batch {batch_size}", seed, results, expected))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    return 1 if any(record["differences"] for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
