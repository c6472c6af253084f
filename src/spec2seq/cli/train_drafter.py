"""`spec2seq train-drafter`: a drafter for a model, from its distilled outputs."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spec2seq.cli.options import ThreadsOption  # noqa: TC001  typer reads the annotations
from spec2seq.drafter_config import BlockAttention, States  # noqa: TC001
from spec2seq.errors import OptionError
from spec2seq.training.settings import (
    DEFAULT_PLANS,
    Optimizer,
    Schedule,
    SlotWeights,
    Targets,
    TrainingPlan,
)
from spec2seq.training.shapes import Kind  # noqa: TC001

if TYPE_CHECKING:
    from spec2seq.training.drafter_training import TrainedDrafter

_PARTS = ("shape", "objective", "settings")


def _defaults(name: str) -> str:
    """What help says about the default of an option: one for all kinds, or one for each that has it."""
    values = {
        kind: getattr(part, name)
        for kind, plan in DEFAULT_PLANS.items()
        for part in (getattr(plan, one) for one in _PARTS)
        if hasattr(part, name)
    }
    if len(set(values.values())) == 1 and len(values) == len(DEFAULT_PLANS):
        return f" Default: {next(iter(values.values()))}."
    told = [kind if value is None else f"{value} ({kind})" for kind, value in values.items()]
    if any(value is None for value in values.values()):
        return f" Only for {', '.join(values)}."
    return f" Default: {', '.join(told)}."


def _option(flag: str, metavar: str | None, help_text: str) -> Any:
    """An option whose default depends on the kind of the drafter."""
    name = flag.removeprefix("--").replace("-", "_")
    return typer.Option(flag, metavar=metavar, help=help_text + _defaults(name), show_default=False)


def train_drafter(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model folder (Hugging Face layout) or Hub id.")],
    data: Annotated[
        list[Path],
        typer.Option("--data", metavar="DIR", help="What `spec2seq distill` made with this model. May be repeated."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="The drafter's folder; checkpoints go to DIR/training. The same command continues a killed run.",
        ),
    ],
    kind: Annotated[
        Kind,
        typer.Option(
            "--kind",
            help="feature: a cheap one that reads the model's own states; spec: the paper's; blockwise: heads on the "
            "model's last state (Stern et al. 2018).",
        ),
    ] = "feature",
    block_size: Annotated[int | None, _option("--block-size", "N", "Tokens per block.")] = None,
    decoder_layers: Annotated[
        int | None, _option("--decoder-layers", "N", "Layers that every round runs through.")
    ] = None,
    encoder_layers: Annotated[
        int | None,
        _option("--encoder-layers", "N", "Layers of the model's encoder to start from; all unless said."),
    ] = None,
    width: Annotated[int | None, _option("--width", "N", "Of the layers; the model's unless said.")] = None,
    ffn_dim: Annotated[int | None, _option("--ffn-dim", "N", "Inner width of a layer or of a head.")] = None,
    states: Annotated[
        States | None,
        _option(
            "--states",
            None,
            "What is seen of the text so far: the model's embeddings, the outputs of its last layer, or a mixture of "
            "all layers.",
        ),
    ] = None,
    block_attention: Annotated[
        BlockAttention | None, _option("--block-attention", None, "Whether places of a block see later ones too.")
    ] = None,
    bigram_rank: Annotated[
        int | None, _option("--bigram-rank", "N", "Rank of the table of tokens that follow each other; 0: no table.")
    ] = None,
    coverage: Annotated[
        float | None,
        _option("--coverage", "X", "Draft only the commonest tokens, which make up this share of the pairs."),
    ] = None,
    num_cuts: Annotated[
        int | None, _option("--num-cuts", "N", "Blocks per target and update; they share what precedes them.")
    ] = None,
    slot_weights: Annotated[
        SlotWeights | None,
        _option(
            "--slot-weights",
            None,
            "How much the slots of a block count: all the same, by the probability that the block is kept so far, "
            "or falling with their number.",
        ),
    ] = None,
    targets: Annotated[
        Targets | None,
        _option(
            "--targets",
            None,
            "What is learned: the model's tokens, or its laws, the whole distributions that these are the best of.",
        ),
    ] = None,
    steps: Annotated[int | None, _option("--steps", "N", "Updates.")] = None,
    batch_tokens: Annotated[
        int | None, _option("--batch-tokens", "N", "Most source, target and block tokens per update and process.")
    ] = None,
    learning_rate: Annotated[float | None, _option("--learning-rate", "X", "At the end of the warm-up.")] = None,
    warmup_steps: Annotated[
        int | None, _option("--warmup-steps", "N", "Updates until the learning rate falls.")
    ] = None,
    schedule: Annotated[
        Schedule | None,
        _option(
            "--schedule", None, "How the learning rate falls: with the square root of the updates, or evenly to 0."
        ),
    ] = None,
    optimizer: Annotated[
        Optimizer | None,
        _option("--optimizer", None, "adamw, or muon for matrices: more is learned per update, which takes longer."),
    ] = None,
    dropout: Annotated[float | None, _option("--dropout", "X", "Share of dropped numbers.")] = None,
    eval_steps: Annotated[
        int | None, _option("--eval-steps", "N", "Updates between two looks at the held-out pairs.")
    ] = None,
    save_steps: Annotated[int | None, _option("--save-steps", "N", "Updates between two checkpoints.")] = None,
    num_averaged: Annotated[
        int | None, _option("--num-averaged", "N", "The drafter is the mean of the last N checkpoints.")
    ] = None,
    num_held_out: Annotated[
        int | None, _option("--num-held-out", "N", "Pairs to evaluate on, at most a tenth of all.")
    ] = None,
    seed: Annotated[int | None, _option("--seed", "N", "Of everything random.")] = None,
    bf16: Annotated[
        bool | None,
        typer.Option("--bf16/--no-bf16", help="Multiply in bfloat16. Default: where the machine does so faster."),
    ] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Write logs for TensorBoard into DIR/training.")
    ] = None,
    threads: ThreadsOption = None,
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option("--device", help="Several GPUs are for several processes: torchrun --no-python spec2seq ..."),
    ] = "cpu",
) -> None:
    """Train a drafter for a model.

    It learns to say the next tokens of the model's own outputs all at once. While it trains, the mean tokens per round
    on held-out outputs are told: what decoding will give.
    """
    plan = _plan(
        kind,
        {
            "block_size": block_size,
            "decoder_layers": decoder_layers,
            "encoder_layers": encoder_layers,
            "width": width,
            "ffn_dim": ffn_dim,
            "states": states,
            "block_attention": block_attention,
            "bigram_rank": bigram_rank,
            "coverage": coverage,
            "num_cuts": num_cuts,
            "slot_weights": slot_weights,
            "targets": targets,
            "steps": steps,
            "batch_tokens": batch_tokens,
            "learning_rate": learning_rate,
            "warmup_steps": warmup_steps,
            "schedule": schedule,
            "optimizer": optimizer,
            "dropout": dropout,
            "eval_steps": eval_steps,
            "save_steps": save_steps,
            "num_averaged": num_averaged,
            "num_held_out": num_held_out,
            "seed": seed,
            "bf16": bf16,
            "tensorboard": tensorboard,
        },
    )

    # A CPU prepares each product for its sizes. By default it remembers a thousand; a training has some thousands more.
    # Not all of them: with four times as many, a Spec-Drafter's training took 11 GB.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")

    import torch

    from spec2seq.training.drafter_training import train_drafter as train
    from spec2seq.weights import load_model

    if threads is not None:
        torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # probabilities of unlikely tokens are such numbers, which are slow
    _tell(train(load_model(model), data, output, plan, device, _print_log), output)


def _plan(kind: Kind, said: dict[str, object]) -> TrainingPlan:
    """The default plan of a kind with what was said on the command line.

    Raises:
        OptionError: an option that this kind does not have, or a value that cannot be.
    """
    plan = DEFAULT_PLANS[kind]
    said = {name: value for name, value in said.items() if value is not None}
    for part in _PARTS:
        record = getattr(plan, part)
        names = [field.name for field in fields(record) if field.name in said]
        plan = replace(plan, **{part: replace(record, **{name: said.pop(name) for name in names})})
    if said:
        name, value = next(iter(said.items()))
        raise OptionError(f"{name}={value} has no place in a drafter of kind {kind}; leave it out")
    return plan


def _print_log(step: int, logs: dict[str, float]) -> None:
    if "eval_tokens_per_round" in logs:
        typer.echo(f"step {step}: {logs['eval_tokens_per_round']:.2f} tokens per round", err=True)
    elif "loss" in logs:
        typer.echo(f"step {step}: loss {float(logs['loss']):.3f}", err=True)


def _tell(trained: TrainedDrafter, output: Path) -> None:
    for num_slots, figures in trained.figures.items():
        typer.echo(f"{num_slots} slots: {figures.tokens_per_round:.2f} tokens per round", err=True)
    typer.echo(f"drafter: {output}", err=True)
