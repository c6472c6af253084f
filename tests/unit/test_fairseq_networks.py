"""Networks built from fairseq's checkpoints compute what transformers computes with the same weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spec2seq import Pipeline
from spec2seq.errors import (
    CheckpointError,
    DrafterMismatchError,
    ModelNotFoundError,
    OptionError,
    UnsupportedModelError,
)
from spec2seq.weights.fairseq import FairseqSources, convert_fairseq
from spec2seq.weights.fairseq_checkpoint import read_checkpoint
from tests.fairseq_files import transformer_settings, write_checkpoint, write_dictionary
from tests.families import tiny_hf_model

PAIR = Path(__file__).parents[1] / "fixtures" / "fairseq_pair"
SYMBOLS = [f"w{i}" for i in range(46)]  # with the special ones the 50 ids of the tiny models
SOURCES = [[0, 5, 9, 30, 12, 2], [7, 2], [0, 44, 44, 21, 2]]

BART = {
    "arch": "bart_base",
    "layernorm_embedding": True,
    "no_scale_embedding": True,
    "decoder_ffn_embed_dim": 24,
    "max_source_positions": 128,
    "max_target_positions": 128,
}
M2M100 = {
    "arch": "transformer_wmt_en_de_big_t2t",
    "activation_fn": "relu",
    "encoder_learned_pos": False,
    "decoder_learned_pos": False,
    "encoder_normalize_before": True,
    "decoder_normalize_before": True,
    "decoder_ffn_embed_dim": 24,
    "max_source_positions": 128,
    "max_target_positions": 128,
}


def fairseq_tensors(model: Any) -> dict[str, Tensor]:
    """The weights of a transformers model by fairseq's names, with the extras that fairseq stores."""
    tensors = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    tensors["decoder.output_projection.weight"] = tensors.pop("lm_head.weight")
    extras = {"encoder.version": torch.tensor([3.0]), "decoder.version": torch.tensor([3.0])}
    if not any("embed_positions" in name for name in tensors):
        extras |= {f"{side}.embed_positions._float_tensor": torch.zeros(1) for side in ("encoder", "decoder")}
    return extras | {
        name: tensor for name, tensor in tensors.items() if name not in ("shared.weight", "final_logits_bias")
    }


def write_dictionaries(folder: Path, symbols: list[str] = SYMBOLS) -> None:
    for language in ("xx", "yy"):
        write_dictionary(folder / f"dict.{language}.txt", symbols)


def convert(folder: Path, output: str = "out") -> Path:
    drafter = folder / "drafter.pt"
    sources = FairseqSources(folder / "verifier.pt", drafter if drafter.exists() else None, folder, None)
    convert_fairseq(sources, folder / output, is_tokenised=True)
    return folder / output


@pytest.mark.parametrize(("family", "settings"), [("bart", BART), ("m2m100", M2M100)])
def test_converted_models_generate_as_in_transformers(tmp_path: Path, family: str, settings: dict[str, object]) -> None:
    model = tiny_hf_model(family)
    if family == "bart":
        model.final_logits_bias.zero_()
    for name in ("forced_bos_token_id", "forced_eos_token_id", "no_repeat_ngram_size", "min_length"):
        setattr(model.generation_config, name, None)
    write_checkpoint(tmp_path / "verifier.pt", transformer_settings(**settings), fairseq_tensors(model))
    write_dictionaries(tmp_path)
    pipeline = Pipeline.from_pretrained(convert(tmp_path), None)
    for num_beams in (1, 3):
        ours = pipeline.generate_ids(SOURCES, max_new_tokens=12, num_beams=num_beams)
        for source, result in zip(SOURCES, ours, strict=True):
            options = {"max_new_tokens": 12, "num_beams": num_beams, "early_stopping": False, "length_penalty": 1.0}
            expected = model.generate(torch.tensor([source]), max_length=None, **options)[0, 1:].tolist()
            assert result.token_ids == expected
    assert len({tuple(result.token_ids) for result in ours}) == len(SOURCES)


def damaged_pair(tmp_path: Path, name: str, change: Any) -> Path:
    """A folder with the pair of the fixture, one of its checkpoints written anew with changed settings and tensors."""
    folder = tmp_path / "damaged"
    shutil.copytree(PAIR, folder)
    stored = read_checkpoint(folder / f"{name}.pt")
    # copies: what was read is the file itself, which is about to be overwritten
    settings, tensors = dict(stored.settings), {key: tensor.clone() for key, tensor in stored.tensors.items()}
    change(settings, tensors)
    write_checkpoint(folder / f"{name}.pt", settings, tensors)
    return folder


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("verifier", lambda s, t: s.update(arch="fconv"), UnsupportedModelError, "'fconv' for a verifier is not"),
        ("verifier", lambda s, t: s.update(arch="block"), UnsupportedModelError, "'block' for a verifier"),
        ("drafter", lambda s, t: s.update(arch="transformer"), UnsupportedModelError, "'transformer' for a drafter"),
        (
            "verifier",
            lambda s, t: s.update(adaptive_softmax_cutoff="100"),
            UnsupportedModelError,
            "adaptive_softmax_cutoff='100' is not supported",
        ),
        ("drafter", lambda s, t: s.update(src_embedding_copy=False), UnsupportedModelError, "src_embedding_copy=False"),
        ("drafter", lambda s, t: s.update(layernorm_embedding=True), UnsupportedModelError, "layernorm_embedding=True"),
        (
            "verifier",
            lambda s, t: s.update(encoder_normalize_before=True),
            UnsupportedModelError,
            "encoder_normalize_before=True with decoder_normalize_before=False",
        ),
        ("verifier", lambda s, t: s.update(activation_fn="glu"), UnsupportedModelError, "activation_fn='glu'"),
        ("verifier", lambda s, t: s.pop("encoder_layers"), CheckpointError, "encoder_layers is None"),
        ("drafter", lambda s, t: s.update(block_size=None), CheckpointError, "block_size is None"),
        ("verifier", lambda s, t: t.pop("encoder.layers.1.fc1.bias"), CheckpointError, r"lacks encoder.layers.1.fc1"),
        (
            "verifier",
            lambda s, t: t.update({"head.weight": t["encoder.version"]}),
            CheckpointError,
            "holds head.weight",
        ),
        ("drafter", lambda s, t: t.pop("decoder.copy_attn.weight"), CheckpointError, "lacks decoder.copy_attn.weight"),
        (
            "verifier",
            lambda s, t: s.update(encoder_ffn_embed_dim=33),
            CheckpointError,
            r"fc1.weight in .* has shape \[32, 16\], but its settings ask for \[33, 16\]",
        ),
        ("verifier", lambda s, t: s.update(max_target_positions=50), CheckpointError, "decoder.embed_positions.weight"),
        (
            "drafter",
            lambda s, t: t.update({"decoder.embed_tokens.weight": t["decoder.embed_tokens.weight"] + 1}),
            CheckpointError,
            "decoder.embed_tokens.weight and encoder.embed_tokens.weight in .* differ",
        ),
    ],
)
def test_what_cannot_be_converted_is_named(
    tmp_path: Path, name: str, change: Any, error: type[Exception], message: str
) -> None:
    folder = damaged_pair(tmp_path, name, change)
    with pytest.raises(error, match=message) as caught:
        convert(folder)
    assert str(folder / f"{name}.pt") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (folder / "out").exists()
    assert not list(folder.glob(".out*"))


def test_an_untied_output_is_kept(tmp_path: Path) -> None:
    def untie(settings: dict[str, object], tensors: dict[str, Tensor]) -> None:
        settings.update(share_all_embeddings=False, share_decoder_input_output_embed=False)
        tensors["decoder.output_projection.weight"] = -tensors["decoder.output_projection.weight"]

    verifier = Pipeline.from_pretrained(convert(damaged_pair(tmp_path, "verifier", untie))).verifier
    network = verifier.network
    assert torch.equal(network.output_weight, -network.decoder.embedding.tokens)


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        (SYMBOLS[:30], "40 source embeddings, but the source dictionary has 34 symbols"),
        (SYMBOLS, "40 source embeddings, but the source dictionary has 50 symbols"),
    ],
)
def test_a_dictionary_of_another_size_is_refused(tmp_path: Path, symbols: list[str], message: str) -> None:
    folder = Path(shutil.copytree(PAIR, tmp_path / "pair"))
    write_dictionaries(folder, symbols)
    with pytest.raises(CheckpointError, match=message):
        convert(folder)


def test_a_dictionary_in_another_order_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PAIR, tmp_path / "pair"))
    lines = (folder / "dict.xx.txt").read_text().splitlines(keepends=True)
    shuffled = "".join([*lines[:5], lines[6], lines[5], *lines[7:]])
    (folder / "dict.yy.txt").write_text(shuffled)
    with pytest.raises(CheckpointError, match=r"dict.yy.txt: line 7 counts 995 after 994: .* not in the order"):
        convert(folder)
    # a legal order, but not that of the other side, whose embedding is the same
    swapped = [line.split()[0] for line in [*lines[:5], lines[6], lines[5], *lines[7:]]]
    write_dictionary(folder / "dict.yy.txt", swapped)
    with pytest.raises(CheckpointError, match=r"one embedding for both .* differ from line 6 on"):
        convert(folder)


def test_missing_dictionaries_and_outputs_in_use_are_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PAIR, tmp_path / "pair"))
    (folder / "dict.yy.txt").rename(folder / "dict.zz.txt")
    with pytest.raises(ModelNotFoundError, match=r"has no dict.yy.txt.*there: dict.xx.txt, dict.zz.txt"):
        convert(folder)
    (folder / "dict.xx.txt").rename(folder / "dict.txt")
    (folder / "dict.zz.txt").unlink()
    output = convert(folder)  # one dictionary for both
    assert (output / "source.dict.txt").read_text() == (output / "target.dict.txt").read_text()
    with pytest.raises(OptionError, match=r"output .*out exists already"):
        convert(folder)
    with pytest.raises(OptionError, match=r"there is no folder .*nowhere"):
        convert(folder, "nowhere/out")


def test_a_drafter_of_another_dictionary_size_is_refused(tmp_path: Path) -> None:
    def shrink(settings: dict[str, object], tensors: dict[str, Tensor]) -> None:
        for name in [name for name, tensor in tensors.items() if tensor.shape[0] == 40]:
            tensors[name] = tensors[name][:39]

    with pytest.raises(CheckpointError, match=r"drafter\.pt has 39 source embeddings"):
        convert(damaged_pair(tmp_path, "drafter", shrink))


def test_a_converted_drafter_refuses_another_verifier(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(PAIR, tmp_path / "pair"))
    output = convert(folder)
    lines = (output / "target.dict.txt").read_text().replace("t1 ", "T1 ")
    (output / "target.dict.txt").write_text(lines)
    with pytest.raises(DrafterMismatchError, match=r"target\.dict\.txt is another file"):
        Pipeline.from_pretrained(output, output / "drafter")
