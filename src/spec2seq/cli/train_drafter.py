"""`spec2seq train-drafter`: a Spec-Drafter for a model, from its distilled outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spec2seq.cli.options import ThreadsOption  # noqa: TC001  typer reads the annotations
from spec2seq.training.settings import DrafterShape, Objective, SlotWeights, TrainingPlan, TrainingSettings

if TYPE_CHECKING:
    from spec2seq.training.drafter_training import TrainedDrafter

_SHAPE, _OBJECTIVE, _SETTINGS = DrafterShape(), Objective(), TrainingSettings()


def train_drafter(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder (Hugging Face layout) or Hub id.")],
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="What `spec2seq distill` made with this model.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="The drafter's folder; checkpoints go to DIR/training. The same command continues a killed run.",
        ),
    ],
    block_size: Annotated[int, typer.Option("--block-size", metavar="N", help="Tokens per block.")] = _SHAPE.block_size,
    decoder_layers: Annotated[
        int, typer.Option("--decoder-layers", metavar="N", help="Layers that every round runs through.")
    ] = _SHAPE.decoder_layers,
    encoder_layers: Annotated[
        int | None,
        typer.Option(
            "--encoder-layers", metavar="N", help="Layers of the verifier's encoder to start from. Default: all."
        ),
    ] = _SHAPE.encoder_layers,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Updates.")] = _SETTINGS.steps,
    batch_tokens: Annotated[
        int,
        typer.Option(
            "--batch-tokens", metavar="N", help="Most source, target and block tokens per update and process."
        ),
    ] = _SETTINGS.batch_tokens,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", metavar="X", help="At the end of the warm-up.")
    ] = _SETTINGS.learning_rate,
    warmup_steps: Annotated[
        int, typer.Option("--warmup-steps", metavar="N", help="Updates until the learning rate falls.")
    ] = _SETTINGS.warmup_steps,
    dropout: Annotated[float, typer.Option("--dropout", metavar="X", help="Share of dropped numbers.")] = (
        _SETTINGS.dropout
    ),
    num_cuts: Annotated[
        int, typer.Option("--num-cuts", metavar="N", help="Blocks per target and update; they share the encoder.")
    ] = _OBJECTIVE.num_cuts,
    slot_weights: Annotated[
        SlotWeights,
        typer.Option(
            "--slot-weights",
            help="How much the slots of a block count: all the same, by the probability that the block is kept so far, "
            "or falling with their number.",
        ),
    ] = _OBJECTIVE.slot_weights,
    eval_steps: Annotated[
        int, typer.Option("--eval-steps", metavar="N", help="Updates between two looks at the held-out pairs.")
    ] = _SETTINGS.eval_steps,
    save_steps: Annotated[
        int, typer.Option("--save-steps", metavar="N", help="Updates between two checkpoints.")
    ] = _SETTINGS.save_steps,
    num_averaged: Annotated[
        int, typer.Option("--num-averaged", metavar="N", help="The drafter is the mean of the last N checkpoints.")
    ] = _SETTINGS.num_averaged,
    num_held_out: Annotated[
        int, typer.Option("--num-held-out", metavar="N", help="Pairs to evaluate on, at most a tenth of all.")
    ] = _SETTINGS.num_held_out,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of everything random.")] = _SETTINGS.seed,
    bf16: Annotated[bool, typer.Option("--bf16", help="Multiply in bfloat16.")] = _SETTINGS.bf16,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write logs for TensorBoard into DIR/training.")
    ] = _SETTINGS.tensorboard,
    threads: ThreadsOption = None,
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option("--device", help="Several GPUs are for several processes: torchrun --no-python spec2seq ..."),
    ] = "cpu",
) -> None:
    """Train the paper's drafter for a model.

    It starts from the model's encoder and learns to say the next tokens of the model's own outputs all at once. While
    it trains, the mean tokens per round on held-out outputs are told: what decoding will give.
    """
    settings = TrainingSettings(
        steps=steps,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        warmup_steps=warmup_steps,
        dropout=dropout,
        eval_steps=eval_steps,
        save_steps=save_steps,
        num_averaged=num_averaged,
        num_held_out=num_held_out,
        seed=seed,
        bf16=bf16,
        tensorboard=tensorboard,
    )
    shape = DrafterShape(block_size, decoder_layers, encoder_layers)
    plan = TrainingPlan(shape, Objective(num_cuts=num_cuts, slot_weights=slot_weights), settings)

    import torch

    from spec2seq.training.drafter_training import train_drafter as train
    from spec2seq.weights import load_model

    if threads is not None:
        torch.set_num_threads(threads)
    _tell(train(load_model(model), data, output, plan, device, _print_log), output)


def _print_log(step: int, logs: dict[str, float]) -> None:
    if "eval_tokens_per_round" in logs:
        typer.echo(f"step {step}: {logs['eval_tokens_per_round']:.2f} tokens per round", err=True)
    elif "loss" in logs:
        typer.echo(f"step {step}: loss {float(logs['loss']):.3f}", err=True)


def _tell(trained: TrainedDrafter, output: Path) -> None:
    for num_slots, figures in trained.figures.items():
        typer.echo(f"{num_slots} slots: {figures.tokens_per_round:.2f} tokens per round", err=True)
    typer.echo(f"drafter: {output}", err=True)
