#!/usr/bin/env python3
"""Are the beams really the same? Real lines through transformers', plain and speculative beam search, in fp32.

    python benchmarks/beams_on_real_text.py --drafter prompt_lookup --out benchmarks/results/beams.jsonl

For every number of beams, all hypotheses and scores of plain and of speculative beam search are compared with those of
transformers, and the calls of the model and the processor time of both searches are told. Exit status 1 where a
hypothesis differs or two scores are further apart than 1e-4.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers

from spec2seq import Pipeline
from spec2seq.decoding.loop import Decoder
from spec2seq.evaluation.peers import TransformersPeer
from spec2seq.types import SourceBatch

MAX_SCORE_GAP = 1e-4

Outcome = list[tuple[list[int], float]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/debian-en-it"), help="model folder")
    parser.add_argument("--tsv", type=Path, default=Path("recipes/debian-en-it/test.tsv.gz"), help="lines to translate")
    parser.add_argument("--drafter", default="prompt_lookup", help="prompt_lookup or a folder (default: prompt_lookup)")
    parser.add_argument("--num-draft-tokens", type=int, default=2, help="depth of the drafts (default: 2)")
    parser.add_argument("--beams", type=int, nargs="+", default=[2, 4, 5], help="numbers of beams (default: 2 4 5)")
    parser.add_argument("--lines", type=int, default=500, help="number of lines (default: 500)")
    parser.add_argument("--batch", type=int, default=8, help="sources per batch (default: 8)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    return parser.parse_args()


def run_transformers(peer: TransformersPeer, sources: list[list[int]], num_beams: int) -> list[Outcome]:
    """All hypotheses of every source, decoded alone."""
    outcomes = []
    eos = peer.model.config.eos_token_id
    settings = {"num_beams": num_beams, "num_return_sequences": num_beams, "do_sample": False}
    for source in sources:
        output = peer.model.generate(
            torch.tensor([source]), **settings, return_dict_in_generate=True, output_scores=True
        )
        rows = output.sequences[:, 1:].tolist()
        cut = [row[: row.index(eos) + 1] if eos in row else row for row in rows]
        outcomes.append(list(zip(cut, output.sequences_scores.tolist(), strict=True)))
    return outcomes


def run_ours(
    pipeline: Pipeline, sources: list[list[int]], settings: dict[str, Any], batch: int
) -> tuple[list[Outcome], int, float]:
    """All hypotheses of every source, the rounds they took together, and processor seconds."""
    start = time.process_time()
    drafter = pipeline.make_drafter() if pipeline.make_drafter and settings["speculative_beams"] else None
    decoder = Decoder(pipeline.verifier, drafter, max_rows=batch * settings["num_beams"])
    sources_batch = SourceBatch.from_lists(sources, pipeline.model.config.pad_token_id)
    requests = decoder.add(sources_batch, pipeline.options(output_scores=True, **settings))
    while decoder.alive:
        decoder.step()
    results = [decoder.result(request) for request in requests]
    outcomes = [[(item.token_ids, item.score or 0.0) for item in result.hypotheses] for result in results]
    return outcomes, sum(result.stats.num_rounds for result in results), time.process_time() - start


def compare(expected: list[Outcome], outcomes: list[Outcome]) -> tuple[list[int], float]:
    """Lines whose hypotheses differ, and the largest gap between two scores of the others."""
    different, gap = [], 0.0
    for line, (one, other) in enumerate(zip(expected, outcomes, strict=True)):
        if [ids for ids, _ in one] != [ids for ids, _ in other]:
            different.append(line)
        else:
            gap = max([gap, *(abs(a - b) for (_, a), (_, b) in zip(one, other, strict=True))])
    return different, gap


def main() -> int:
    arguments = parse_arguments()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    pipeline = Pipeline.from_pretrained(str(arguments.model), drafter=arguments.drafter)
    with gzip.open(arguments.tsv, "rt", encoding="utf-8") as lines:
        texts = [line.split("\t")[0] for line in islice(lines, arguments.lines)]
    sources = pipeline.load_tokenizer().encode(texts)
    peer = TransformersPeer(arguments.model)
    is_same = True
    for num_beams in arguments.beams:
        expected = run_transformers(peer, sources, num_beams)
        settings = {"num_beams": num_beams, "num_return_sequences": num_beams}
        drafts = {"speculative_beams": True, "num_draft_tokens": arguments.num_draft_tokens}
        for name, said in {"plain": {"speculative_beams": False}, arguments.drafter: drafts}.items():
            outcomes, num_rounds, seconds = run_ours(pipeline, sources, {**settings, **said}, arguments.batch)
            different, gap = compare(expected, outcomes)
            is_same &= not different and gap <= MAX_SCORE_GAP
            told = f"{len(sources) - len(different)} of {len(sources)} lines the same, score gap {gap:.1e}"
            print(f"{num_beams} beams, {name}: {told}, {num_rounds} rounds, {seconds:.0f} s", *different, flush=True)
            if arguments.out:
                record = {"beams": num_beams, "drafter": name, "lines": len(sources), "different": different}
                record |= {"score_gap": gap, "rounds": num_rounds, "processor_seconds": seconds}
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
