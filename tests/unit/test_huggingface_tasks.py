"""The pipelines that transformers 4 had: shapes of results, prefixes, languages, inputs of every kind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

import spec2seq
from spec2seq import Pipeline
from spec2seq.errors import CheckpointError, InputError, OptionError
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASKS = {
    "summarization": {"prefix": "summarize: ", "max_length": 12, "num_beams": 2, "early_stopping": True},
    "translation_en_to_de": {"prefix": "translate English to German: ", "max_length": 9},
    "translation_en_to_fr": {"prefix": "translate English to French: ", "max_length": 10},
}
pytestmark = pytest.mark.filterwarnings("ignore:drafter unused")


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 whose config.json names its tasks as the released ones do."""
    folder = tmp_path_factory.mktemp("models") / "t5"
    make_text_model("t5", folder, seed=44)  # what it says depends on text and prefix
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "task_specific_params": TASKS}))
    return folder


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "nllb"
    make_text_model("nllb", folder)
    return folder


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "marian"
    make_text_model("marian", folder)
    return folder


def by_transformers(folder: Path, text: str, **options: Any) -> str:
    """The text as version 4 made it: tokenizer, generate, decode."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = model.generate(**tokenizer(text, return_tensors="pt"), do_sample=False, **options)
    return str(tokenizer.decode(ids[0], skip_special_tokens=True))


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ("summarization", "summary_text"),
        ("translation_en_to_de", "translation_text"),
        ("text2text-generation", "generated_text"),
    ],
)
def test_tasks_and_their_prefixes(t5: Path, task: str, key: str) -> None:
    params = dict(TASKS.get(task, {"prefix": "", "max_length": 8}))
    prefix = str(params.pop("prefix"))
    expected = [by_transformers(t5, prefix + text, **params) for text in LINES[:3]]
    pipe = spec2seq.pipeline(task, t5, **({} if task in TASKS else {"max_length": 8}))
    assert pipe(LINES[0]) == [{key: expected[0]}]
    assert pipe(LINES[:3]) == [{key: text} for text in expected]
    assert len(set(expected)) == 3
    assert expected[0] != by_transformers(t5, LINES[0], **params) or not prefix
    longer = by_transformers(t5, prefix + LINES[0], **{**params, "max_length": 20})
    assert pipe(LINES[0], max_new_tokens=19) == [{key: longer}], "the call's limit stands above the task's"


def test_languages_choose_the_prefix(t5: Path) -> None:
    pipe = spec2seq.pipeline("translation", t5)
    outputs = []
    for language in ("de", "fr"):
        params: dict[str, Any] = dict(TASKS[f"translation_en_to_{language}"])
        expected = by_transformers(t5, params.pop("prefix") + LINES[0], **params)
        assert pipe(LINES[0], src_lang="en", tgt_lang=language) == [{"translation_text": expected}]
        fixed = spec2seq.pipeline("translation", t5, src_lang="en", tgt_lang=language)
        assert fixed(LINES[0]) == [{"translation_text": expected}]
        outputs.append(expected)
    assert outputs[0] != outputs[1]
    other = spec2seq.pipeline("translation_en_to_de", t5)(LINES[0], tgt_lang="fr")
    assert other == [{"translation_text": expected}], "a call's language stands above the task's"
    with pytest.raises(OptionError, match="target_lang='ro': this t5 model has no language codes"):
        pipe(LINES[0], src_lang="en", tgt_lang="ro")


def test_languages_of_the_tokenizer(nllb: Path) -> None:
    pipe = spec2seq.pipeline("translation", nllb, max_new_tokens=8)
    model = Pipeline.from_pretrained(nllb)
    expected = [
        model.generate(text, source_lang=source, target_lang=target, max_new_tokens=8)[0].text
        for text, source, target in zip(LINES, ["eng_Latn", "ita_Latn"], ["deu_Latn", "eng_Latn"], strict=False)
    ]
    assert pipe(LINES[0], src_lang="eng_Latn", tgt_lang="deu_Latn") == [{"translation_text": expected[0]}]
    both: dict[str, Any] = {"src_lang": ["eng_Latn", "ita_Latn"], "tgt_lang": ["deu_Latn", "eng_Latn"]}
    assert pipe(LINES[:2], **both) == [{"translation_text": text} for text in expected]
    assert pipe(LINES[:2], batch_size=1, **both) == [{"translation_text": text} for text in expected]
    named = spec2seq.pipeline("translation_eng_Latn_to_deu_Latn", nllb, max_new_tokens=8)
    assert named(LINES[0]) == [{"translation_text": expected[0]}]
    with pytest.raises(OptionError, match="target_lang='de' is not a language of this model; did you mean deu_Latn"):
        spec2seq.pipeline("translation_en_to_de", nllb)(LINES[0], src_lang="eng_Latn")


def test_a_named_pair_of_a_model_for_one_pair(marian: Path) -> None:
    pipe = spec2seq.pipeline("translation_en_to_it", marian, num_beams=1, max_new_tokens=8)
    assert pipe(LINES[0]) == [{"translation_text": by_transformers(marian, LINES[0], num_beams=1, max_new_tokens=8)}]


def test_several_outputs_per_text(marian: Path) -> None:
    pipe = spec2seq.pipeline("text2text-generation", marian, drafter=None, num_beams=3, max_new_tokens=8)
    one = pipe(LINES[0], num_return_sequences=2)
    two = pipe(LINES[:2], num_return_sequences=2)
    assert [len(records) for records in two] == [2, 2]
    assert two[0] == one
    assert isinstance(one, list)
    assert one[0] == pipe(LINES[:1])[0]  # type: ignore[index]
    assert one[0] != one[1]


class Column:
    """As a column of a dataset: a length and items, and no list."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.num_read = 0

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            self.num_read += 1
            yield text


def test_generators_and_datasets_are_read_as_needed(marian: Path) -> None:
    pipe = spec2seq.pipeline("translation", marian, num_beams=1, max_new_tokens=6)
    texts = [LINES[i % 3] for i in range(40)]
    expected = pipe(texts)
    column = Column(texts)
    outputs = pipe(column)
    assert column.num_read == 0
    first = next(outputs)  # type: ignore[arg-type]
    assert column.num_read == 32
    assert [first, *outputs] == [[record] for record in expected]
    stream = Column(texts)
    outputs = pipe(text for text in stream)
    next(outputs)  # type: ignore[arg-type]
    assert stream.num_read == 1, "nothing is read ahead: the next text may depend on the answer"
    outputs = pipe((text for text in stream), batch_size=3)
    next(outputs)  # type: ignore[arg-type]
    assert stream.num_read == 1 + 3
    assert pipe([]) == []


def test_truncation(marian: Path) -> None:
    text = " ".join(LINES[:5])
    pipe = spec2seq.pipeline("translation", marian, num_beams=1, max_new_tokens=6)
    model = Pipeline.from_pretrained(marian)
    with pytest.warns(UserWarning, match="truncated"):
        cut = pipe(text, truncation=True)
    with pytest.warns(UserWarning, match="truncated"):
        expected = model.generate(text, long_input="truncate", num_beams=1, max_new_tokens=6)[0].text
    assert cut == [{"translation_text": expected}]
    assert pipe(text) == [{"translation_text": model.generate(text, num_beams=1, max_new_tokens=6)[0].text}]
    with pytest.raises(InputError, match="but the model takes at most"):
        pipe(text, truncation="do_not_truncate")


def test_a_loaded_pipeline_is_used_as_it_is(marian: Path) -> None:
    model = Pipeline.from_pretrained(marian, drafter=None)
    assert spec2seq.pipeline("translation", model).model is model


def test_a_prefix_for_all_tasks(tmp_path: Path, t5: Path) -> None:
    for file in t5.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((t5 / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "prefix": "say: "}))
    expected = by_transformers(t5, f"say: {LINES[0]}", max_new_tokens=6)
    pipe = spec2seq.pipeline("text2text-generation", tmp_path, max_new_tokens=6)
    assert pipe(LINES[0]) == [{"generated_text": expected}]
    (tmp_path / "config.json").write_text(json.dumps({**config, "task_specific_params": {"summarization": 3}}))
    with pytest.raises(CheckpointError, match="task_specific_params an object of objects"):
        spec2seq.pipeline("summarization", tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "task_specific_params": {"summarization": {"zork": 3}}})
    )
    with pytest.raises(OptionError, match="in the checkpoint's task_specific_params for summarization: unknown option"):
        spec2seq.pipeline("summarization", tmp_path)(LINES[0])


def test_wrong_calls_are_named(marian: Path) -> None:
    with pytest.raises(OptionError, match="task='ner' does not exist; use translation, summarization, text2text"):
        spec2seq.pipeline("ner", marian)
    pipe = spec2seq.pipeline("translation", marian, num_beams=1)
    with pytest.raises(InputError, match=r"an input is a dict with id, text; pass its text, as in \(row\['text'\] for"):
        next(pipe([{"id": 1, "text": "x"}].__iter__()))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="inputs is a int; pass a text"):
        pipe(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="batch_size=0 is not allowed"):
        pipe("x", batch_size=0)
    with pytest.raises(OptionError, match="truncation='maybe' is not allowed"):
        pipe("x", truncation="maybe")
    with pytest.raises(OptionError, match=r"num_beam=3.*num_beams"):
        pipe("x", num_beam=3)  # type: ignore[call-arg]
