"""Folders of our own: what is saved is what is loaded, for every family with positions of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.types import SourceBatch, Wanted
from spec2seq.weights import load_model
from spec2seq.weights.native import save_seq2seq
from tests.families import FAMILIES, tiny_hf_model

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from spec2seq.nn.seq2seq import Seq2Seq


@torch.inference_mode()
def logits_of(network: Seq2Seq) -> Tensor:
    """[2, 6, V] after six tokens of two ragged rows."""
    verifier = TorchVerifier(network)
    tokens, positions = torch.arange(4, 16).view(2, 6), torch.arange(6).repeat(2, 1)
    encoded = verifier.encode(SourceBatch.from_lists([[5, 6, 7, 8, 2], [9, 2]], network.config.pad_token_id))
    cache, lengths = verifier.new_cache(2), torch.tensor([6, 6])
    return verifier.decode(tokens, positions, lengths, cache, encoded, Wanted(logits=True)).scores.logits()


@pytest.mark.parametrize("name", [name for name in FAMILIES if "t5" not in name])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saved_and_loaded_again_it_gives_the_same_logits(name: str, dtype: str, tmp_path: Path) -> None:
    tiny_hf_model(name).save_pretrained(tmp_path / "hf")
    first = load_model(tmp_path / "hf", dtype).network
    (tmp_path / "own").mkdir()
    save_seq2seq(tmp_path / "own", first)
    second = load_model(tmp_path / "own", dtype)
    assert second.config == first.config
    assert second.network.state_dict().keys() == first.state_dict().keys()
    assert torch.equal(logits_of(second.network), logits_of(first))
    stored = load_file(tmp_path / "own" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {getattr(torch, dtype)}
    has_table = name in ("bart", "mbart_cc25", "mbart_50")
    assert any("embed_positions" in key for key in stored) is has_table, "tables by a formula are not stored"
    assert sum("embed_tokens" in key or "shared" in key for key in stored) == (2 if name == "marian_separate" else 1)


def test_an_output_of_its_own_stays_its_own(tmp_path: Path) -> None:
    model = tiny_hf_model("bart")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.flip(0))
    model.save_pretrained(tmp_path / "hf")
    first = load_model(tmp_path / "hf").network
    (tmp_path / "own").mkdir()
    save_seq2seq(tmp_path / "own", first)
    second = load_model(tmp_path / "own")
    assert second.config.ties_output is False
    assert torch.equal(logits_of(second.network), logits_of(first))
