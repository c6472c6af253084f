"""Training a translation model on transformers' Seq2SeqTrainer: resuming and several processes are its."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from averaging_optimizer import AveragingAdamW
from model_folders import write_model
from pair_batches import EndlessBatches, group_pairs, make_batch
from torch import distributed
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

from spec2seq.training.trainer import checkpoints

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from model_folders import TrainedModel
    from pair_batches import TrainingData
    from torch import Tensor

MODEL_FOLDER, CHECKPOINT_FOLDER, FINISHED_FILE = "model", "checkpoints", "finished.json"
VALIDATION_SHARE = 3  # every third batch of the validation pairs is measured
WATCHED = "eval_nll"
MIN_GAIN, GAIN_STEPS = 0.01, 5000  # training ends where so many updates bring less


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        batch_tokens: most tokens of one side of a batch, per process and with padding.
        learning_rate: at its highest.
        warmup_steps: updates until then.
        flat_steps: updates in all from which on it falls with their square root.
        seed: of everything random.
        use_bf16: multiply in bfloat16.
    """

    batch_tokens: int = 2300
    learning_rate: float = 8e-4
    warmup_steps: int = 1000
    flat_steps: int = 4000
    seed: int = 0
    use_bf16: bool = True

    def rate(self, first_step: int, num_done: int) -> float:
        """The learning rate of the next update, as a part of the highest; `num_done` updates follow `first_step`."""
        step = first_step + num_done + 1
        return min(1.0, (num_done + 1) / max(1, self.warmup_steps)) * min(1.0, (self.flat_steps / step) ** 0.5)


@dataclass(frozen=True)
class Limits:
    """When a run looks at itself and when it ends.

    Attributes:
        max_steps: updates in all.
        minutes: of this run; None: no limit.
        eval_steps, save_steps: updates between two validations, and between two checkpoints.
    """

    max_steps: int
    minutes: float | None = None
    eval_steps: int = 500
    save_steps: int = 500


def is_converged(losses: Sequence[tuple[int, float]]) -> bool:
    """Whether the last `GAIN_STEPS` updates lowered the validation loss by less than `MIN_GAIN`.

    Args:
        losses: (updates, loss), oldest first.
    """
    if not losses:
        return False
    last_step, last = losses[-1]
    before = [loss for step, loss in losses if step <= last_step - GAIN_STEPS]
    return bool(before) and last > before[-1] * (1 - MIN_GAIN)


class TranslationTrainer(Seq2SeqTrainer):
    """Trains with an `AveragingAdamW` and judges its averages.

    Args:
        model: to train.
        data: pairs.
        settings, limits: how, and how long.
        first_step: updates that the model had before.
        tokenizer: folder that the model's folder gets its tokenizer from.
        folder: for checkpoints and the model's folder.
    """

    def __init__(
        self,
        model: TrainedModel,
        data: TrainingData,
        settings: Settings,
        limits: Limits,
        first_step: int,
        tokenizer: Path,
        folder: Path,
    ) -> None:
        self.folder, self.first_step = folder, first_step
        self._limits, self._tokenizer, self._valid = limits, tokenizer, data.valid
        self._batch_tokens = settings.batch_tokens
        self.averages = AveragingAdamW(
            [p for p in model.parameters() if p.requires_grad], settings.learning_rate, first_step
        )
        scheduler = LambdaLR(self.averages, lambda num_done: settings.rate(first_step, num_done))
        arguments = _arguments(settings, limits, first_step, folder / CHECKPOINT_FOLDER)
        count = arguments.max_steps * arguments.world_size
        batches = EndlessBatches(
            data.train, settings.batch_tokens, model.config.pad_token_id, count, settings.seed + first_step
        )
        super().__init__(
            model,
            arguments,
            data_collator=lambda items: items[0],
            train_dataset=batches,
            eval_dataset=batches,  # never read: it only lets the Trainer evaluate
            callbacks=[_Keeper(self)],
            optimizers=(self.averages, scheduler),
        )
        self.remove_callback(PrinterCallback)

    @property
    def num_updates(self) -> int:
        """All the updates that the model had."""
        return self.first_step + self.state.global_step

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(updates of this training, validation loss), oldest first."""
        return [(entry["step"], entry[WATCHED]) for entry in self.state.log_history if WATCHED in entry]

    def evaluate(
        self,
        eval_dataset: object = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: object,
    ) -> dict[str, float]:
        """Logs the validation loss of the averaged weights: nats per token, without smoothing."""
        with self._averaged_weights() as model:
            total, count = self._sum_losses(model)
        metrics = {f"{metric_key_prefix}_nll": total / count}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _sum_losses(self, model: TrainedModel) -> tuple[float, float]:
        """Nats and tokens; every process does its part."""
        groups = list(group_pairs(self._valid, self._batch_tokens, range(len(self._valid))))[::VALIDATION_SHARE]
        sums = torch.zeros(2, dtype=torch.float64)
        for group in groups[self.args.process_index :: self.args.world_size]:
            batch = make_batch([self._valid[i] for i in group], model.config.pad_token_id)
            num_tokens = int((batch["labels"] >= 0).sum())
            with torch.no_grad(), self.accelerator.autocast():
                loss = model(**batch).loss
            sums += torch.tensor([float(loss) * num_tokens, num_tokens])
        if distributed.is_initialized():
            distributed.all_reduce(sums)
        return float(sums[0]), float(sums[1])

    @contextmanager
    def _averaged_weights(self) -> Iterator[TrainedModel]:
        """The model with its averages for weights, for a while."""
        model: TrainedModel = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        learning = [p for p in model.parameters() if p.requires_grad]
        own = [p.detach().clone() for p in learning]
        _assign(learning, [self.averages.average(p) for p in learning])
        model.eval()
        yield model
        _assign(learning, own)
        model.train()

    def write_model(self) -> None:
        """Write the averages as a model that is ready for use."""
        with self._averaged_weights() as model:
            weights = {name: p.detach() for name, p in model.named_parameters()}
            losses = self.losses
            training = {"step": self.num_updates, "validation_nll": losses[-1][1] if losses else None}
            write_model(self.folder / MODEL_FOLDER, model.config, weights, self._tokenizer, training)

    def finish(self) -> str | None:
        """Why the training is at its end, and a note of that; None where only this run is."""
        reason = None
        if is_converged(self.losses):
            reason = "converged"
        elif self.num_updates >= self._limits.max_steps:
            reason = "max_steps"
        if reason and self.is_world_process_zero():
            note = {"reason": reason, "step": self.num_updates}
            (self.folder / FINISHED_FILE).write_text(json.dumps(note) + "\n", encoding="utf-8")
        return reason


@torch.no_grad()
def _assign(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


class _Keeper(TrainerCallback):
    """Ends the run in time, keeps the model's folder up to date, and prints what is logged."""

    def __init__(self, trainer: TranslationTrainer) -> None:
        self._trainer = trainer
        self._begin = self._last_time = time.monotonic()
        self._last_step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begin = self._last_time = time.monotonic()
        self._last_step = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        minutes = self._trainer._limits.minutes
        if minutes is not None and _agreed(time.monotonic() - self._begin >= 60 * minutes):
            control.should_save = control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if is_converged(self._trainer.losses):
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._trainer.write_model()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, float] | None = None, **_: Any) -> None:
        told = {name: value for name, value in (logs or {}).items() if name in ("loss", WATCHED)}
        if told and state.is_world_process_zero:
            figures = ", ".join(f"{name} {float(value):.4f}" for name, value in told.items())
            minutes = (time.monotonic() - self._begin) / 60
            print(f"{minutes:.1f} min, step {self._trainer.num_updates}: {figures}{self._pace(state)}", flush=True)

    def _pace(self, state: Any) -> str:
        """How long an update took since this was asked last, validation and saving included."""
        now, num_updates = time.monotonic(), state.global_step - self._last_step
        pace = f", {(now - self._last_time) / num_updates:.2f} s per update" if num_updates else ""
        self._last_time, self._last_step = now, state.global_step
        return pace


def _agreed(is_over: bool) -> bool:
    """Whether it is over for any process: all of them have to stop at the same update."""
    if not distributed.is_initialized():
        return is_over
    flag = torch.tensor(float(is_over))
    distributed.all_reduce(flag)
    return bool(flag)


def _arguments(settings: Settings, limits: Limits, first_step: int, folder: Path) -> Seq2SeqTrainingArguments:
    return Seq2SeqTrainingArguments(
        output_dir=str(folder),
        max_steps=max(1, limits.max_steps - first_step),
        per_device_train_batch_size=1,  # an item is a batch
        train_sampling_strategy="sequential",  # the batches come in random order already
        max_grad_norm=1.0,
        bf16=settings.use_bf16,
        use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,  # torchrun says which process this is
        ddp_find_unused_parameters=False,  # every step uses them all
        seed=settings.seed + first_step,
        logging_steps=min(100, limits.eval_steps),
        eval_strategy="steps",
        eval_steps=limits.eval_steps,
        save_strategy="steps",
        save_steps=limits.save_steps,
        save_total_limit=2,
        report_to="none",
        remove_unused_columns=False,
        label_names=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def last_checkpoint(folder: Path) -> Path | None:
    """Where the training in a folder goes on; None where it begins."""
    done = checkpoints(folder / CHECKPOINT_FOLDER)
    return done[-1] if done else None
