"""Text to ids and back, compared with transformers' own tokenizers."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest

from spec2seq.config import ModelConfig
from spec2seq.errors import CheckpointError, ModelNotFoundError, OptionError
from spec2seq.tokenization import TextTokenizer
from tests.text_models import TEXT_FAMILIES, make_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

MODEL_FAMILY = {"mbart_cc25": "mbart", "mbart_50": "mbart", "nllb": "m2m_100", "m2m100": "m2m_100"}
TEXTS = [
    "The small package contains the library.",
    "  Two  spaces , and a tab\tinside ",
    "10 files \U0001f600 e\u0301 ﬁle العربية",
    "x",
]


def model_config(family: str, decoder_start: int = 2, eos: int = 2) -> ModelConfig:
    return ModelConfig(
        family=family,
        source_vocab_size=200,
        target_vocab_size=200,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_heads=2,
        decoder_heads=2,
        head_dim=8,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        activation="relu",
        positions="learned",
        pad_token_id=1,
        decoder_start_token_id=decoder_start,
        eos_token_ids=(eos,),
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in TEXT_FAMILIES:
        folder = tmp_path_factory.mktemp(name)
        make_tokenizer(name, tmp_path_factory.mktemp("work")).save_pretrained(folder)
        made[name] = folder
    return made


def load(folders: dict[str, Path], name: str, **changes: Any) -> TextTokenizer:
    config = model_config(MODEL_FAMILY.get(name, name.split("_")[0]), **changes)
    return TextTokenizer.from_folder(folders[name], config)


def hf_tokenizer(folder: Path, **options: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, **options)


@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_ids_and_text_equal_transformers(folders: dict[str, Path], name: str) -> None:
    ours, theirs = load(folders, name), hf_tokenizer(folders[name])
    expected = theirs(TEXTS)["input_ids"]
    assert ours.encode(TEXTS) == expected
    assert len({len(ids) for ids in expected}) > 1
    for ids in expected:
        target_ids = [i for i in ids if i < 62] if name == "marian_separate" else ids
        assert ours.decode(target_ids) == theirs.decode(target_ids, skip_special_tokens=True)
    assert ours.encode([]) == []


@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_truncated_ids_keep_the_end_tokens(folders: dict[str, Path], name: str) -> None:
    ours, theirs = load(folders, name), hf_tokenizer(folders[name])
    expected = theirs(TEXTS, truncation=True, max_length=7)["input_ids"]
    assert ours.encode(TEXTS, max_length=7) == expected
    assert len(expected[0]) == 7
    assert (2 if name not in ("marian", "marian_separate", "t5") else theirs.eos_token_id) in expected[0]
    assert len(ours.encode(TEXTS[:1])[0]) > 7, "truncation must not stick to the tokenizer"


@pytest.mark.parametrize(
    ("name", "source_lang", "target_lang"),
    [
        ("mbart_cc25", "it_IT", "ro_RO"),
        ("mbart_50", "it_IT", "gl_ES"),
        ("nllb", "ita_Latn", "deu_Latn"),
        ("m2m100", "it", "de"),
    ],
)
def test_language_codes(folders: dict[str, Path], name: str, source_lang: str, target_lang: str) -> None:
    ours = load(folders, name, decoder_start=-1 if name == "mbart_cc25" else 2)
    theirs = hf_tokenizer(folders[name], src_lang=source_lang)
    assert ours.encode(TEXTS, source_lang) == theirs(TEXTS)["input_ids"]
    assert ours.encode(TEXTS, source_lang) != ours.encode(TEXTS)
    assert ours.encode(TEXTS) == hf_tokenizer(folders[name])(TEXTS)["input_ids"], "the default language comes back"
    start = ours.target_start(target_lang, has_default=False)
    token = f"__{target_lang}__" if name == "m2m100" else target_lang
    language_id = theirs.convert_tokens_to_ids(token)
    assert language_id not in (theirs.unk_token_id, None)
    expected = (language_id, None) if name == "mbart_cc25" else (None, language_id)
    assert (start.decoder_start, start.forced_first) == expected


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("mbart_cc25", "ro", "ro_RO"),
        ("mbart_50", "glES", "gl_ES"),
        ("nllb", "deu_latn", "deu_Latn"),
        ("nllb", "it", "ita_Latn"),
        ("nllb", "qqq", "known are deu_Latn, eng_Latn, ita_Latn"),
        ("m2m100", "de_DE", "de"),
    ],
)
def test_unknown_languages_name_close_ones(folders: dict[str, Path], name: str, code: str, hint: str) -> None:
    ours = load(folders, name)
    with pytest.raises(OptionError, match=hint) as raised:
        ours.target_start(code, has_default=True)
    assert f"target_lang={code!r}" in str(raised.value)
    with pytest.raises(OptionError, match=f"source_lang='{code}'.*{hint}"):
        ours.encode(["x"], code)


def test_a_missing_target_language_is_an_error_without_a_default(folders: dict[str, Path]) -> None:
    nllb = load(folders, "nllb")
    with pytest.raises(OptionError, match=r"target_lang is missing.*deu_Latn, eng_Latn, ita_Latn"):
        nllb.target_start(None, has_default=False)
    assert nllb.target_start(None, has_default=True).forced_first is None
    cc25 = load(folders, "mbart_cc25", decoder_start=-1)
    with pytest.raises(OptionError, match=r"ar_AR.*25 in all"):
        cc25.target_start(None, has_default=True)
    assert load(folders, "mbart_cc25", decoder_start=100).target_start(None, has_default=False).decoder_start is None


def test_families_without_languages_refuse_them(folders: dict[str, Path]) -> None:
    marian, t5 = load(folders, "marian"), load(folders, "t5")
    assert marian.languages == {}
    assert t5.languages == {}
    with pytest.raises(OptionError, match=r"marian model has no language codes.*>>fra<<"):
        marian.target_start("fra", has_default=False)
    with pytest.raises(OptionError, match="source_lang='en': this t5 model has no language codes; leave it out"):
        t5.encode(["x"], "en")
    assert t5.target_start(None, has_default=False).forced_first is None


def test_marian_language_codes_in_the_text(folders: dict[str, Path]) -> None:
    marian = load(folders, "marian")
    assert marian.split_language_code(">>fra<< Hello. World") == (">>fra<< ", "Hello. World")
    assert marian.split_language_code("a >>fra<< b") == ("", "a >>fra<< b")
    assert load(folders, "t5").split_language_code(">>fra<< Hello") == ("", ">>fra<< Hello")
    fra = hf_tokenizer(folders["marian"]).convert_tokens_to_ids(">>fra<<")
    assert marian.encode([">>fra<< Hello"])[0][0] == fra


@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_twenty_thousand_characters_without_a_space(folders: dict[str, Path], name: str) -> None:
    ours = load(folders, name)
    start = perf_counter()
    (ids,) = ours.encode(["library" * 2900])
    assert len(ids) > 5000
    assert perf_counter() - start < 5.0


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer.*tokenizer\.json.*generate_ids"):
        TextTokenizer.from_folder(tmp_path, model_config("t5"))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        ("tokenizer.json", b"", "is empty"),
        ("tokenizer.json", b'{"model": {"vo', "not complete JSON"),
        ("tokenizer_config.json", b'{"tokenizer_class": "No', "not complete JSON"),
    ],
)
def test_damaged_tokenizer_files_are_named(
    folders: dict[str, Path], tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    for source in folders["t5"].iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as raised:
        TextTokenizer.from_folder(tmp_path, model_config("t5"))
    assert str(tmp_path / file) in str(raised.value)


def test_a_damaged_sentencepiece_model_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    for source in folders["marian"].iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "source.spm").write_bytes(b"\x00\x01\x02 not a model")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        TextTokenizer.from_folder(tmp_path, replace(model_config("marian"), eos_token_ids=(0,)))


def test_marian_needs_no_sacremoses(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its normalizer is loaded by transformers and never called; without ours there would be a warning here."""
    from transformers import AutoTokenizer

    texts = [*TEXTS, "``x''  (a ) , 5 %  : b", "</s> x <unk> <pad>", "“q” … – \u00a0y", ""]
    expected = AutoTokenizer.from_pretrained(folders["marian"])(texts)["input_ids"]
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer = load(folders, "marian")
    assert tokenizer.encode(texts) == expected
