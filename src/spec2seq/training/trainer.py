"""The Spec-Drafter on transformers' `Trainer`: checkpoints, resuming, mixed precision and several processes are its."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spec2seq.errors import MissingExtraError
from spec2seq.evaluation.walk import walk_network
from spec2seq.nn.sublayer import set_dropout
from spec2seq.training.batches import TrainingBatch
from spec2seq.training.objective import drafter_loss
from spec2seq.weights.checkpoint import SAFETENSORS

try:
    import accelerate as _accelerate  # noqa: F401  what the Trainer cannot do without
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
except ImportError as error:
    raise MissingExtraError(f"training needs more packages ({error}): pip install 'spec2seq[train]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from spec2seq.evaluation.walk import ReferencePair
    from spec2seq.nn.spec_drafter import SpecDrafterNetwork
    from spec2seq.training.batches import BatchDataset
    from spec2seq.training.settings import Objective, TrainingSettings

    # (updates done, what the Trainer logs: loss, learning_rate, eval_tokens_per_round, ...)
    OnLog = Callable[[int, dict[str, float]], None]

# of the files of a checkpoint
_WRITTEN_LAST = "trainer_state.json"


class DrafterModule(nn.Module):
    """A drafting network whose forward is a training step.

    Attributes:
        progress: from 0 to 1, how far the training is.
    """

    def __init__(self, network: SpecDrafterNetwork, objective: Objective) -> None:
        super().__init__()
        self.network = network
        self.objective = objective
        self.progress = 0.0
        self.register_state_dict_post_hook(_keep_own_parameters)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_forgive_other_names)  # type: ignore[no-untyped-call]

    def forward(
        self,
        source_ids: Tensor,
        source_lengths: Tensor,
        target_ids: Tensor,
        target_lengths: Tensor,
        num_forced: Tensor,
    ) -> dict[str, Tensor]:
        """The fields of a `TrainingBatch` -> {"loss": a number}."""
        batch = TrainingBatch(source_ids, source_lengths, target_ids, target_lengths, num_forced)
        return {"loss": drafter_loss(self.network, batch, self.objective, self.progress)}


def _keep_own_parameters(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    """One name per tied parameter, and rows one behind another: safetensors takes nothing else."""
    own = {prefix + name for name, _ in module.named_parameters()}
    for name in list(state):
        if name in own:
            state[name] = state[name].contiguous()
        else:
            del state[name]


def _forgive_other_names(module: nn.Module, keys: Any) -> None:
    """Of a tied parameter only the name that was saved is missed."""
    own = {name for name, _ in module.named_parameters()}
    keys.missing_keys[:] = [name for name in keys.missing_keys if name in own]


class DrafterTrainer(Trainer):
    """`Trainer` that evaluates by the tokens per round that the decoder will see."""

    network: SpecDrafterNetwork
    held_out: Sequence[ReferencePair]

    def evaluate(
        self, eval_dataset: object = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Walk over the held-out pairs; logs the mean tokens per round and the survival of every slot."""
        network = self.network.eval()
        device = network.copy_weight.device
        figures = walk_network(network, self.held_out, network.config.block_size, device=device)
        network.train()
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


def train_network(
    network: SpecDrafterNetwork,
    data: BatchDataset,
    held_out: Sequence[ReferencePair],
    objective: Objective,
    settings: TrainingSettings,
    folder: Path,
    device: str = "cpu",
    on_log: OnLog | None = None,
) -> list[dict[str, float]]:
    """Train a network in place, on from the last checkpoint in `folder` where there is one; none is left to be done
    where that is the end.

    Args:
        network: in fp32, its parameters learning.
        data: its items are the batches.
        held_out: pairs to evaluate on.
        folder: where checkpoints go.
        device: "cpu", or "cuda" for the GPUs of this process.
        on_log: told what is logged.

    Returns:
        Everything that was logged, earlier runs included.
    """
    done = checkpoints(folder)
    if done and _step(done[-1]) >= settings.steps:
        # the Trainer would add a step
        load_average(network, folder, 1)
        history: list[dict[str, float]] = json.loads((done[-1] / _WRITTEN_LAST).read_text())["log_history"]
        return history
    torch.manual_seed(settings.seed)
    set_dropout(network, settings.dropout)
    module = DrafterModule(network, objective)
    trainer = DrafterTrainer(
        module,
        _arguments(settings, folder, device),
        data_collator=lambda items: asdict(items[0]),
        train_dataset=data,
        eval_dataset=data,  # never read: it only lets the Trainer evaluate
        callbacks=[_Progress(module, on_log)],
    )
    trainer.network, trainer.held_out = network, held_out
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=str(done[-1]) if done else None)
    trainer.accelerator.wait_for_everyone()  # the first process writes the last checkpoint
    set_dropout(network, 0.0)
    return list(trainer.state.log_history)


def _arguments(settings: TrainingSettings, folder: Path, device: str) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=settings.steps,
        per_device_train_batch_size=1,  # an item is a batch
        learning_rate=settings.learning_rate,
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        optim="adamw_torch",
        adam_beta1=0.9,
        adam_beta2=0.999,
        bf16=settings.bf16,
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
def load_average(network: SpecDrafterNetwork, folder: Path, num_averaged: int) -> int:
    """Set a network to the mean of the last checkpoints in a folder. Returns of how many."""
    from safetensors.torch import load_file

    states = [load_file(path / SAFETENSORS) for path in checkpoints(folder)[-num_averaged:]]
    for name, parameter in network.named_parameters():
        parameter.copy_(torch.stack([state[f"network.{name}"].double() for state in states]).mean(0))
    return len(states)
