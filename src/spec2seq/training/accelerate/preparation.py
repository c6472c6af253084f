"""What can be refused before hours are spent: the text, the disk, the packages."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from typing import TYPE_CHECKING

from spec2seq.errors import MissingExtraError, OptionError
from spec2seq.training.shapes import BlockwiseShape, SpecShape

if TYPE_CHECKING:
    from pathlib import Path

    from spec2seq.config import ModelConfig
    from spec2seq.training.settings import TrainingPlan

_STATES = 3  # weights and two moments of every parameter
_BYTES = 4
_BYTES_PER_LINE = 3000  # of distilled pairs and runs


def check_packages() -> None:
    """Raises MissingExtraError where the training or the pictures could not be made."""
    missing = [name for name in ("accelerate", "matplotlib") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"accelerate needs {' and '.join(missing)}: pip install 'spec2seq[train]'")


def check_disk(output: Path, plan: TrainingPlan, model: ModelConfig, num_lines: int) -> None:
    """Refuse to start where the checkpoints would fill the disk.

    Raises:
        OptionError: too little is free.
    """
    parameters = _num_parameters(plan, model)
    checkpoints = plan.settings.num_averaged + 1  # one is written before the oldest goes
    needed = parameters * _BYTES * _STATES * checkpoints + num_lines * _BYTES_PER_LINE
    place = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OptionError(
            f"{output}: {free / 1e6:.0f} MB are free there, and about {needed / 1e6:.0f} MB are needed until the "
            "drafter is done; free some, or name a folder on another disk with -o"
        )


def _num_parameters(plan: TrainingPlan, model: ModelConfig) -> int:
    """About as many as the drafter will have; rather too many."""
    width, vocabulary, shape = model.d_model, model.target_vocab_size, plan.shape
    if isinstance(shape, SpecShape):
        layers = 12 * width * width * (model.encoder_layers + model.decoder_layers)
        return layers + width * (model.source_vocab_size + vocabulary)
    if isinstance(shape, BlockwiseShape):
        return 3 * shape.block_size * width * width
    return 24 * width * width * shape.decoder_layers + 2 * shape.bigram_rank * vocabulary
