#!/usr/bin/env python3
"""The whole recipe, from nothing to a table: corpus, vocabulary, verifier, pairs, drafters, figures.

    python recipes/debian-en-it/run.py work            # all of it: hours on two cores
    python recipes/debian-en-it/run.py work --smoke    # all commands on little data with tiny models: minutes

Every stage is one command that is printed before it runs, and that continues where it was interrupted: so does this
script when it is called again. How long the stages took is kept in work/stages.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from command_line import run_main

from spec2seq.errors import OptionError, Spec2SeqError

if TYPE_CHECKING:
    from collections.abc import Sequence

RECIPE = Path(__file__).parent
STAGES_FILE, SCALE_FILE = "stages.jsonl", "scale.txt"


@dataclass(frozen=True)
class Scale:
    """How large everything is: arguments of the stages.

    Attributes:
        corpus: of build_corpus.py, where it takes Debian's package index.
        tokenizer, verifier, small, evaluate: of the other scripts.
        drafting: of every training of a drafter.
        spec, feature, blockwise: of one.
        steps, short_steps: updates of a drafter, and of one that is only there to compare depths.
        slots: numbers of draft tokens in the table of slots.
        heads: numbers of draft tokens of blockwise drafting.
    """

    corpus: tuple[str, ...] = ()
    tokenizer: tuple[str, ...] = ()
    verifier: tuple[str, ...] = ()
    small: tuple[str, ...] = (
        *("--width", "128", "--layers", "1", "--learning-rate", "0.002", "--warmup-steps", "600"),
        *("--flat-steps", "600", "--max-steps", "20000"),
    )
    evaluate: tuple[str, ...] = ()
    drafting: tuple[str, ...] = ()
    spec: tuple[str, ...] = ("--block-size", "25")
    feature: tuple[str, ...] = ()
    blockwise: tuple[str, ...] = ("--block-size", "25")
    steps: int = 20000
    short_steps: int = 5000
    slots: str = "5,10,15,20,25"
    heads: str = "10,25"


FULL = Scale()
SMOKE = Scale(
    corpus=("--every", "40", "--titles-only"),
    tokenizer=("--pieces", "800", "--threads", "1"),
    verifier=(
        *("--width", "64", "--layers", "2", "--learning-rate", "0.004", "--warmup-steps", "50", "--max-steps", "350"),
        *("--eval-steps", "100", "--save-steps", "100", "--batch-tokens", "1000"),
    ),
    small=(
        *("--width", "32", "--layers", "1", "--learning-rate", "0.004", "--warmup-steps", "20", "--max-steps", "60"),
        *("--eval-steps", "30", "--save-steps", "30", "--batch-tokens", "1000"),
    ),
    evaluate=("--lines", "12"),
    drafting=(
        *("--eval-steps", "15", "--save-steps", "15", "--warmup-steps", "10"),
        *("--batch-tokens", "1500", "--num-held-out", "20"),
    ),
    spec=("--block-size", "10"),
    feature=("--block-size", "6"),
    blockwise=("--block-size", "6"),
    steps=30,
    short_steps=15,
    slots="5,10",
    heads="3,6",
)


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes:
        name: of what it makes.
        command: to run.
        processes: how many of it; more than one by torchrun.
    """

    name: str
    command: list[str] = field(repr=False)
    processes: int = 1

    def line(self) -> list[str]:
        """What is executed."""
        if self.processes == 1:
            return [sys.executable, *self.command]
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes))
        return [sys.executable, *torchrun, *self.command]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder for everything that is made")
    parser.add_argument("--smoke", action="store_true", help="little data, tiny models")
    parser.add_argument("--tsv", type=Path, nargs="+", metavar="FILE", help="pairs, instead of Debian's package index")
    parser.add_argument("--processes", type=int, default=2, help="of a training, one thread each (default: 2)")
    parser.add_argument("--only", metavar="STAGE", help="this stage alone")
    return parser.parse_args()


def stages(work: Path, scale: Scale, tsv: Sequence[Path] | None, processes: int) -> list[Stage]:
    """All of them, in their order."""
    corpus, model, pairs = work / "corpus", work / "model", work / "pairs"
    source = ["--tsv", *map(str, tsv)] if tsv else list(scale.corpus)
    script = _script
    trained = script("train_verifier", "--corpus", corpus, "--tokenizer", work / "tokenizer", "-o", work / "verifier")
    distilled = verb("distill", model, "--source", corpus / "train.en", "-o", pairs, "--threads", 1)
    small = script("train_verifier", "--distilled", pairs, "--tokenizer", model, "-o", work / "small")
    return [
        Stage("corpus", script("build_corpus", "-o", corpus, *source)),
        Stage(
            "tokenizer", script("train_tokenizer", corpus / "train.tsv.gz", "-o", work / "tokenizer", *scale.tokenizer)
        ),
        Stage("verifier", [*trained, *scale.verifier], processes),
        Stage("model", script("bundle_model", work / "verifier" / "model", model)),
        Stage("pairs", distilled, processes),
        *_drafter_stages(work, scale, processes),
        Stage("small", [*small, *scale.small], processes),
        Stage("results", _evaluation(work, scale)),
    ]


def _drafter_stages(work: Path, scale: Scale, processes: int) -> list[Stage]:
    kinds = {
        "spec": ("spec", scale.steps, scale.spec),
        "spec-6+2-short": ("spec", scale.short_steps, scale.spec),
        "spec-6+1-short": ("spec", scale.short_steps, (*scale.spec, "--decoder-layers", "1")),
        "feature": ("feature", scale.steps, scale.feature),
        "blockwise": ("blockwise", scale.steps, scale.blockwise),
    }
    return [
        Stage(
            name,
            verb(
                *("train-drafter", work / "model", "--data", work / "pairs", "-o", work / "drafters" / name),
                *("--kind", kind, "--steps", steps, "--threads", 1, *scale.drafting, *arguments),
            ),
            processes,
        )
        for name, (kind, steps, arguments) in kinds.items()
    ]


def _evaluation(work: Path, scale: Scale) -> list[str]:
    drafters = work / "drafters"
    rows = {
        f"6+2, {scale.steps} updates": "spec",
        f"6+2, {scale.short_steps} updates": "spec-6+2-short",
        f"6+1, {scale.short_steps} updates": "spec-6+1-short",
    }
    return _script(
        *("evaluate", "--model", work / "model", "--test", work / "corpus" / "test.tsv.gz", "-o", work / "results"),
        *("--drafter", drafters / "spec", "--also", f"feature={drafters / 'feature'}"),
        *("--also", f"blockwise={drafters / 'blockwise'}:{scale.heads}"),
        *("--also", f"small_model={work / 'small' / 'model'}"),
        *(part for row, name in rows.items() for part in ("--slots-of", f"{row}={drafters / name}:{scale.slots}")),
        *scale.evaluate,
    )


def _script(name: str, *arguments: object) -> list[str]:
    return [str(RECIPE / f"{name}.py"), *map(str, arguments)]


def verb(*arguments: object) -> list[str]:
    """A verb of the package's command line, for the interpreter that runs this."""
    return [str(Path(sys.executable).with_name("spec2seq")), *map(str, arguments)]


def run_stage(stage: Stage, work: Path) -> None:
    """Run a command; note how long it took, also where it did not end well: another run goes on from there.

    Raises:
        Spec2SeqError: it failed.
    """
    line = stage.line()
    print(f"\n== {stage.name}\n{shlex.join(line)}", flush=True)
    begin = time.monotonic()
    try:
        done = subprocess.run(line, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    finally:
        note = {"stage": stage.name, "seconds": round(time.monotonic() - begin, 1), "processes": stage.processes}
        with (work / STAGES_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(note) + "\n")
    if done.returncode:
        raise Spec2SeqError(
            f"stage {stage.name} failed with exit code {done.returncode}; see above, and run this again"
        )


def read_notes(file: Path) -> dict[str, tuple[float, int]]:
    """Seconds and processes of every stage; the seconds of interrupted runs add up."""
    notes: dict[str, tuple[float, int]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        note = json.loads(line)
        seconds, _ = notes.get(note["stage"], (0.0, 0))
        notes[note["stage"]] = seconds + note["seconds"], note["processes"]
    return notes


def check_work(work: Path, scale: str) -> None:
    """Make the folder, or refuse one that was begun at another scale.

    Raises:
        OptionError: it was.
    """
    file = work / SCALE_FILE
    if file.exists() and (other := file.read_text(encoding="utf-8").strip()) != scale:
        raise OptionError(f"{work} holds a {other} run; name another folder for a {scale} one")
    work.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{scale}\n", encoding="utf-8")


def main() -> None:
    arguments = parse_arguments()
    work: Path = arguments.work
    all_stages = stages(work, SMOKE if arguments.smoke else FULL, arguments.tsv, arguments.processes)
    names = [stage.name for stage in all_stages]
    if arguments.only not in (None, *names):
        raise OptionError(f"--only {arguments.only}: there is no such stage; the stages are {', '.join(names)}")
    check_work(work, "smoke" if arguments.smoke else "full")
    for stage in all_stages:
        if arguments.only in (None, stage.name):
            run_stage(stage, work)


if __name__ == "__main__":
    run_main(main)
