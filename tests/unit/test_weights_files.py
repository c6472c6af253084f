"""Weight files of every kind load to the same numbers; damaged ones say which file is wrong, and why."""

from __future__ import annotations

import json
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec2seq.errors import CheckpointError, ModelNotFoundError
from spec2seq.weights import load_model
from tests.families import tiny_hf_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    Stored = dict[str, Tensor]


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bart")
    tiny_hf_model("bart").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(bart: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be damaged."""
    return shutil.copytree(bart, tmp_path / "model")


def _state(folder: Path) -> Stored:
    return dict(load_model(folder).network.state_dict())


def _assert_same(folder: Path, original: Path) -> None:
    ours, expected = _state(folder), _state(original)
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in ours)


def _rewrite(folder: Path, change: Callable[[Stored], None]) -> None:
    path = folder / "model.safetensors"
    stored = load_file(path)
    change(stored)
    save_file(stored, path, metadata={"format": "pt"})


def _as_pickle(folder: Path, **extra: Any) -> Path:
    stored: dict[str, Any] = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**stored, **extra}, folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


def _in_shards(folder: Path, suffix: str) -> list[Path]:
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    shards = [folder / f"{stem}-0000{i}-of-00003.{suffix}" for i in (1, 2, 3)]
    places = {}
    for i, shard in enumerate(shards):
        part = {name: tensor for j, (name, tensor) in enumerate(sorted(stored.items())) if j % 3 == i}
        places.update(dict.fromkeys(part, shard.name))
        save_file(part, shard) if suffix == "safetensors" else torch.save(part, shard)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return shards


def test_no_weight_stays_unloaded(bart: Path) -> None:
    assert not any(tensor.isnan().any() for tensor in _state(bart).values())


def test_a_pickle(folder: Path, bart: Path) -> None:
    _as_pickle(folder)
    _assert_same(folder, bart)


def test_a_pickle_of_the_old_format(folder: Path, bart: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(stored, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    _assert_same(folder, bart)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards(folder: Path, bart: Path, suffix: str) -> None:
    _in_shards(folder, suffix)
    _assert_same(folder, bart)


def test_shards_that_transformers_wrote(tmp_path: Path, bart: Path) -> None:
    tiny_hf_model("bart").save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    _assert_same(tmp_path, bart)


def test_safetensors_are_preferred(folder: Path, bart: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never looked at")
    _assert_same(folder, bart)


def test_names_of_the_bare_model(folder: Path, bart: Path) -> None:
    """Saved as BartModel: no "model." in front and no output bias, which is then zero."""

    def strip(stored: Stored) -> None:
        for name in list(stored):
            stored[name.removeprefix("model.")] = stored.pop(name)
        stored.pop("final_logits_bias")

    _rewrite(folder, strip)
    ours, expected = _state(folder), _state(bart)
    assert not ours.pop("output_bias").any()
    assert all(torch.equal(ours[name], expected[name]) for name in ours)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_any_stored_precision_becomes_the_asked_one(bart: Path, dtype: str) -> None:
    wide = _state(bart)
    loaded = load_model(bart, dtype).network
    assert loaded.dtype == getattr(torch, dtype)
    assert all(torch.equal(value, wide[name].to(loaded.dtype)) for name, value in loaded.state_dict().items())


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _point(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:123\nsize 456\n")


def _page(path: Path) -> None:
    path.write_text("<!DOCTYPE html><html>Not found</html>")


@pytest.mark.parametrize(
    ("damage", "message"),
    [(_cut, "damaged or cut off"), (_empty, r"empty \(0 bytes\)"), (_point, "git-lfs pointer"), (_page, "web page")],
)
@pytest.mark.parametrize("kind", ["safetensors", "bin", "shard"])
def test_damaged_weights(folder: Path, kind: str, damage: Callable[[Path], None], message: str) -> None:
    if kind == "shard":
        path = _in_shards(folder, "safetensors")[1]
    else:
        path = folder / "model.safetensors" if kind == "safetensors" else _as_pickle(folder)
    damage(path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(folder)
    assert str(path) in str(caught.value)


def test_a_pickle_named_safetensors(folder: Path) -> None:
    _as_pickle(folder).rename(folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is a PyTorch pickle, not safetensors"):
        load_model(folder)


def test_a_header_as_long_as_to_look_like_a_pickle(folder: Path, bart: Path) -> None:
    path = folder / "model.safetensors"
    stored = load_file(path)
    for padding in range(300):
        save_file(stored, path, metadata={"format": "pt", "note": "x" * padding})
        if path.read_bytes()[:1] == b"\x80":
            break
    assert path.read_bytes()[:1] == b"\x80"
    _assert_same(folder, bart)


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('the pickle ran')",))


def test_code_in_a_pickle_is_refused_and_does_not_run(folder: Path) -> None:
    path = _as_pickle(folder, trap=_Trap())
    with pytest.raises(CheckpointError, match="could run code") as caught:
        load_model(folder)
    assert str(path) in str(caught.value)


def test_a_plain_pickle_with_code_is_refused(folder: Path) -> None:
    path = _as_pickle(folder)
    path.write_bytes(pickle.dumps(_Trap(), protocol=2))
    with pytest.raises(CheckpointError, match="could run code"):
        load_model(folder)


def test_a_pickle_of_something_else(folder: Path) -> None:
    path = _as_pickle(folder)
    torch.save({"step": 7}, path)
    with pytest.raises(CheckpointError, match="does not hold the weights of a model"):
        load_model(folder)


def test_a_missing_shard(folder: Path) -> None:
    shard = _in_shards(folder, "safetensors")[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"lacks {shard.name}, which model\.safetensors\.index\.json names"):
        load_model(folder)


def test_a_shard_that_lacks_a_tensor(folder: Path) -> None:
    shard = _in_shards(folder, "safetensors")[0]
    part = load_file(shard)
    name = sorted(part)[0]
    part.pop(name)
    save_file(part, shard)
    with pytest.raises(CheckpointError, match=f"lacks {name}, which the index promises"):
        load_model(folder)


@pytest.mark.parametrize("content", ['{"weight_map": {}}', "{}", '{"weight_map": {"a": "../evil.safetensors"}}'])
def test_a_useless_index(folder: Path, content: str) -> None:
    _in_shards(folder, "safetensors")
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match="index"):
        load_model(folder)


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"has no weights: neither model\.safetensors nor pytorch_model\.bin"):
        load_model(folder)


def test_missing_tensors_are_named(folder: Path) -> None:
    def drop(stored: Stored) -> None:
        stored.pop("model.decoder.layers.1.fc1.bias")
        stored.pop("model.encoder.layernorm_embedding.weight")

    _rewrite(folder, drop)
    with pytest.raises(
        CheckpointError, match=r"lack decoder\.layers\.1\.fc1\.bias, encoder\.layernorm_embedding\.weight"
    ):
        load_model(folder)


def test_unused_tensors_are_named(folder: Path) -> None:
    _rewrite(folder, lambda stored: stored.update({"classification_head.dense.weight": torch.zeros(2, 2)}))
    with pytest.raises(CheckpointError, match=r"hold classification_head\.dense\.weight, which such a model does not"):
        load_model(folder)


def test_markers_of_fairseq_are_left_out(folder: Path, bart: Path) -> None:
    _rewrite(folder, lambda stored: stored.update({"model.encoder.version": torch.tensor([3.0])}))
    _assert_same(folder, bart)


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("model.decoder.layers.0.fc2.weight", (16, 25), r"\[16, 25\].*\[16, 24\]"),
        ("model.shared.weight", (51, 16), r"\[51, 16\].*\[50, 16\]"),
        ("final_logits_bias", (1, 49), r"\[49\].*\[50\]"),
        ("model.encoder.layers.0.self_attn.k_proj.weight", (15, 16), r"\[15, 16\].*\[16, 16\]"),
    ],
)
def test_a_wrong_shape(folder: Path, name: str, shape: tuple[int, ...], wanted: str) -> None:
    _rewrite(folder, lambda stored: stored.update({name: torch.zeros(shape)}))
    with pytest.raises(CheckpointError, match=wanted):
        load_model(folder)
