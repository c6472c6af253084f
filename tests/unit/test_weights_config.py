"""Settings of every family as config.json and generation_config.json give them, and folders that are none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from spec2seq.errors import CheckpointError, ModelNotFoundError, OptionError, UnsupportedModelError
from spec2seq.weights import load_model, read_model_config
from spec2seq.weights.checkpoint import resolve_folder
from tests.families import FAMILIES, tiny_hf_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in FAMILIES}
    for name, folder in folders.items():
        tiny_hf_model(name).save_pretrained(folder)
    return folders


def _copy(folder: Path, target: Path, *, config: dict[str, Any] | None = None, generation: Any = None) -> Path:
    """The folder with settings changed (None removes one) and another generation_config.json ({} is no such file)."""
    target.mkdir(exist_ok=True)
    settings = json.loads((folder / "config.json").read_text())
    for key, value in (config or {}).items():
        settings.pop(key, None) if value is None else settings.update({key: value})
    (target / "config.json").write_text(json.dumps(settings))
    given = json.loads((folder / "generation_config.json").read_text()) if generation is None else generation
    if given:
        (target / "generation_config.json").write_text(json.dumps(given))
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return target


@pytest.mark.parametrize("name", FAMILIES)
def test_reading_settings_equals_loading(name: str, saved: dict[str, Path]) -> None:
    loaded = load_model(saved[name])
    assert read_model_config(saved[name]) == (loaded.config, loaded.generation)
    assert loaded.path == saved[name]
    assert loaded.name == str(saved[name])
    assert loaded.generation == json.loads((saved[name] / "generation_config.json").read_text())


def test_settings_of_marian(saved: dict[str, Path]) -> None:
    config, generation = read_model_config(saved["marian_separate"])
    assert (config.family, config.source_vocab_size, config.target_vocab_size) == ("marian", 53, 50)
    assert (config.pad_token_id, config.decoder_start_token_id, config.eos_token_ids) == (49, 49, (0,))
    assert (config.max_source_positions, config.max_target_positions) == (128, 128)
    assert (config.shares_vocabulary, config.ties_output, config.embedding_scale) == (False, True, 4.0)
    assert generation["bad_words_ids"] == [[49]]


def test_reading_settings_needs_no_torch(saved: dict[str, Path]) -> None:
    code = (
        "import sys; from spec2seq.weights import read_model_config; "
        f"config, _ = read_model_config({str(saved['t5_v1_1'])!r}); "
        "print(config.family, config.ties_output, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["t5", "False", "False"]


def test_generation_settings_in_config_json(saved: dict[str, Path], tmp_path: Path) -> None:
    """Without a generation_config.json its keys are read from config.json, and only they."""
    keys = {"num_beams": 4, "max_length": 33, "length_penalty": 2.0, "early_stopping": True, "forced_bos_token_id": 0}
    folder = _copy(saved["bart"], tmp_path, config={**keys, "no_repeat_ngram_size": None}, generation={})
    config, generation = read_model_config(folder)
    assert {key: generation[key] for key in keys} == keys
    assert generation["decoder_start_token_id"] == config.decoder_start_token_id == 2
    assert not generation.keys() & {
        "d_model",
        "dropout",
        "model_type",
        "vocab_size",
        "architectures",
        "task_specific_params",
    }


@pytest.mark.parametrize(
    ("name", "config", "generation", "expected"),
    [
        ("bart", {}, {"decoder_start_token_id": 7}, 7),
        ("bart", {"decoder_start_token_id": 5}, {"eos_token_id": 2}, 5),
        ("bart", {"decoder_start_token_id": None}, {"eos_token_id": 2}, 2),  # BART's default
        ("mbart_cc25", {}, {"eos_token_id": 2}, -1),
        ("mbart_50", {}, {"eos_token_id": 2}, 2),
        ("t5", {"decoder_start_token_id": None}, {"eos_token_id": 1}, 0),
        ("pegasus", {"decoder_start_token_id": None}, {"eos_token_id": 1}, 0),
    ],
)
def test_decoder_start(
    name: str, config: dict[str, Any], generation: Any, expected: int, saved: dict[str, Path], tmp_path: Path
) -> None:
    folder = _copy(saved[name], tmp_path, config=config, generation=generation)
    assert read_model_config(folder)[0].decoder_start_token_id == expected


def test_null_decoder_start_falls_back_to_bos(saved: dict[str, Path], tmp_path: Path) -> None:
    folder = _copy(saved["bart"], tmp_path, generation={"bos_token_id": 9})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "decoder_start_token_id": None}))
    assert read_model_config(folder)[0].decoder_start_token_id == 9


@pytest.mark.parametrize(
    ("generation", "expected"),
    [({"eos_token_id": [4, 6]}, (4, 6)), ({"eos_token_id": 4}, (4,)), ({"max_length": 9}, (2,)), ({}, (2,))],
)
def test_ends_of_sentence(generation: Any, expected: tuple[int, ...], saved: dict[str, Path], tmp_path: Path) -> None:
    folder = _copy(saved["bart"], tmp_path, generation=generation)
    assert read_model_config(folder)[0].eos_token_ids == expected


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("bart", {"model_type": "umt5"}, "type 'umt5'.*supported: bart, m2m_100, marian, mbart, mt5, pegasus, t5"),
        ("bart", {"model_type": "bert"}, "type 'bert'"),
        ("bart", {"model_type": None}, "type None"),
        ("t5", {"architectures": ["T5EncoderModel"]}, "is a T5EncoderModel, not an encoder-decoder"),
        ("bart", {"architectures": ["BartForSequenceClassification"]}, "is a BartForSequenceClassification"),
        ("bart", {"activation_function": "tanh"}, "activation 'tanh' of this bart model.*supported: relu, gelu"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "activation 'mish'"),
        ("t5", {"feed_forward_proj": "gated-gelu-twice"}, "feed_forward_proj='gated-gelu-twice'"),
    ],
)
def test_other_kinds_of_models(
    name: str, config: dict[str, Any], message: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    folder = _copy(saved[name], tmp_path, config=config)
    for read in (read_model_config, load_model):
        with pytest.raises(UnsupportedModelError, match=message):
            read(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"d_model": "wide"}, "d_model must be an integer, not 'wide'"),
        ({"encoder_attention_heads": 3}, "d_model=16 cannot be split into 3 heads"),
        ({"scale_embedding": 1}, "scale_embedding must be true or false, not 1"),
        ({"eos_token_id": "end"}, "eos_token_id must be one id or a list of ids, not 'end'"),
    ],
)
def test_settings_of_the_wrong_type(
    config: dict[str, Any], message: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    folder = _copy(saved["bart"], tmp_path, config=config, generation={"num_beams": 1})
    with pytest.raises(CheckpointError, match=message):
        read_model_config(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", r"empty \(0 bytes\)"), ('{"d_model": 16', "not valid JSON"), ("[1]", "a list instead of an object")],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_damaged_settings(file: str, content: str, message: str, saved: dict[str, Path], tmp_path: Path) -> None:
    folder = _copy(saved["bart"], tmp_path)
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_model_config(folder)
    assert str(folder / file) in str(caught.value)


def test_settings_that_are_not_utf8(saved: dict[str, Path], tmp_path: Path) -> None:
    folder = _copy(saved["bart"], tmp_path)
    (folder / "config.json").write_bytes(b'{"model_type": "b\xff"}')
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_model_config(folder)


def test_a_cut_off_header_is_noticed_without_loading(saved: dict[str, Path], tmp_path: Path) -> None:
    folder = _copy(saved["bart"], tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="no readable header"):
        read_model_config(folder)


def test_an_unknown_dtype(saved: dict[str, Path]) -> None:
    with pytest.raises(OptionError, match="dtype='int8' does not exist; use one of float32, bfloat16"):
        load_model(saved["bart"], "int8")


def test_a_folder_is_never_looked_up(saved: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert resolve_folder(str(saved["bart"])) == saved["bart"]
    monkeypatch.chdir(saved["bart"].parent)
    assert resolve_folder(saved["bart"].name) == Path(saved["bart"].name)
    for path in ("./no/such/folder", "/no/such", "a/b/c", "...", "~no-such-user/x", "with space"):
        with pytest.raises(ModelNotFoundError, match="there is no folder"):
            resolve_folder(path)
    with pytest.raises(ModelNotFoundError, match="is a file: give the folder"):
        resolve_folder(saved["bart"] / "config.json")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json: it is not a complete model folder"):
        load_model(tmp_path)


def test_downloads_take_one_kind_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], bool]] = []

    def snapshot(name: str, allow_patterns: list[str], local_files_only: bool) -> str:
        assert name == "someone/model"
        calls.append((allow_patterns, local_files_only))
        if any("bin" in pattern for pattern in allow_patterns):
            (tmp_path / "pytorch_model.bin").touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    assert resolve_folder("someone/model") == tmp_path
    assert ["model*.safetensors*" in patterns for patterns, _ in calls] == [True, False]
    assert ["pytorch_model*.bin*" in patterns for patterns, _ in calls] == [False, True]
    (tmp_path / "model.safetensors").touch()
    calls.clear()
    resolve_folder("someone/model")
    assert len(calls) == 1
    assert not calls[0][1]


@pytest.mark.parametrize(
    ("is_offline", "error", "message"),
    [
        (True, LocalEntryNotFoundError("no snapshot"), "was not downloaded before, and HF_HUB_OFFLINE is set"),
        (False, LocalEntryNotFoundError("no route"), "the Hub cannot be reached"),
        (False, HFValidationError("bad"), "the Hugging Face Hub has no model of that name"),
        (False, OSError("disk full"), "downloading it from the Hugging Face Hub failed: disk full"),
    ],
)
def test_a_model_that_cannot_be_had(
    is_offline: bool, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(*_: Any, local_files_only: bool, **__: Any) -> str:
        assert local_files_only is is_offline
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", is_offline)
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        load_model("someone/model")
    assert "someone/model is no folder here" in str(caught.value)
