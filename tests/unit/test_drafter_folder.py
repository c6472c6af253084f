"""Drafter folders come back as they were saved, refuse what is damaged, and know the model they were made for."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec2seq import Pipeline
from spec2seq.drafters.blockwise import BlockwiseDrafter
from spec2seq.drafters.feature import FeatureDrafter
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.drafters.spec import SpecDrafter
from spec2seq.errors import CheckpointError, DrafterMismatchError, OptionError, UnsupportedModelError
from spec2seq.pipelines.drafter_choice import own_drafter
from spec2seq.weights import load_model
from spec2seq.weights.drafter_folder import is_drafter_folder, load_drafter, save_drafter
from spec2seq.weights.fingerprints import VerifierFingerprint, weights_fingerprint
from tests.families import tiny_hf_model
from tests.tiny_drafters import tiny_blockwise_heads, tiny_drafter, tiny_feature_drafter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CARD = "# A drafter\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A verifier `bart` with a vocabulary file, and `drafter` made for it."""
    folder = tmp_path_factory.mktemp("models")
    tiny_hf_model("bart").save_pretrained(folder / "bart")
    write_vocabulary(folder / "bart", {f"w{i}": i for i in range(50)})
    model = load_model(folder / "bart")
    made_for = VerifierFingerprint.of(folder / "bart", model.config)
    save_drafter(folder / "drafter", tiny_drafter(), "tiny-bart", made_for, CARD)
    return folder


@pytest.fixture
def folder(models: Path, tmp_path: Path) -> Path:
    """A copy of the drafter, to be damaged."""
    return shutil.copytree(models / "drafter", tmp_path / "drafter")


def write_vocabulary(folder: Path, vocabulary: dict[str, int]) -> None:
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")


def change_settings(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))


@pytest.mark.parametrize("changes", [{}, {"positions": "relative", "ties_output": False, "has_output_bias": True}])
def test_what_was_saved_is_loaded(tmp_path: Path, models: Path, changes: dict[str, object]) -> None:
    network = tiny_drafter(changes, slot_token_id=3)
    made_for = load_drafter(models / "drafter").verifier
    save_drafter(tmp_path / "d", network, "some-model", made_for, CARD)
    loaded = load_drafter(tmp_path / "d")
    assert loaded.network.config == network.config
    mine, its = network.state_dict(), loaded.network.state_dict()
    assert mine.keys() == its.keys()
    assert all(torch.equal(mine[name], its[name]) for name in mine)
    assert (loaded.verifier_name, loaded.verifier, loaded.path) == ("some-model", made_for, tmp_path / "d")
    assert (tmp_path / "d" / "README.md").read_text() == CARD
    assert oct((tmp_path / "d" / "model.safetensors").stat().st_mode & 0o777) == "0o644"
    assert load_drafter(tmp_path / "d", "float64").network.dtype == torch.float64
    assert is_drafter_folder(tmp_path / "d")
    assert not is_drafter_folder(models / "bart")


@pytest.fixture(scope="module")
def on_states(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of drafters that compute with the verifier's own weights."""
    model, made_for = load_model(models / "bart"), load_drafter(models / "drafter").verifier
    folders = {}
    for kind, network in {
        "feature": tiny_feature_drafter(model.network, shortlist_size=40, bigram_candidates=6),
        "blockwise": tiny_blockwise_heads(model.network),
    }.items():
        folders[kind] = tmp_path_factory.mktemp("drafters") / kind
        save_drafter(folders[kind], network, "tiny-bart", made_for, CARD)
    return folders


@pytest.mark.parametrize("kind", ["feature", "blockwise"])
def test_what_is_the_verifiers_is_not_stored(kind: str, models: Path, on_states: dict[str, Path]) -> None:
    model = load_model(models / "bart")
    made = {"feature": tiny_feature_drafter, "blockwise": tiny_blockwise_heads}[kind]
    changes = {"shortlist_size": 40, "bigram_candidates": 6} if kind == "feature" else {}
    network, loaded = made(model.network, **changes), load_drafter(on_states[kind])
    assert loaded.network.config == network.config
    mine, its = network.state_dict(), loaded.network.state_dict()
    assert mine.keys() == its.keys()
    assert all(torch.equal(mine[name], its[name]) for name in mine)
    stored = load_file(on_states[kind] / "model.safetensors")
    assert stored.keys() == mine.keys()
    assert sum(tensor.numel() for tensor in stored.values()) < sum(p.numel() for p in model.network.parameters())
    assert json.loads((on_states[kind] / "config.json").read_text())["kind"] == kind


@pytest.mark.parametrize(("kind", "drafter"), [("feature", FeatureDrafter), ("blockwise", BlockwiseDrafter)])
def test_a_pipeline_takes_them_as_its_drafter(
    kind: str, drafter: type, models: Path, on_states: dict[str, Path]
) -> None:
    sources = [[5, 6, 7, 2], [9, 10, 2]]
    plain = Pipeline.from_pretrained(models / "bart", None, backend="torch").generate_ids(sources, num_beams=1)
    pipeline = Pipeline.from_pretrained(models / "bart", on_states[kind], backend="torch")
    assert pipeline.make_drafter is not None
    assert isinstance(pipeline.make_drafter(), drafter)
    fast = pipeline.generate_ids(sources, num_beams=1, num_draft_tokens=4)
    assert [result.token_ids for result in fast] == [result.token_ids for result in plain]
    assert fast[0].stats.num_drafted > 0


@pytest.mark.parametrize("kind", ["feature", "blockwise"])
def test_they_too_know_their_verifier(kind: str, models: Path, on_states: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    tiny_hf_model("bart", seed=1).save_pretrained(other)
    shutil.copy(models / "bart" / "vocab.json", other)
    with pytest.warns(UserWarning, match="outputs stay exact, fewer draft tokens may be accepted"):
        Pipeline.from_pretrained(other, on_states[kind], backend="torch")
    write_vocabulary(other, {f"w{i}": (i + 1) % 50 for i in range(50)})
    with pytest.raises(DrafterMismatchError, match=r"vocab\.json is another file"):
        Pipeline.from_pretrained(other, on_states[kind], backend="torch")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["config"].update(states="first"), "states cannot be 'first'"),
        (lambda s: s["config"].update(shortlist_size=51), "shortlist_size=51 is not allowed: use 1 to 50"),
        (lambda s: s["config"].update(bigram_rank=-1), "bigram_rank=-1 is not allowed"),
        (lambda s: s["config"].pop("width"), "config: width is missing"),
        (lambda s: s["config"]["verifier"].pop("d_model"), "config.verifier: d_model is missing"),
        (lambda s: s["config"].update(num_layers=3), r"lack layers\.2"),
    ],
)
def test_wrong_settings_of_a_feature_drafter_are_named(
    on_states: dict[str, Path], tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    folder = shutil.copytree(on_states["feature"], tmp_path / "drafter")
    change_settings(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_drafter(folder)


def test_how_far_blocks_survive_is_kept_and_known_to_the_drafter(tmp_path: Path, models: Path) -> None:
    folder, model = tmp_path / "drafter", load_model(models / "bart")
    survival = {2: (0.5, 0.25), 4: (0.6, 0.3, 0.2, 0.1)}
    made_for = load_drafter(models / "drafter").verifier
    for network in (tiny_drafter(), tiny_feature_drafter(model.network), tiny_blockwise_heads(model.network)):
        save_drafter(folder, network, "tiny-bart", made_for, CARD, survival)
        assert load_drafter(folder).survival == survival
        pipeline = Pipeline.from_pretrained(models / "bart", folder, backend="torch")
        assert pipeline.make_drafter is not None
        assert pipeline.make_drafter().survival == survival  # type: ignore[attr-defined]
    save_drafter(folder, tiny_drafter(), "tiny-bart", made_for, CARD)
    assert load_drafter(folder).survival is None


@pytest.mark.parametrize("wrong", [[0.5], {"two": [0.5]}, {"2": 0.5}, {"2": ["x"]}, {"2": []}, {"2": [1.5]}])
def test_survival_that_is_none_is_named(folder: Path, wrong: object) -> None:
    change_settings(folder, lambda settings: settings.update(survival=wrong))
    with pytest.raises(CheckpointError, match=r"config\.json: survival=.* restore the file"):
        load_drafter(folder)


def test_missing_and_unknown_tensors_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    weight = tensors.pop("copy_weight")
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match="lack copy_weight"):
        load_drafter(folder)
    save_file({**tensors, "copy_weight": weight, "extra.weight": weight.clone()}, path)
    with pytest.raises(CheckpointError, match=r"hold extra\.weight"):
        load_drafter(folder)
    save_file({**tensors, "copy_weight": weight[:3].contiguous()}, path)
    with pytest.raises(CheckpointError, match=r"copy_weight .* has shape \[3, 16\], .* asks for \[16, 16\]"):
        load_drafter(folder)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s.update(kind="oracle"), UnsupportedModelError, "kind 'oracle', which is not supported"),
        (lambda s: s.pop("config"), CheckpointError, "config must be a JSON object, not None"),
        (lambda s: s["config"].update(depth=3), CheckpointError, "config: depth is unknown"),
        (lambda s: s["config"].pop("block_size"), CheckpointError, "config: block_size is missing"),
        (lambda s: s["config"].update(block_size=999), CheckpointError, "block_size=999 does not fit the 40 positions"),
        (lambda s: s["config"].update(block_size=True), CheckpointError, "block_size cannot be True"),
        (lambda s: s["config"]["model"].update(norm="batch"), CheckpointError, "model: norm cannot be 'batch'"),
        (lambda s: s["config"]["model"].update(d_model="16"), CheckpointError, "model: d_model cannot be '16'"),
        (lambda s: s["config"]["model"].update(eos_token_ids=[2, "x"]), CheckpointError, "eos_token_ids cannot be"),
        (lambda s: s.pop("verifier"), CheckpointError, "verifier.fingerprint must be a JSON object"),
        (lambda s: s["verifier"]["fingerprint"].update(files={"a": 1}), CheckpointError, "files cannot be"),
    ],
)
def test_wrong_settings_are_named(
    folder: Path, change: Callable[[dict[str, Any]], object], error: type[Exception], message: str
) -> None:
    change_settings(folder, change)
    with pytest.raises(error, match=message):
        load_drafter(folder)


def test_an_unknown_dtype_is_refused(models: Path) -> None:
    with pytest.raises(OptionError, match="dtype='int3' does not exist"):
        load_drafter(models / "drafter", "int3")


def test_a_pipeline_takes_the_folder_as_its_drafter(models: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline = Pipeline.from_pretrained(models / "bart", models / "drafter")
    assert isinstance(pipeline.make_drafter(), SpecDrafter)
    sources = [[5, 6, 7, 2], [9, 10, 2]]
    plain = Pipeline.from_pretrained(models / "bart", None).generate_ids(sources, num_beams=1)
    fast = pipeline.generate_ids(sources, num_beams=1, num_draft_tokens=4)  # by itself it might draft nothing
    assert [result.token_ids for result in fast] == [result.token_ids for result in plain]
    assert fast[0].stats.num_drafted > 0
    with pytest.raises(OptionError, match="num_draft_tokens=41 exceeds the 40"):
        pipeline.generate_ids(sources, num_beams=1, num_draft_tokens=41)


def test_the_drafter_beside_the_model_is_the_default(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_drafter(models / "bart") == "prompt_lookup"
    model = shutil.copytree(models / "bart", tmp_path / "bart")
    shutil.copytree(models / "bart", tmp_path / "bart-drafter")  # a model is not taken for one
    assert own_drafter(model) == "prompt_lookup"
    shutil.rmtree(tmp_path / "bart-drafter")
    shutil.copytree(models / "drafter", tmp_path / "bart-drafter")
    monkeypatch.chdir(model)
    for path in (model, ".", "../bart"):
        assert isinstance(Pipeline.from_pretrained(path).make_drafter(), SpecDrafter)
    assert isinstance(Pipeline.from_pretrained(model, "prompt_lookup").make_drafter(), PromptLookupDrafter)


def test_a_drafter_is_no_model(models: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="is a drafter, not a model of its own"):
        Pipeline.from_pretrained(models / "drafter")


def test_another_vocabulary_is_refused_with_both_fingerprints(models: Path, tmp_path: Path) -> None:
    other = shutil.copytree(models / "bart", tmp_path / "other")
    write_vocabulary(other, {f"w{i}": (i + 1) % 50 for i in range(50)})
    made_for = load_drafter(models / "drafter").verifier
    found = VerifierFingerprint.of(other, load_model(other).config)
    assert made_for.vocabulary != found.vocabulary
    with pytest.raises(DrafterMismatchError, match=r"vocab\.json is another file") as caught:
        Pipeline.from_pretrained(other, models / "drafter")
    assert made_for.vocabulary in str(caught.value)
    assert found.vocabulary in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pad_token_id", 0, "pad_token_id is 1 in the drafter's card and 0 in the model"),
        ("decoder_start_token_id", 0, "decoder_start_token_id is 2 in the drafter's card and 0"),
        ("eos_token_id", 4, r"eos_token_ids is \(2,\) in the drafter's card and \(4,\)"),
    ],
)
def test_other_special_ids_are_refused(models: Path, tmp_path: Path, name: str, value: int, message: str) -> None:
    other = shutil.copytree(models / "bart", tmp_path / "other")
    for file in ("config.json", "generation_config.json"):
        settings = json.loads((other / file).read_text())
        (other / file).write_text(json.dumps({**settings, name: value}))
    with pytest.raises(DrafterMismatchError, match=message):
        Pipeline.from_pretrained(other, models / "drafter")


def test_a_vocabulary_written_differently_is_the_same(models: Path, tmp_path: Path) -> None:
    other = shutil.copytree(models / "bart", tmp_path / "other")
    (other / "vocab.json").write_text(json.dumps({f"w{i}": i for i in reversed(range(50))}, indent=4))
    (other / "spiece.model").write_bytes(b"a file that the card knows nothing of")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Pipeline.from_pretrained(other, models / "drafter")


def test_other_weights_warn(models: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    tiny_hf_model("bart", seed=1).save_pretrained(other)
    shutil.copy(models / "bart" / "vocab.json", other)
    with pytest.warns(UserWarning, match="was made for weights .* outputs stay exact") as caught:
        Pipeline.from_pretrained(other, models / "drafter")
    for one in (models / "bart", other):
        assert weights_fingerprint(one) in str(caught[0].message)


def test_the_fingerprint_of_weights_does_not_depend_on_the_file(models: Path, tmp_path: Path) -> None:
    expected = weights_fingerprint(models / "bart")
    model = tiny_hf_model("bart")
    half = tmp_path / "half"
    model.bfloat16().save_pretrained(half)
    assert weights_fingerprint(half) == expected
    pickled = shutil.copytree(models / "bart", tmp_path / "pickled")
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    assert weights_fingerprint(pickled) == expected
    assert weights_fingerprint(models / "bart") != weights_fingerprint(models / "drafter")


def test_fingerprints_compare_what_both_have() -> None:
    one = VerifierFingerprint(50, 50, 1, 2, (2,), {"a": "1", "b": "2"}, "x")
    assert one.difference(replace(one, files={"b": "2", "c": "3"}, weights="y")) is None
    assert one.difference(replace(one, files={"b": "3"})) == "b is another file"
    assert one.difference(replace(one, target_vocab_size=51)) == (
        "target_vocab_size is 50 in the drafter's card and 51 in the model"
    )
    assert one.vocabulary == replace(one, weights="y").vocabulary
