"""Copies of tied embeddings, static tables, and which of several equal tensors a file keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from spec2seq.errors import CheckpointError
from spec2seq.weights import load_model, read_model_config
from tests.families import FAMILIES, tiny_hf_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    Stored = dict[str, Tensor]

SHARED, SOURCE, TARGET = "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"


def _saved(name: str, folder: Path, change: Callable[[Stored], None]) -> Stored:
    """Save a family's checkpoint with changed tensors; its tensors before the change."""
    tiny_hf_model(name).save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    changed = dict(stored)
    change(changed)
    changed = {key: value.clone() for key, value in changed.items()}
    save_file(changed, folder / "model.safetensors")
    return stored


@pytest.mark.parametrize("name", FAMILIES)
def test_an_old_file_with_every_copy(name: str, tmp_path: Path) -> None:
    """As .bin files of transformers before 4.30: all names of tied tensors, and the static tables."""
    model = tiny_hf_model(name)
    model.save_pretrained(tmp_path)
    expected = load_model(tmp_path).network.state_dict()
    (tmp_path / "model.safetensors").unlink()
    stored = model.state_dict()
    tables = {key: stored[key] for key in stored if "embed_positions" in key}
    if name in ("m2m100", "nllb"):
        tables = {
            f"model.{side}.embed_positions.weights": getattr(model.model, side).embed_positions.weights
            for side in ("encoder", "decoder")
        }
    assert bool(tables) is ("t5" not in name)
    torch.save({**stored, **tables}, tmp_path / "pytorch_model.bin")
    loaded = load_model(tmp_path)
    state = loaded.network.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in state)
    assert loaded.config.ties_output is (name not in ("t5_v1_1", "mt5"))
    assert loaded.config.shares_embeddings is (name != "marian_separate")
    is_one = loaded.network.encoder.embedding.tokens is loaded.network.decoder.embedding.tokens
    assert is_one is loaded.config.shares_embeddings
    assert (loaded.network.output_weight is loaded.network.decoder.embedding.tokens) is loaded.config.ties_output


@pytest.mark.parametrize("kept", [SHARED, SOURCE, TARGET, OUTPUT])
def test_any_one_of_the_tied_names_is_enough(kept: str, tmp_path: Path) -> None:
    stored = _saved("bart", tmp_path, lambda tensors: tensors.update({kept: tensors.pop(SHARED)}))
    network = load_model(tmp_path).network
    for ours in (network.encoder.embedding.tokens, network.decoder.embedding.tokens, network.output_weight):
        assert torch.equal(ours, stored[SHARED])


def test_no_embedding_at_all(tmp_path: Path) -> None:
    _saved("bart", tmp_path, lambda tensors: tensors.pop(SHARED))
    with pytest.raises(CheckpointError, match=r"lack encoder\.embed_tokens\.weight"):
        load_model(tmp_path)


def test_separate_vocabularies_are_never_mixed_up(tmp_path: Path) -> None:
    _saved("marian_separate", tmp_path, lambda tensors: tensors.pop(SOURCE))
    with pytest.raises(CheckpointError, match=r"lack encoder\.embed_tokens\.weight"):
        load_model(tmp_path)


def test_a_head_of_its_own_is_used_as_transformers_does(tmp_path: Path) -> None:
    model = tiny_hf_model("bart")
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.flip(0))
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert not loaded.config.ties_output
    assert torch.equal(loaded.network.output_weight, model.lm_head.weight)
    assert torch.equal(loaded.network.decoder.embedding.tokens, model.lm_head.weight.flip(0))
    assert read_model_config(tmp_path)[0].ties_output is False


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    model = tiny_hf_model("bart")
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"lack lm_head\.weight, and config\.json says that it is not tied"):
        load_model(tmp_path)


def test_a_copy_that_equals_nothing_is_refused(tmp_path: Path) -> None:
    def split(tensors: Stored) -> None:
        shared = tensors[SHARED]
        tensors.update({SOURCE: shared + 1, TARGET: shared + 2})

    _saved("bart", tmp_path, split)
    with pytest.raises(CheckpointError, match=r"shared\.weight in .* equals neither"):
        load_model(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["marian", "pegasus"])
def test_static_tables_are_compared_in_their_precision(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    table = tiny_hf_model(name).model.encoder.embed_positions.weight.detach()
    key = "model.encoder.embed_positions.weight"
    _saved(name, tmp_path, lambda tensors: tensors.update({key: table.to(dtype)}))
    assert torch.equal(load_model(tmp_path).network.encoder.embedding.positions, table)


@pytest.mark.parametrize("name", ["marian", "m2m100"])
def test_a_table_that_is_another_is_refused(name: str, tmp_path: Path) -> None:
    key = f"model.decoder.embed_positions.weight{'s' if name == 'm2m100' else ''}"
    _saved(name, tmp_path, lambda tensors: tensors.update({key: torch.randn(100, 16)}))
    with pytest.raises(CheckpointError, match=r"decoder\.embed_positions.* is not the table of sines and cosines"):
        load_model(tmp_path)


def test_t5s_unused_bias_is_left_out(tmp_path: Path) -> None:
    key = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    _saved("t5", tmp_path, lambda tensors: tensors.update({key: torch.zeros(8, 3)}))
    assert load_model(tmp_path).config.ties_output
    other = key.replace("block.0", "block.1")
    _saved("t5", tmp_path, lambda tensors: tensors.update({other: torch.zeros(8, 3)}))
    with pytest.raises(CheckpointError, match=other):
        load_model(tmp_path)
