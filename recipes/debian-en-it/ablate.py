#!/usr/bin/env python3
"""What each part of the default feature drafter is worth: train it, and again with one thing changed at a time.

    python recipes/debian-en-it/ablate.py --model work/model --data work/pairs --test work/corpus/test.tsv.gz \\
        --output work/ablations

All runs have the same updates, on the same batches in the same order: they differ in one thing, on every machine and
whatever else it does. What an update takes is told beside it. With one block per sentence it takes much less; so one
run more has as many of those as fit into the time of the default.

The same command continues an interrupted one: each run is a command of its own that is printed before it starts, and
every output of the measurement is kept in OUTPUT/runs. At the end OUTPUT holds ablations.jsonl, ablations.md and
survival.png.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
from ablation_figures import TABLE_FILE, write_records
from command_line import run_main
from compared_systems import GREEDY, RELAXED, WEIGHTS, ComparedSystem, SystemLoader
from evaluate import run_systems
from run import STAGES_FILE, Stage, check_work, read_notes, run_stage, verb

from spec2seq.backends.openvino.library import is_installed
from spec2seq.evaluation.benchmark.call_costs import measure_calls
from spec2seq.evaluation.benchmark.engines import OurEngine
from spec2seq.evaluation.benchmark.inputs import BenchmarkInputs, prepare_inputs
from spec2seq.evaluation.benchmark.lines import read_lines
from spec2seq.evaluation.benchmark.provenance import commit, machine, now
from spec2seq.evaluation.benchmark.task import DecodingTask
from spec2seq.evaluation.benchmark.timing import by_turns
from spec2seq.evaluation.system_figures import system_figures
from spec2seq.pipelines.plans import TextOptions
from spec2seq.weights.drafter_folder import CARD
from spec2seq.weights.fingerprints import file_fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from figures import Record

    from spec2seq.evaluation.benchmark.cost_model import CallCosts

DEFAULT = "default"
TOLERANCE = RELAXED[-1]  # the paper's
NUM_COST_LINES, NUM_COST_ROUNDS = 24, 5
_NUM_LOOKS, _NUM_SAVES, _NUM_AVERAGED = 10, 20, 5


@dataclass(frozen=True)
class Variant:
    """A run.

    Attributes:
        name: of its folder.
        label: for tables: what is changed.
        flags: of `spec2seq train-drafter`.
        paced_by: a run whose updates take as long. This one has as many as fit into the time of the default; None: it
            has as many as the default.
    """

    name: str
    label: str
    flags: tuple[str, ...] = ()
    paced_by: str | None = None


VARIANTS = (
    Variant(DEFAULT, "default"),
    Variant("states-none", "no states: embeddings", ("--states", "none")),
    Variant("states-last", "states of the last layer", ("--states", "last")),
    Variant("2-layers", "2 layers", ("--decoder-layers", "2")),
    Variant("causal", "causal block", ("--block-attention", "causal")),
    Variant("no-bigrams", "no bigram table", ("--bigram-rank", "0")),
    Variant("tokens", "tokens instead of distributions", ("--targets", "tokens")),
    Variant("adamw", "AdamW alone", ("--optimizer", "adamw")),
    Variant("1-start", "1 start per sentence", ("--num-cuts", "1")),
    Variant("1-start-same-time", "1 start, same time", ("--num-cuts", "1"), paced_by="1-start"),
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the verifier")
    parser.add_argument(
        "--data", type=Path, required=True, action="append", metavar="DIR", help="its distilled pairs; may be repeated"
    )
    parser.add_argument("--test", type=Path, required=True, metavar="FILE", help="lines and references, .tsv, .tsv.gz")
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="DIR", help="where everything goes")
    parser.add_argument("--steps", type=int, default=4000, metavar="N", help="updates of a run (default: 4000)")
    parser.add_argument("--processes", type=int, default=2, help="of a training, one thread each (default: 2)")
    parser.add_argument("--train-only", action="store_true", help="measure later: the machine should be idle then")
    parser.add_argument("--lines", type=int, metavar="N", help="measure on the first N lines (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the measurement (default: 1)")
    parser.add_argument(
        "--backend",
        choices=("openvino", "torch"),
        default="openvino" if is_installed() else "torch",
        help="engine of the measurement: int8 on OpenVINO, fp32 on torch (default: OpenVINO where it is installed)",
    )
    return parser.parse_args()


def train(model: Path, data: Sequence[Path], output: Path, steps: int, processes: int) -> None:
    """Train whatever is not there yet, one run after another."""
    for variant in VARIANTS:
        if (drafter_folder(output, variant) / CARD).is_file():  # written last
            print(f"== {variant.name} is complete")
            continue
        count = num_steps(variant, steps, output)
        pairs = [part for folder in data for part in ("--data", str(folder))]
        command = verb("train-drafter", model, *pairs, "-o", drafter_folder(output, variant), "--kind", "feature")
        run_stage(Stage(variant.name, [*command, *pace(count), "--threads", "1", *variant.flags], processes), output)


def drafter_folder(output: Path, variant: Variant) -> Path:
    """Where a run's drafter goes."""
    return output / "drafters" / variant.name


def num_steps(variant: Variant, steps: int, output: Path) -> int:
    """A run's updates, `steps` being the default's. What others took is known by then."""
    if variant.paced_by is None:
        return steps
    notes = read_notes(output / STAGES_FILE)
    return round(steps * notes[DEFAULT][0] / notes[variant.paced_by][0])


def pace(steps: int) -> list[str]:
    """Flags of a short training: its drafter is the mean over the last quarter."""
    numbers = {
        "--steps": steps,
        "--warmup-steps": min(200, max(1, steps // 10)),
        "--eval-steps": max(1, steps // _NUM_LOOKS),
        "--save-steps": max(1, steps // _NUM_SAVES),
        "--num-averaged": _NUM_AVERAGED,
        "--num-held-out": 200,
    }
    return [str(part) for flag in numbers.items() for part in flag]


def measure(arguments: argparse.Namespace) -> list[Record]:
    """Decode the test lines with every drafter: a record of the run, of greedy search, and of every variant."""
    torch.set_num_threads(arguments.threads)
    dtype = "int8" if arguments.backend == "openvino" else "float32"
    loader = SystemLoader(arguments.model, arguments.backend, arguments.threads, dtype)
    lines = read_lines(arguments.test, limit=arguments.lines)
    inputs = prepare_inputs(arguments.model, lines, TextOptions(long_input="truncate"), time.perf_counter)
    job = {
        "weights": file_fingerprint(arguments.model / WEIGHTS),
        "input": lines.name,
        "backend": f"{arguments.backend} {dtype}",
        "threads": arguments.threads,
    }
    figures = system_records(loader, inputs, arguments.output, job)
    costs = call_costs(loader, arguments.output, inputs)
    run = {**job, "lines": len(inputs.sources), "date": now(), "commit": commit(), "machine": machine()}
    found = [variant_record(variant, arguments, figures, costs[variant.name]) for variant in VARIANTS]
    return [{"record": "run", **run}, {"record": "greedy", **figures[GREEDY]}, *found]


def system_records(loader: SystemLoader, inputs: BenchmarkInputs, output: Path, job: Record) -> dict[str, Record]:
    """Figures of all systems by their names."""
    systems = [loader.resolved(system) for system in compared(output)]
    runs = run_systems(systems, loader, inputs.sources, output / "runs", job)
    decode = inputs.tokenizer.decode
    figures = system_figures(runs, inputs.references, decode, exact=GREEDY, baseline=GREEDY)
    return {one.system: one.as_dict() for one in figures}


def compared(output: Path) -> list[ComparedSystem]:
    """Greedy search, and exact and relaxed search with every drafter."""
    top_beta, tau = TOLERANCE
    systems = [ComparedSystem(GREEDY)]
    for variant in VARIANTS:
        folder = str(drafter_folder(output, variant))
        systems += [
            ComparedSystem(f"{variant.name}, exact", folder),
            ComparedSystem(
                f"{variant.name}, relaxed", folder, arguments={"num_beams": 1, "top_beta": top_beta, "tau": tau}
            ),
        ]
    return systems


def call_costs(loader: SystemLoader, output: Path, inputs: BenchmarkInputs) -> dict[str, list[CallCosts]]:
    """What single calls take with every drafter, measured by turns."""
    limit = loader.pipeline(None).options(num_beams=1).max_new_tokens
    task = DecodingTask(limit, start=inputs.start)
    texts = inputs.sources[:: max(1, len(inputs.sources) // NUM_COST_LINES)]
    engines = {
        variant.name: OurEngine(loader.pipeline(str(drafter_folder(output, variant))), task) for variant in VARIANTS
    }
    costs: dict[str, list[CallCosts]] = {name: [] for name in engines}
    for _, name in by_turns(list(engines), NUM_COST_ROUNDS):
        engine = engines[name]
        costs[name].append(measure_calls(engine, texts, [engine.num_draft_tokens], time.perf_counter, lambda _: None))
    return costs


def variant_record(
    variant: Variant, arguments: argparse.Namespace, figures: Mapping[str, Record], costs: Sequence[CallCosts]
) -> Record:
    """All that is known of a run."""
    (size,) = costs[0].block_sizes
    return {
        "record": "variant",
        "name": variant.name,
        "label": variant.label,
        "flags": list(variant.flags),
        "steps": num_steps(variant, arguments.steps, arguments.output),
        "minutes": read_notes(arguments.output / STAGES_FILE)[variant.name][0] / 60,
        "num_draft_tokens": size,
        "tolerance": list(TOLERANCE),
        "draft_cost": median(one.draft[size] / one.verify[0] for one in costs),
        "verify_cost": median(one.verify[size] / one.verify[0] for one in costs),
        "step_seconds": median(one.verify[0] for one in costs),
        "exact": figures[f"{variant.name}, exact"],
        "relaxed": figures[f"{variant.name}, relaxed"],
    }


def main() -> None:
    arguments = parse_arguments()
    check_work(arguments.output, f"{arguments.steps}-update")
    train(arguments.model, arguments.data, arguments.output, arguments.steps, arguments.processes)
    if not arguments.train_only:
        write_records(arguments.output, measure(arguments))
        print((arguments.output / TABLE_FILE).read_text(encoding="utf-8"))


if __name__ == "__main__":
    run_main(main)
