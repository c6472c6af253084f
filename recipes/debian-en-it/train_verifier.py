#!/usr/bin/env python3
"""Train a model on a CPU: the verifier on a corpus, or a small model on a verifier's own outputs.

    python recipes/debian-en-it/train_verifier.py --corpus corpus --tokenizer tokenizer --output verifier
    python recipes/debian-en-it/train_verifier.py --distilled pairs --tokenizer verifier/model --output small \\
        --width 128 --layers 1 --learning-rate 0.002 --warmup-steps 600 --flat-steps 600

The same command continues a killed run from its last checkpoint. OUTPUT/model is a folder in Hugging Face's layout with
the averaged weights of that checkpoint, ready for use at any time. Training ends when 5000 updates have lowered the
validation loss (nats per token of the averaged weights, no label smoothing, every third batch of the validation pairs)
by less than 1 %. On two cores two processes of one thread are faster than one with two:

    torchrun --nproc-per-node 2 recipes/debian-en-it/train_verifier.py --corpus ...

The tokenizer decides whether it is a Marian or a T5 model.

--start-from FOLDER takes over the weights of a trained model and its count of updates (training.json).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from command_line import run_main
from model_folders import load_trained, new_model
from model_shape import ModelShape
from pair_batches import read_corpus, read_outputs
from train_tokenizer import tokenizer_family
from transformers.utils.logging import disable_progress_bar, set_verbosity_error
from translation_trainer import FINISHED_FILE, Limits, Settings, TranslationTrainer, last_checkpoint

from spec2seq.errors import OptionError

if TYPE_CHECKING:
    from model_folders import TrainedModel

WARMUP_STEPS, WARMUP_STEPS_OF_TRAINED = Settings.warmup_steps, 400
JOB_FILE = "job.json"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--corpus", type=Path, metavar="DIR", help="what build_corpus.py wrote")
    data.add_argument("--distilled", type=Path, metavar="DIR", help="what `spec2seq distill` wrote")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR", help="a tokenizer, or a model with one")
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="DIR", help="checkpoints and the model")
    # torchrun takes a bare --start for a mistyped option of its own
    parser.add_argument("--start-from", "--start", type=Path, metavar="DIR", help="a trained model to go on from")
    shape = ModelShape()
    parser.add_argument("--width", type=int, default=shape.width, help=f"(default: {shape.width})")
    parser.add_argument(
        "--layers",
        type=int,
        default=shape.encoder_layers,
        help=f"of encoder and decoder (default: {shape.encoder_layers})",
    )
    settings = Settings()
    parser.add_argument(
        "--batch-tokens",
        type=int,
        default=settings.batch_tokens,
        help=f"most tokens of one side of a batch, per process and with padding (default: {settings.batch_tokens})",
    )
    parser.add_argument(
        "--learning-rate", type=float, default=settings.learning_rate, help=f"(default: {settings.learning_rate})"
    )
    parser.add_argument(
        "--warmup-steps",
        type=int,
        help=f"updates until then (default: {WARMUP_STEPS}, with --start-from {WARMUP_STEPS_OF_TRAINED})",
    )
    parser.add_argument(
        "--flat-steps",
        type=int,
        default=settings.flat_steps,
        help=f"updates from which on the rate falls with their square root (default: {settings.flat_steps})",
    )
    parser.add_argument("--seed", type=int, default=settings.seed, help=f"(default: {settings.seed})")
    parser.add_argument("--fp32", action="store_true", help="multiply in fp32, for processors without bfloat16")
    parser.add_argument(
        "--max-steps", type=int, default=100_000, help="most updates, earlier ones too (default: 100000)"
    )
    parser.add_argument("--minutes", type=float, help="of this run (default: no limit)")
    parser.add_argument("--eval-steps", type=int, default=500, help="updates between validations (default: 500)")
    parser.add_argument("--save-steps", type=int, default=500, help="updates between checkpoints (default: 500)")
    parser.add_argument("--threads", type=int, default=1, help="of every process (default: 1)")
    return parser.parse_args()


def check_job(folder: Path, job: dict[str, object]) -> None:
    """Refuse to go on with another training; note this one where there is none.

    Raises:
        OptionError: the folder holds another training.
    """
    file = folder / JOB_FILE
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(job, indent=2) + "\n", encoding="utf-8")
        return
    other = json.loads(file.read_text(encoding="utf-8"))
    differing = [f"{name} is {job[name]}, was {other.get(name)}" for name in job if job[name] != other.get(name)]
    if differing:
        raise OptionError(f"{folder} holds another training ({'; '.join(differing)}); choose another --output")


def start_model(arguments: argparse.Namespace) -> tuple[TrainedModel, int]:
    """The model to begin with, and how many updates it had."""
    if arguments.start_from:
        return load_trained(arguments.start_from)
    torch.manual_seed(arguments.seed)
    return new_model(ModelShape(arguments.width, arguments.layers, arguments.layers), arguments.tokenizer), 0


def chosen_settings(arguments: argparse.Namespace) -> Settings:
    warmup = arguments.warmup_steps
    if warmup is None:
        warmup = WARMUP_STEPS_OF_TRAINED if arguments.start_from else WARMUP_STEPS
    return Settings(
        arguments.batch_tokens,
        arguments.learning_rate,
        warmup,
        arguments.flat_steps,
        arguments.seed,
        not arguments.fp32,
    )


def is_finished(folder: Path, max_steps: int) -> bool:
    """Whether there is nothing left to do; says so."""
    file = folder / FINISHED_FILE
    if not file.exists():
        return False
    note = json.loads(file.read_text(encoding="utf-8"))
    if note["reason"] == "max_steps" and note["step"] < max_steps:
        return False
    print(f"{folder} is complete: {note['reason']} after {note['step']} updates")
    return True


def main() -> None:
    arguments = parse_arguments()
    tokenizer_family(arguments.tokenizer)  # before anything is written
    settings = chosen_settings(arguments)
    shape = None if arguments.start_from else [arguments.width, arguments.layers]
    data, start = arguments.corpus or arguments.distilled, arguments.start_from
    job = {"data": str(data), "start": str(start) if start else None, "shape": shape, **asdict(settings)}
    check_job(arguments.output, job)
    if is_finished(arguments.output, arguments.max_steps):
        return
    disable_progress_bar()  # it is about loading and saving, which take no time
    set_verbosity_error()  # static tables are not in checkpoints, which it would warn of
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    pairs = read_corpus(arguments.corpus, arguments.tokenizer) if arguments.corpus else read_outputs(data)
    model, first_step = start_model(arguments)
    limits = Limits(arguments.max_steps, arguments.minutes, arguments.eval_steps, arguments.save_steps)
    trainer = TranslationTrainer(model, pairs, settings, limits, first_step, arguments.tokenizer, arguments.output)
    done = last_checkpoint(arguments.output)
    num_parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) / 1e6
    if trainer.is_world_process_zero():
        print(f"{len(pairs.train)} pairs, {num_parameters:.1f} M parameters, from {done or start or 'random weights'}")
    trainer.train(resume_from_checkpoint=str(done) if done else None)
    trainer.finish()


if __name__ == "__main__":
    run_main(main)
