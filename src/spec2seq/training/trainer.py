"""Drafters on transformers' `Trainer`: checkpoints, resuming, mixed precision and several processes are its."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.errors import MissingExtraError
from spec2seq.evaluation.walk import walk_drafter
from spec2seq.nn.sublayer import set_dropout
from spec2seq.training.optimizers import make_optimizer
from spec2seq.weights.checkpoint import SAFETENSORS

try:
    import accelerate as _accelerate  # noqa: F401  what the Trainer cannot do without
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
except ImportError as error:
    raise MissingExtraError(f"training needs more packages ({error}): pip install 'spec2seq[train]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from spec2seq.evaluation.known_outputs import ReferencePair
    from spec2seq.nn.seq2seq import Seq2Seq
    from spec2seq.training.batches import BatchDataset
    from spec2seq.training.modules import DrafterModule
    from spec2seq.training.settings import TrainingSettings

    # (updates done, what the Trainer logs: loss, learning_rate, eval_tokens_per_round, ...)
    OnLog = Callable[[int, dict[str, float]], None]

# of the files of a checkpoint
_WRITTEN_LAST = "trainer_state.json"


class DrafterTrainer(Trainer):
    """`Trainer` that evaluates by the tokens per round that the decoder will see."""

    drafting: DrafterModule
    settings: TrainingSettings
    verifier: Seq2Seq
    held_out: Sequence[ReferencePair]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """As `Trainer.create_optimizer`."""
        if self.optimizer is None:
            self.optimizer = make_optimizer(self.drafting, self.get_decay_parameter_names(self.drafting), self.settings)
        return self.optimizer

    def evaluate(
        self, eval_dataset: object = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Walk over the held-out pairs; logs the mean tokens per round and the survival of every slot."""
        drafting = self.drafting.eval()
        verifier = TorchVerifier(self.verifier, next(drafting.parameters()).device)
        figures = walk_drafter(drafting.drafter(), self.held_out, drafting.block_size, verifier)
        drafting.train()
        metrics = {f"{metric_key_prefix}_tokens_per_round": figures.tokens_per_round}
        metrics |= {f"{metric_key_prefix}_survival_{i}": rate for i, rate in enumerate(figures.survival, start=1)}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class _Progress(TrainerCallback):
    """Tells the module how far the training is, and the caller what is logged."""

    def __init__(self, module: DrafterModule, on_log: OnLog | None) -> None:
        self._module = module
        self._on_log = on_log

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._module.progress = state.global_step / state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if self._on_log and state.is_world_process_zero:
            self._on_log(state.global_step, dict(logs or {}))


def train_module(
    module: DrafterModule,
    data: BatchDataset,
    held_out: Sequence[ReferencePair],
    verifier: Seq2Seq,
    settings: TrainingSettings,
    folder: Path,
    device: str = "cpu",
    on_log: OnLog | None = None,
) -> list[dict[str, float]]:
    """Train a network in place, on from the last checkpoint in `folder` where there is one; none is left to be done
    where that is the end.

    Args:
        module: its network in fp32, the parameters learning.
        data: its items are the batches.
        held_out: pairs to evaluate on, outputs of `verifier`, which is in fp32.
        folder: where checkpoints go.
        device: "cpu", or "cuda" for the GPUs of this process.
        on_log: told what is logged.

    Returns:
        Everything that was logged, earlier runs included.
    """
    done = checkpoints(folder)
    if done and _step(done[-1]) >= settings.steps:
        # the Trainer would add a step
        load_average(module, folder, 1)
        history: list[dict[str, float]] = json.loads((done[-1] / _WRITTEN_LAST).read_text())["log_history"]
        return history
    torch.manual_seed(settings.seed)
    set_dropout(module, settings.dropout)
    trainer = DrafterTrainer(
        module,
        _arguments(settings, folder, device),
        data_collator=lambda items: asdict(items[0]),
        train_dataset=data,
        eval_dataset=data,  # never read: it only lets the Trainer evaluate
        callbacks=[_Progress(module, on_log)],
    )
    trainer.drafting, trainer.settings = module, settings
    trainer.verifier, trainer.held_out = verifier, held_out
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=str(done[-1]) if done else None)
    trainer.accelerator.wait_for_everyone()  # the first process writes the last checkpoint
    set_dropout(module, 0.0)
    return list(trainer.state.log_history)


def is_bf16_fast(device: str) -> bool:
    """Whether this machine multiplies faster in bfloat16."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported())


def _arguments(settings: TrainingSettings, folder: Path, device: str) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=settings.steps,
        per_device_train_batch_size=1,  # an item is a batch
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        bf16=is_bf16_fast(device) if settings.bf16 is None else settings.bf16,
        use_cpu=device == "cpu",
        seed=settings.seed,
        logging_steps=min(100, settings.eval_steps),
        eval_strategy="steps",
        eval_steps=settings.eval_steps,
        save_strategy="steps",
        save_steps=settings.save_steps,
        save_total_limit=settings.num_averaged,
        report_to=["tensorboard"] if settings.tensorboard else "none",
        remove_unused_columns=False,
        label_names=[],
        disable_tqdm=True,
        dataloader_pin_memory=device != "cpu",
        ddp_find_unused_parameters=False,  # every step uses them all
    )
    # a batch is prepared for one device: several GPUs are for several processes
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first; what a kill left of another one is deleted."""
    found = sorted(folder.glob("checkpoint-*"), key=_step)
    complete = [path for path in found if (path / _WRITTEN_LAST).is_file()]
    for path in set(found) - set(complete):
        shutil.rmtree(path, ignore_errors=True)  # another process may be at it too
    return complete


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


@torch.no_grad()
def load_average(module: DrafterModule, folder: Path, num_averaged: int) -> int:
    """Set a network to the mean of the last checkpoints in a folder. Returns of how many."""
    from safetensors.torch import load_file

    states = [load_file(path / SAFETENSORS) for path in checkpoints(folder)[-num_averaged:]]
    for name, parameter in module.named_parameters():
        parameter.copy_(torch.stack([state[name].double() for state in states]).mean(0))
    return len(states)
