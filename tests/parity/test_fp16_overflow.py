"""Encoders whose residuals overflow fp16: infinities become large numbers at the end of a layer, as in transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.types import SourceBatch
from spec2seq.weights import load_model
from tests.families import tiny_hf_model
from tests.parity.conftest import random_ids

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["mbart_50", "pegasus", "m2m100"])
def test_infinities_are_clamped(name: str, tmp_path: Path) -> None:
    model = tiny_hf_model(name)
    with torch.no_grad():
        weight = model.model.encoder.layers[0].fc2.weight
        weight.mul_(6e4 / weight.abs().max())  # finite, but its products with the states are not
    model.save_pretrained(tmp_path)
    ids = random_ids(2, 5, seed=1)
    theirs = model.half().model.encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    verifier = TorchVerifier(load_model(tmp_path, "float16").network)
    ours = verifier.encode(SourceBatch(ids, torch.tensor([5, 5]))).hidden
    assert theirs.isfinite().all()
    assert ours.isfinite().all()
    assert (ours - theirs).abs().max() <= 0.01 * theirs.abs().max()
