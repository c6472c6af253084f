#!/usr/bin/env python3
"""Outputs and figures of the paper's released code beside those of the converted checkpoints, line by line.

    python benchmarks/reference_comparison.py REFERENCE_DIR [--rows 1 8]

REFERENCE_DIR holds verifier.pt, drafter.pt, dict.SOURCE.txt, dict.TARGET.txt, inputs.SOURCE (dictionary tokens) and
outputs/: greedy.txt, beam5.txt and spec_b{top_beta}_t{tau}_k{slots}.txt as that code wrote them. Every line that
differs is shown with the first token that does and the margin between the verifier's two best scores there. Exit code 1
when a difference of greedy or speculative search is no near tie, or when fewer than 97 in 100 beam search lines agree.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spec2seq import Pipeline
from spec2seq.evaluation.exactness import first_difference, top_two_margin
from spec2seq.evaluation.near_ties import FP32_TOLERANCE
from spec2seq.evaluation.release_rules import MAX_LENGTH, ReleaseRules, accepted_counts, decode_as_released
from spec2seq.weights.fairseq import FairseqSources, convert_fairseq

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_BEAM_SHARE = 0.97
# fairseq's beam search in our words: no padding, no empty output, an end forced behind 200 tokens
BEAM_OPTIONS = {
    "num_beams": 5,
    "early_stopping": True,
    "length_penalty": 1.0,
    "min_new_tokens": 1,
    "max_new_tokens": MAX_LENGTH + 1,
}


@dataclass(frozen=True)
class Reference:
    """The pair in our format, and the inputs."""

    folder: Path
    pipeline: Pipeline
    sources: list[list[int]]

    def expected(self, name: str) -> list[str]:
        return (self.folder / "outputs" / name).read_text(encoding="utf-8").splitlines()

    def text(self, token_ids: Sequence[int]) -> str:
        return self.pipeline.tokenizer.decode(token_ids)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path, metavar="REFERENCE_DIR")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], help="lines per batch; default 1 and 8")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        reference = load(arguments.reference, Path(temporary) / "pair")
        is_right = [compare_search(reference, name, rows) for rows in arguments.rows for name in searches(reference)]
        is_right += [compare_beams(reference)]
    return 0 if all(is_right) else 1


def load(folder: Path, output: Path) -> Reference:
    sources = FairseqSources(folder / "verifier.pt", folder / "drafter.pt", folder, None)
    convert_fairseq(sources, output, is_tokenised=True)
    pipeline = Pipeline.from_pretrained(output, output / "drafter")
    inputs = next(folder.glob("inputs.*"))
    lines = inputs.read_text(encoding="utf-8").splitlines()
    print(f"{len(lines)} lines of {inputs}, torch {torch.__version__}, fp32, one thread")
    return Reference(folder, pipeline, pipeline.tokenizer.encode(lines))


def searches(reference: Reference) -> list[str]:
    return ["greedy.txt", *sorted(path.name for path in (reference.folder / "outputs").glob("spec_b*.txt"))]


def rules_of(name: str) -> ReleaseRules:
    found = re.fullmatch(r"spec_b(\d+)_t([\d.]+)_k(\d+)\.txt", name)
    return ReleaseRules(int(found[3]), int(found[1]), float(found[2])) if found else ReleaseRules(0)


def compare_search(reference: Reference, name: str, num_rows: int) -> bool:
    outputs = decode_as_released(reference.pipeline, reference.sources, rules_of(name), num_rows)
    num_tokens, num_rounds = accepted_counts(outputs)
    margins = differences(reference, name, [output.token_ids for output in outputs])
    mean = f", mean accepted tokens {num_tokens / num_rounds:.3f} ({num_tokens} / {num_rounds})"
    num_equal = len(outputs) - len(margins)
    print(
        f"{name}, {num_rows} lines per batch: {num_equal} of {len(outputs)} lines equal"
        f"{mean if rules_of(name).num_draft_tokens else ''}"
    )
    return all(margin <= FP32_TOLERANCE for margin in margins)


def compare_beams(reference: Reference) -> bool:
    config = reference.pipeline.model.config
    # plain beam search: the drafter is not asked
    plain = Pipeline(reference.pipeline.model, reference.pipeline.verifier)
    results = plain.generate_ids(
        reference.sources,
        suppress_tokens=[config.pad_token_id],
        forced_eos_token_id=list(config.eos_token_ids),
        **BEAM_OPTIONS,
    )
    num_different = len(differences(reference, "beam5.txt", [result.token_ids for result in results]))
    num_equal = len(results) - num_different
    print(f"beam5.txt: {num_equal} of {len(results)} lines equal")
    return num_equal >= MIN_BEAM_SHARE * len(results)


def differences(reference: Reference, name: str, outputs: Sequence[Sequence[int]]) -> list[float]:
    """Print every line that differs, and return the verifier's margin where each starts to."""
    expected = reference.expected(name)
    if len(expected) != len(outputs):
        raise SystemExit(f"{name} has {len(expected)} lines, but there are {len(outputs)} inputs")
    margins = []
    for line, (token_ids, text) in enumerate(zip(outputs, expected, strict=True)):
        ours, theirs = reference.text(token_ids).split(), text.split()
        if ours != theirs:
            place = first_difference(ours, theirs)
            margins.append(margin_at(reference, line, list(token_ids[:place])))
            print(f"  {name} line {line + 1}: differs from token {place + 1} on, margin {margins[-1]:.2e}")
    return margins


def margin_at(reference: Reference, line: int, generated: list[int]) -> float:
    config = reference.pipeline.model.config
    options = reference.pipeline.options(num_beams=1)
    start = [config.decoder_start_token_id]
    return top_two_margin(reference.pipeline.verifier, reference.sources[line], start, generated, options)


if __name__ == "__main__":
    sys.exit(main())
