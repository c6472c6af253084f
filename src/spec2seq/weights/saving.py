"""Writing model folders."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spec2seq.weights.checkpoint import SAFETENSORS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


def save_model_files(folder: Path, settings: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors into a folder that exists."""
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    weights = folder / SAFETENSORS
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors leaves its files to their owner alone
