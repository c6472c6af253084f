"""T5's settings that change numbers: what is scaled and tied, depths, feed-forward kinds, and fp16."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.types import SourceBatch, Wanted
from spec2seq.weights import load_model
from tests.families import tiny_hf_model
from tests.parity.conftest import in_order, random_ids

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


def _ours(folder: Path, ids: Tensor, tokens: Tensor, dtype: str = "float32") -> Tensor:
    verifier = TorchVerifier(load_model(folder, dtype).network)
    encoded = verifier.encode(SourceBatch(ids, torch.full((len(ids),), ids.shape[1])))
    rows, width = tokens.shape
    cache, wanted = verifier.new_cache(rows), Wanted(logits=True)
    output = verifier.decode(tokens, in_order(rows, width), torch.full((rows,), width), cache, encoded, wanted)
    return output.scores.logits()


def _theirs(model: Any, ids: Tensor, tokens: Tensor) -> Tensor:
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=tokens, use_cache=False).logits
    return logits.float()


def _assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


def _rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        config.pop(key, None) if value is None else config.update({key: value})
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    "settings",
    [
        {"feed_forward_proj": "gated-silu"},
        {"feed_forward_proj": "gelu"},
        {"num_layers": 1, "num_decoder_layers": 3},
        {"num_layers": 3, "num_decoder_layers": 1},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    model = tiny_hf_model("t5", config=settings)
    model.save_pretrained(tmp_path)
    ids, tokens = random_ids(2, 5, seed=1), random_ids(2, 12, seed=2)
    _assert_same(_ours(tmp_path, ids, tokens), _theirs(model, ids, tokens))


@pytest.mark.parametrize("scales", [True, False, None])
@pytest.mark.parametrize("ties", [True, False, None])
@pytest.mark.parametrize("is_untied", [True, False])
def test_output_scale_and_tying(scales: bool | None, ties: bool | None, is_untied: bool, tmp_path: Path) -> None:
    """The scale follows config.json, the tying follows the weights, as in transformers."""
    from transformers import T5ForConditionalGeneration

    model = tiny_hf_model("t5")
    if is_untied:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.flip(0))
    model.save_pretrained(tmp_path)
    _rewrite(tmp_path, scale_decoder_outputs=scales, tie_word_embeddings=ties)
    loaded = T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    ids, tokens = random_ids(2, 5, seed=1), random_ids(2, 4, seed=2)
    theirs = _theirs(loaded, ids, tokens)
    _assert_same(_ours(tmp_path, ids, tokens), theirs)
    config = load_model(tmp_path).config
    is_scaled = scales if scales is not None else ties is not False
    assert config.output_scale == (16**-0.5 if is_scaled else 1.0)
    assert config.ties_output is not is_untied


def test_mt5_never_scales(tmp_path: Path) -> None:
    model = tiny_hf_model("mt5")
    model.save_pretrained(tmp_path)
    _rewrite(tmp_path, tie_word_embeddings=True)
    ids, tokens = random_ids(2, 5, seed=1), random_ids(2, 4, seed=2)
    _assert_same(_ours(tmp_path, ids, tokens), _theirs(model, ids, tokens))


def test_fp16_survives_what_overflows_it(tmp_path: Path) -> None:
    """The feed-forward's output needs fp32, and infinities before it are clamped, as in transformers."""
    from transformers import T5ForConditionalGeneration

    model = tiny_hf_model("t5_v1_1")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("wo.weight"):
                weight.mul_(3e4)
            elif "block.0.layer.0.SelfAttention.o" in name:
                weight.mul_(2e5 / weight.abs().max() / 4)
    model.save_pretrained(tmp_path)
    half = T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float16).eval()
    ids, tokens = random_ids(2, 5, seed=1), random_ids(2, 4, seed=2)
    theirs = _theirs(half, ids, tokens)
    ours = _ours(tmp_path, ids, tokens, "float16")
    assert theirs.isfinite().all()
    assert ours.isfinite().all()
    assert (ours - theirs).abs().max() <= 0.02 * theirs.abs().max()
    assert load_model(tmp_path, "float16").network.decoder.layers[0].ffn.output_weight.dtype == torch.float32
