"""Text in, text out: equal to transformers' tokenizer, generate and decode, whatever lies around it."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec2seq import GenerationOptions, Pipeline
from spec2seq.errors import (
    DrafterMismatchError,
    InputError,
    ModelNotFoundError,
    NumericsError,
    OptionError,
    Spec2SeqError,
)
from spec2seq.generation_options import OPTION_NAMES
from spec2seq.pipelines.arguments import GenerationArguments
from tests.text_models import LINES, TEXT_FAMILIES, make_text_model

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [LINES[0], "Libraries", "10 files, 25 tools!", LINES[5]]
# source and target language of the families that have them, with what transformers' generate must be told
LANGUAGES = {
    "mbart_cc25": ("en_XX", "ro_RO"),
    "mbart_50": ("it_IT", "gl_ES"),
    "nllb": ("ita_Latn", "deu_Latn"),
    "m2m100": ("en", "it"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in TEXT_FAMILIES:
        made[name] = tmp_path_factory.mktemp("models") / name
        make_text_model(name, made[name])
    return made


@pytest.fixture(scope="module")
def marian(folders: dict[str, Path]) -> Pipeline:
    return Pipeline.from_pretrained(folders["marian"])


class Reference:
    """transformers' own way from text to text, one text at a time."""

    def __init__(self, folder: Path, source_lang: str | None = None, target_lang: str | None = None) -> None:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        self.model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder, **({"src_lang": source_lang} if source_lang else {}))
        self.said: dict[str, int] = {}
        if target_lang:
            name = "m2m100" if hasattr(self.tokenizer, "get_lang_id") else ""
            token_id = (
                self.tokenizer.get_lang_id(target_lang) if name else self.tokenizer.convert_tokens_to_ids(target_lang)
            )
            is_start = type(self.tokenizer).__name__ == "MBartTokenizer"
            self.said = {"decoder_start_token_id" if is_start else "forced_bos_token_id": token_id}

    def ids(self, text: str, **options: Any) -> list[list[int]]:
        """What generate returns after the start token, without padding, best first."""
        encoded = self.tokenizer(text, return_tensors="pt")
        rows = self.model.generate(**encoded, **{"max_new_tokens": 20, **options}, **self.said)[:, 1:].tolist()
        pad, eos = self.model.config.pad_token_id, self.model.config.eos_token_id
        return [row[: row.index(eos) + 1] if eos in row else [i for i in row if i != pad] for row in rows]

    def text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize("name", TEXT_FAMILIES)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_equals_transformers(folders: dict[str, Path], name: str, num_beams: int) -> None:
    source_lang, target_lang = LANGUAGES.get(name, (None, None))
    reference = Reference(folders[name], source_lang, target_lang)
    pipeline = Pipeline.from_pretrained(folders[name], drafter="prompt_lookup" if num_beams == 1 else None)
    results = pipeline.generate(
        TEXTS, source_lang=source_lang, target_lang=target_lang, num_beams=num_beams, max_new_tokens=20
    )
    expected = [reference.ids(text, num_beams=num_beams)[0] for text in TEXTS]
    assert [result.token_ids for result in results] == expected
    assert [result.text for result in results] == [reference.text(ids) for ids in expected]
    assert len({tuple(ids) for ids in expected}) > 2


def test_alternatives_equal_the_other_beams(folders: dict[str, Path]) -> None:
    reference = Reference(folders["t5"])
    pipeline = Pipeline.from_pretrained(folders["t5"], drafter=None)
    (result,) = pipeline.generate(TEXTS[0], num_beams=3, num_return_sequences=3, max_new_tokens=8, output_scores=True)
    expected = reference.ids(TEXTS[0], num_beams=3, num_return_sequences=3, max_new_tokens=8)
    assert [result.token_ids, *(other.token_ids for other in result.alternatives)] == expected
    assert [other.text for other in result.alternatives] == [reference.text(ids) for ids in expected[1:]]
    scores = [result.score, *(other.score for other in result.alternatives)]
    assert scores == sorted(scores, key=lambda score: -(score or 0.0))
    assert result.score is not None


def test_order_blanks_and_newlines(marian: Pipeline) -> None:
    texts = ["", TEXTS[0], " \t", f"{TEXTS[1]}\r\n\r\n{TEXTS[2]}\n", "\n", TEXTS[3]]
    seen: list[int] = []
    progress: list[tuple[int, int]] = []
    # with a fixed length of drafts the rounds do not depend on the clock
    options: Any = {"num_beams": 1, "max_new_tokens": 12, "num_draft_tokens": 4}
    results = marian.generate(
        texts,
        **options,
        on_result=lambda index, result: seen.append(index),
        on_progress=lambda done, total: progress.append((done, total)),
    )
    single = {text: marian.generate(text, **options)[0] for text in TEXTS}
    assert [result.text for result in results] == [
        "",
        single[TEXTS[0]].text,
        " \t",
        f"{single[TEXTS[1]].text}\r\n\r\n{single[TEXTS[2]].text}\n",
        "\n",
        single[TEXTS[3]].text,
    ]
    assert results[3].token_ids == single[TEXTS[1]].token_ids + single[TEXTS[2]].token_ids
    assert results[3].stats.num_rounds == single[TEXTS[1]].stats.num_rounds + single[TEXTS[2]].stats.num_rounds
    assert seen[:3] == [0, 2, 4], "blank texts are done at once"
    assert sorted(seen) == list(range(6))
    assert progress == [(i, 6) for i in range(1, 7)]


def test_blank_texts_never_reach_the_model(marian: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object) -> None:
        raise AssertionError(f"the model was called with {source}")

    monkeypatch.setattr(marian.verifier, "encode", refuse)
    assert [result.text for result in marian.generate(["", " ", "\n", "\t"])] == ["", " ", "\n", "\t"]
    assert marian.generate([]) == []
    assert marian.generate_ids([[], [marian.model.config.pad_token_id]])[1].token_ids == []


def test_long_texts_are_split_at_sentences(marian: Pipeline) -> None:
    limit = marian.model.config.max_source_positions or 0
    text = " ".join(LINES[:5])
    assert len(marian.tokenizer.encode([text])[0]) > limit
    (result,) = marian.generate(text, num_beams=1, max_new_tokens=10)
    parts = marian.generate(LINES[:5], num_beams=1, max_new_tokens=10)
    assert result.text == " ".join(part.text for part in parts)
    assert result.finish_reason == ("length" if any(part.finish_reason == "length" for part in parts) else "eos")


def test_long_texts_truncated_or_refused(marian: Pipeline, folders: dict[str, Path]) -> None:
    reference, limit = Reference(folders["marian"]), marian.model.config.max_source_positions
    text = " ".join(LINES[:5])
    with pytest.warns(UserWarning, match=f"text 1 is longer than the model's {limit} tokens and was truncated"):
        (result,) = marian.generate(text, long_input="truncate", num_beams=1, max_new_tokens=10)
    ids = reference.tokenizer([text], truncation=True, max_length=limit)["input_ids"]
    expected = reference.model.generate(torch.tensor(ids), num_beams=1, max_new_tokens=10)[0, 1:].tolist()
    assert result.token_ids == expected
    with pytest.raises(InputError, match=f"text 1 has .* tokens, but the model takes at most {limit}"):
        marian.generate(text, long_input="error")


def test_twenty_thousand_characters_without_a_space(marian: Pipeline) -> None:
    (result,) = marian.generate("library" * 2900, num_beams=1, max_new_tokens=2)
    limit = marian.model.config.max_source_positions or 1
    assert result.stats.num_tokens > 2 * 5000 / limit
    assert result.stats.num_tokens == len(result.token_ids)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("gives_mask", [False, True])
def test_ids_in_and_out(folders: dict[str, Path], side: str, gives_mask: bool) -> None:
    reference = Reference(folders["t5"])
    reference.tokenizer.padding_side = side
    batch = reference.tokenizer(TEXTS, padding=True, return_tensors="pt")
    pipeline = Pipeline.from_pretrained(folders["t5"])
    mask = batch["attention_mask"] if gives_mask else None
    results = pipeline.generate_ids(batch["input_ids"], mask, max_new_tokens=20)
    expected = [reference.ids(text)[0] for text in TEXTS]
    assert [result.token_ids for result in results] == expected
    assert [result.text for result in results] == [""] * len(TEXTS)
    rows = reference.tokenizer(TEXTS)["input_ids"]
    assert [result.token_ids for result in pipeline.generate_ids(rows, max_new_tokens=20)] == expected


def test_ids_need_no_tokenizer(folders: dict[str, Path], tmp_path: Path) -> None:
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((folders["t5"] / file).read_bytes())
    pipeline = Pipeline.from_pretrained(tmp_path)
    (result,) = pipeline.generate_ids([[5, 6, 7, 1]], max_new_tokens=5)
    assert (
        result.token_ids
        == Pipeline.from_pretrained(folders["t5"]).generate_ids([[5, 6, 7, 1]], max_new_tokens=5)[0].token_ids
    )
    with pytest.raises(ModelNotFoundError, match="no tokenizer"):
        pipeline.generate("text")


def test_languages_one_by_one(folders: dict[str, Path]) -> None:
    pipeline = Pipeline.from_pretrained(folders["mbart_cc25"])
    sources, targets = ["en_XX", "it_IT", "en_XX"], ["ro_RO", "ro_RO", "it_IT"]
    results = pipeline.generate(TEXTS[:3], source_lang=sources, target_lang=targets, num_beams=1, max_new_tokens=10)
    for text, source, target, result in zip(TEXTS, sources, targets, results, strict=False):
        reference = Reference(folders["mbart_cc25"], source, target)
        assert result.token_ids == reference.ids(text, num_beams=1, max_new_tokens=10)[0]
    with pytest.raises(OptionError, match="target_lang is missing"):
        pipeline.generate(TEXTS)
    with pytest.raises(OptionError, match="starts its output with a language code; pass target_lang"):
        pipeline.generate_ids([[5, 6, 2]])
    ids = pipeline.tokenizer.encode(TEXTS[:1], "en_XX")
    (result,) = pipeline.generate_ids(ids, target_lang="ro_RO", num_beams=1, max_new_tokens=10)
    assert result.token_ids == results[0].token_ids


def test_samples_follow_their_seed(marian: Pipeline) -> None:
    said = {"num_beams": 1, "do_sample": True, "max_new_tokens": 10, "top_k": 0}
    one = marian.generate(TEXTS, **said, seed=7, num_return_sequences=2)  # type: ignore[arg-type]
    plain = marian.generate(TEXTS, **said, seed=7, num_draft_tokens=0, num_return_sequences=2)  # type: ignore[arg-type]
    assert [result.token_ids for result in one] == [result.token_ids for result in plain]
    assert [result.alternatives for result in one] == [result.alternatives for result in plain]
    assert any(result.alternatives[0].token_ids != result.token_ids for result in one)
    assert [result.seed for result in one] == [7] * len(TEXTS)
    free = marian.generate(TEXTS, **said)  # type: ignore[arg-type]
    assert len({result.seed for result in free}) == len(TEXTS)


@pytest.mark.parametrize("drafter", [None, "prompt_lookup", "folder"])
def test_every_drafter_gives_the_same_text(folders: dict[str, Path], drafter: str | None, marian: Pipeline) -> None:
    pipeline = Pipeline.from_pretrained(folders["marian"], folders["marian"] if drafter == "folder" else drafter)
    results = pipeline.generate(LINES, num_beams=1, max_new_tokens=15)
    plain = marian.generate(LINES, num_beams=1, max_new_tokens=15, num_draft_tokens=0)
    assert [result.token_ids for result in results] == [result.token_ids for result in plain]
    accepted = sum(result.stats.num_accepted for result in results)
    assert accepted > 0 if drafter == "folder" else accepted >= 0
    assert all(result.stats.num_drafted == 0 for result in plain)
    if drafter == "folder":
        assert all(result.stats.acceptance_rate == 1.0 for result in results), "the model is its own drafter here"


def test_drafters_that_do_not_fit(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DrafterMismatchError, match=r"source_vocab_size is .* in the drafter and .* in the model"):
        Pipeline.from_pretrained(folders["marian"], folders["nllb"])
    for file in folders["marian"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    vocab = (tmp_path / "vocab.json").read_text()
    swapped = vocab.replace('"e"', '"#"').replace('"t"', '"e"').replace('"#"', '"t"')
    assert swapped != vocab
    (tmp_path / "vocab.json").write_text(swapped)
    with pytest.raises(DrafterMismatchError, match=r"vocab.json has fingerprint [0-9a-f]{12} in the drafter and"):
        Pipeline.from_pretrained(folders["marian"], tmp_path)
    (tmp_path / "vocab.json").write_text(vocab.replace(", ", ",\n "))
    assert Pipeline.from_pretrained(folders["marian"], tmp_path).make_drafter is not None


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"drafter": "prompt_lokup"}, "drafter='prompt_lokup' is neither .* did you mean 'prompt_lookup'"),
        ({"backend": "tensorrt"}, "backend='tensorrt' does not exist; use torch, openvino or auto"),
        ({"device": "gpu7"}, "device='gpu7' does not exist"),
        ({"num_threads": 0}, "num_threads=0 is not allowed"),
    ],
)
def test_wrong_settings_are_named(folders: dict[str, Path], said: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Pipeline.from_pretrained(folders["t5"], **said)


def test_wrong_options_are_named(marian: Pipeline) -> None:
    with pytest.raises(OptionError, match=r"num_beam=3.*num_beams"):
        marian.generate("x", num_beam=3)  # type: ignore[misc]  # the point of the test
    with pytest.raises(OptionError, match="num_draft_tokens=5000 exceeds the"):
        marian.generate("x", num_beams=1, num_draft_tokens=5000)
    with pytest.raises(OptionError, match="batch_tokens=0 is not allowed"):
        marian.generate("x", batch_tokens=0)
    with pytest.raises(InputError, match=r"texts\[1\] is a bytes, not a str"):
        marian.generate(["x", b"y"])  # type: ignore[list-item]


def test_public_names_load_when_they_are_used() -> None:
    import spec2seq

    code = (
        "import sys, spec2seq\n"
        "spec2seq.OptionError, spec2seq.GenerationOptions, spec2seq.__version__\n"
        "assert 'torch' not in sys.modules\n"
        "print(sorted(set(dir(spec2seq)) - set(dir(type(spec2seq))))[:2])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['Alternative', 'CheckpointError']\n"
    assert spec2seq.Pipeline is Pipeline
    for name in spec2seq._HOMES:
        assert getattr(spec2seq, name).__name__ == name
    with pytest.raises(AttributeError, match="'spec2seq' has no attribute 'Pipelin'"):
        _ = spec2seq.Pipelin  # type: ignore[attr-defined]  # the point of the test


def test_options_arguments_beat_the_object_and_the_checkpoint(marian: Pipeline) -> None:
    assert marian.options().num_beams == 4
    shared = GenerationOptions(num_beams=3, max_new_tokens=7)
    resolved = marian.options(shared, num_beams=2)
    assert (resolved.num_beams, resolved.max_new_tokens) == (2, 7)
    assert marian.options(num_beams=None).num_beams == 4
    assert sorted(GenerationArguments.__annotations__) == sorted(OPTION_NAMES)


def test_beams_say_that_the_drafter_is_unused(folders: dict[str, Path], marian: Pipeline) -> None:
    with pytest.warns(UserWarning, match=r"drafter unused: num_beams=4 .*--num-beams 1 .*speculative greedy"):
        marian.generate("x", max_new_tokens=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Pipeline.from_pretrained(folders["marian"], drafter=None).generate("x", max_new_tokens=3)
        marian.generate("x", num_beams=1, max_new_tokens=3)


def test_speculative_beams_give_the_texts_and_scores_of_plain_ones(marian: Pipeline) -> None:
    options: GenerationArguments = {"num_beams": 3, "num_return_sequences": 2, "output_scores": True}
    with pytest.warns(UserWarning, match=r"--speculative-beams \(speculative_beams=True\) drafts for the same beams"):
        plain = marian.generate(TEXTS, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = marian.generate(TEXTS, speculative_beams=True, **options)
    for mine, theirs in zip(results, plain, strict=True):
        assert (mine.text, mine.token_ids) == (theirs.text, theirs.token_ids)
        assert mine.score == pytest.approx(theirs.score, abs=1e-4)
        for one, other in zip(mine.alternatives, theirs.alternatives, strict=True):
            assert one.token_ids == other.token_ids
            assert one.score == pytest.approx(other.score, abs=1e-4)
    assert sum(result.stats.num_drafted for result in results) > 0 == sum(result.stats.num_drafted for result in plain)
    assert sum(r.stats.num_rounds + r.stats.num_free_steps for r in results) == sum(r.stats.num_rounds for r in plain)


def test_torch_settings_are_the_callers(folders: dict[str, Path]) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    pipeline = Pipeline.from_pretrained(folders["t5"], num_threads=threads + 1)
    inside: list[int] = []
    pipeline.generate(TEXTS, max_new_tokens=5, on_progress=lambda done, total: inside.append(torch.get_num_threads()))
    assert inside == [threads + 1] * len(TEXTS)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_threads_take_turns(folders: dict[str, Path]) -> None:
    pipeline = Pipeline.from_pretrained(folders["nllb"])
    expected = {
        language: pipeline.generate(TEXTS, source_lang=language, target_lang="deu_Latn", max_new_tokens=10)
        for language in ("eng_Latn", "ita_Latn")
    }
    got: dict[str, list[str]] = {}

    def work(language: str) -> None:
        results = pipeline.generate(TEXTS, source_lang=language, target_lang="deu_Latn", max_new_tokens=10)
        got[language] = [result.text for result in results]

    threads = [threading.Thread(target=work, args=(language,)) for language in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {language: [result.text for result in results] for language, results in expected.items()}


def test_nan_ends_one_text_and_leaves_the_others(folders: dict[str, Path], tmp_path: Path) -> None:
    source = folders["marian_separate"]
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    healthy = Pipeline.from_pretrained(source)
    weights = load_file(tmp_path / "model.safetensors")
    clean, broken = (set(healthy.tokenizer.encode([text])[0]) for text in ("10 files Libraries", "25"))
    poisoned = min(broken - clean)
    weights["model.encoder.embed_tokens.weight"][poisoned] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    texts = ["10 files", "25", "Libraries"]
    with pytest.raises(NumericsError, match="text 2: the model produced NaN") as raised:
        Pipeline.from_pretrained(tmp_path).generate(texts, num_beams=1, max_new_tokens=10)
    expected = healthy.generate(texts, num_beams=1, max_new_tokens=10)
    results = raised.value.results
    assert [result and result.token_ids for result in results] == [expected[0].token_ids, None, expected[2].token_ids]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_too_little_memory_says_what_to_do(
    folders: dict[str, Path], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline.from_pretrained(folders["t5"])

    def fail(source: object) -> None:
        raise error

    monkeypatch.setattr(pipeline.verifier, "encode", fail)
    with pytest.raises(
        Spec2SeqError, match="not enough memory for batches of batch_tokens=4000; use fewer, such as 1000"
    ):
        pipeline.generate("x", batch_tokens=4000)


def test_other_failures_are_not_taken_for_memory(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline.from_pretrained(folders["t5"])

    def fail(source: object) -> None:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(pipeline.verifier, "encode", fail)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        pipeline.generate("x")
