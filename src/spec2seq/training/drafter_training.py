"""From distilled pairs to a drafter folder: everything between `spec2seq distill` and decoding."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.drafter_config import SpecDrafterConfig
from spec2seq.errors import InputError, OptionError
from spec2seq.evaluation.walk import WalkFigures, walk_drafter
from spec2seq.pipelines.devices import find_device
from spec2seq.training.advice import training_advice
from spec2seq.training.batches import BatchDataset, PairTable
from spec2seq.training.model_card import CARD_SLOTS, card_text
from spec2seq.training.new_modules import new_module
from spec2seq.training.pair_folders import PairFolders
from spec2seq.training.trainer import load_average, train_module
from spec2seq.weights.drafter_folder import save_drafter
from spec2seq.weights.fingerprints import VerifierFingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from spec2seq.training.records import DistilledPair
    from spec2seq.training.settings import TrainingPlan, TrainingSettings
    from spec2seq.training.trainer import OnLog
    from spec2seq.weights import LoadedModel

MIN_PAIRS = 20  # below, no pair can be held out
WORK_FOLDER = "training"
_JOB_FILE = "job.json"


@dataclass(frozen=True)
class TrainedDrafter:
    """What a training came to.

    Attributes:
        figures: walks over the held-out pairs, by number of slots laid.
        num_pairs: trained on.
        num_held_out: held out.
        num_averaged: checkpoints in the average.
    """

    figures: dict[int, WalkFigures]
    num_pairs: int
    num_held_out: int
    num_averaged: int


def train_drafter(
    model: LoadedModel,
    data: Sequence[Path],
    output: Path,
    plan: TrainingPlan,
    device: str = "cpu",
    on_log: OnLog | None = None,
) -> TrainedDrafter:
    """Train a drafter for a model, or go on with it, and write its folder.

    Args:
        model: the verifier.
        data: complete distillations of this model.
        output: the drafter's folder; checkpoints are in "training" in it.
        device: "cpu", or "cuda" for one GPU per process.
        on_log: told what the training logs.

    Raises:
        DrafterMismatchError: the pairs come from another model.
        OptionError: `output` holds another training, the shape does not suit the model, or there is no such device.
        InputError: too few pairs.
        ModelNotFoundError, CheckpointError: the data are missing, damaged or not complete.

    Warns:
        UserWarning: few pairs, pairs of beam search, or a training that should have been longer.
    """
    find_device(device)
    fingerprint = VerifierFingerprint.of(model.path, model.config, model.tensors)
    pairs = PairFolders.open(data, fingerprint)
    config = plan.shape.config(model.config)
    limit = config.max_source_positions if isinstance(config, SpecDrafterConfig) else None
    held_out, table = _split(pairs, plan.settings, limit, model.config.decoder_start_token_id)
    module = new_module(model.network, plan, table)
    work = output / WORK_FOLDER
    _check_job(work, {**plan.as_job(), "data": pairs.as_job()})
    settings, block_size = plan.settings, module.block_size
    batches = BatchDataset(table, settings.batch_tokens, block_size, model.config.pad_token_id, settings.seed)
    history = train_module(module, batches, held_out, model.network, settings, work, device, on_log)
    for advice in training_advice(history, len(table), pairs.num_beams):
        warnings.warn(advice, stacklevel=2)
    module.cpu().eval()
    num_averaged = load_average(module, work, settings.num_averaged)
    slots = sorted({k for k in CARD_SLOTS if k < block_size} | {block_size})
    verifier = TorchVerifier(model.network)
    figures = {k: walk_drafter(module.drafter(), held_out, k, verifier) for k in slots}
    trained = TrainedDrafter(figures, len(table), len(held_out), num_averaged)
    if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun starts
        card = card_text(
            model.name, fingerprint, pairs.manifests, module.network.config, plan.as_job(), asdict(trained)
        )
        survival = {k: walked.survival for k, walked in figures.items()}
        save_drafter(output, module.network, model.name, fingerprint, card, survival)
    return trained


def _split(
    pairs: PairFolders, settings: TrainingSettings, max_source_positions: int | None, start: int
) -> tuple[list[DistilledPair], PairTable]:
    """Pairs to evaluate on, spread evenly over the data, and the others; see `PairTable`."""
    num_pairs = pairs.num_pairs
    if num_pairs < MIN_PAIRS:
        raise InputError(
            f"{pairs.name} holds {num_pairs} pairs, but training needs {MIN_PAIRS} at least; distil more lines"
        )
    stride = max(10, num_pairs // settings.num_held_out)
    held_out: list[DistilledPair] = []

    def others() -> Iterator[DistilledPair]:
        for i, pair in enumerate(pairs.pairs()):
            if i % stride != stride - 1:
                yield pair
            elif not pair.is_degenerate and len(pair.target_ids) > pair.num_forced:
                held_out.append(pair)

    table = PairTable(others(), max_source_positions, start)
    if not held_out:
        raise InputError(f"the pairs of {pairs.name} to evaluate on all run in circles or are empty; distil more lines")
    return held_out, table


def _check_job(work: Path, job: Mapping[str, object]) -> None:
    """Refuse to go on with another training; note this one where there is none."""
    mine, file = json.loads(json.dumps(job)), work / _JOB_FILE
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(mine, indent=2) + "\n", encoding="utf-8")
        return
    try:
        other = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        other = {}
    differing = sorted(name for name in mine if mine[name] != other.get(name))
    if differing:
        raise OptionError(
            f"{work} holds another training ({', '.join(differing)} differ); choose another --output, or delete the "
            "folder to start anew"
        )
