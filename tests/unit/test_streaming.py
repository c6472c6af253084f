"""Streams: the parts of an output, joined, are the output, and none is taken back; beginnings that the caller gives."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from spec2seq import Pipeline
from spec2seq.errors import InputError, NumericsError, OptionError
from spec2seq.pipelines.streaming import GrowingText
from tests.text_models import LINES, TEXT_FAMILIES, make_text_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LANGUAGES = {
    "mbart_cc25": ("en_XX", "ro_RO"),
    "mbart_50": ("it_IT", "gl_ES"),
    "nllb": ("ita_Latn", "deu_Latn"),
    "m2m100": ("en", "it"),
}
GREEDY: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 16}


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


def languages(name: str) -> dict[str, Any]:
    source_lang, target_lang = LANGUAGES.get(name, (None, None))
    return {"source_lang": source_lang, "target_lang": target_lang}


# ---------------------------------------------------------------- text that grows


def characters(table: dict[int, str]) -> Any:
    """A tokenizer whose ids are pieces of text."""
    return lambda ids: "".join(table[i] for i in ids)


def byte_fallback(ids: Sequence[int]) -> str:
    """Ids are bytes; a run that is no UTF-8 becomes one replacement character per byte, as in sentencepiece models."""
    try:
        return bytes(ids).decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(ids)


def cleaned(ids: Sequence[int]) -> str:
    """A tokenizer that takes spaces away before punctuation and n't, as transformers' cleaning does."""
    text = "".join(["do", " n", "'", "t", " stop", " .", "  now"][i] for i in ids)
    return text.replace(" .", ".").replace(" n't", "n't").replace(" ' ", "'")


def parts_of(decode: Any, ids: Sequence[int], step: int = 1) -> list[str]:
    text = GrowingText(decode)
    return [*(text.push(ids[i : i + step]) for i in range(0, len(ids), step)), text.finish()]


def test_words_are_held_until_they_are_whole() -> None:
    decode = characters({0: "trans", 1: "lation", 2: " of", 3: " a", 4: " word"})
    assert parts_of(decode, [0, 1, 2, 3, 4]) == ["", "", "", "translation", " of", " a word"]


def test_a_part_of_a_character_is_held() -> None:
    ids = list("a €, 你好 😀 b".encode())
    for step in (1, 2, 3, 7):
        parts = parts_of(byte_fallback, ids, step)
        assert "".join(parts) == "a €, 你好 😀 b"
        assert all("\ufffd" not in part for part in parts)
    assert parts_of(byte_fallback, list("你好".encode())[:5]) == ["", "", "", "", "", "\ufffd" * 5], "cut within 好"


def test_wide_characters_need_no_spaces() -> None:
    decode = characters(dict(enumerate("你好吗朋友")))
    assert parts_of(decode, [0, 1, 2, 3, 4]) == ["", "你", "好", "吗", "朋", "友"]


def test_spaces_that_cleaning_takes_away_are_held() -> None:
    for ids, text in (([0, 1, 2, 3, 4, 5], "don't stop."), ([0, 4, 5, 6], "do stop.  now"), ([0, 1, 4], "do n stop")):
        for step in (1, 2, 4):
            assert "".join(parts_of(cleaned, ids, step)) == text
    assert parts_of(cleaned, [0, 1, 2, 3, 4])[:4] == ["", "", "do", ""], "the n might be an n't"


def test_long_words_are_not_held_for_ever() -> None:
    decode = characters({0: "ไ"})
    parts = parts_of(decode, [0] * 50)
    assert parts[:33] == [""] * 33
    assert parts[33:50] == ["ไ"] * 17
    assert "".join(parts) == "ไ" * 50


def test_nothing_is_decoded_for_no_ids() -> None:
    assert GrowingText(characters({})).push([]) == ""


# ---------------------------------------------------------------- Pipeline.stream


@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_parts_make_up_the_final_text(folders: dict[str, Path], name: str) -> None:
    pipeline = Pipeline.from_pretrained(folders[name])
    for text in LINES[:3]:
        (result,) = pipeline.generate(text, **GREEDY, **languages(name))
        parts = list(pipeline.stream(text, **GREEDY, **languages(name)))
        assert "".join(parts) == result.text
        assert all(parts)
        words = result.text.split()
        if len(words) > 3:
            assert len(parts) > 1
            for i in range(1, len(parts)):
                assert parts[i][0].isspace(), "parts end with whole words"


def test_long_texts_are_told_piece_after_piece(marian: Pipeline) -> None:
    text = f"\n{' '.join(LINES[:5])}\r\n\n{LINES[5]}\n"
    (result,) = marian.generate(text, **GREEDY)
    parts = list(marian.stream(text, **GREEDY))
    assert "".join(parts) == result.text
    assert parts[0] == "\n"
    assert len(parts) >= 3
    assert "".join(marian.stream(" \n ", **GREEDY)) == " \n "
    assert list(marian.stream("", **GREEDY)) == []


def test_sampling_streams_the_seeds_text(marian: Pipeline) -> None:
    said: dict[str, Any] = {**GREEDY, "do_sample": True, "seed": 5}
    assert "".join(marian.stream(LINES[0], **said)) == marian.generate(LINES[0], **said)[0].text


def test_several_texts_at_once(marian: Pipeline) -> None:
    texts = [LINES[0], "", f"{LINES[1]}\n{LINES[2]}", "\n", LINES[3]]
    joined = [""] * len(texts)
    order = []
    for index, part in marian.stream_batch(texts, **GREEDY):
        joined[index] += part
        order.append(index)
    assert joined == [result.text for result in marian.generate(texts, **GREEDY)]
    assert order != sorted(order), "texts are told side by side"


def test_a_closed_stream_stops_working(marian: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    decode = marian.verifier.decode

    def count(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return decode(*arguments, **named)

    monkeypatch.setattr(marian.verifier, "decode", count)
    monkeypatch.setattr("spec2seq.decoding.loop.Decoder.cancel", cancelled := _Cancelled())
    stream = marian.stream_batch(LINES[:4], num_beams=1, max_new_tokens=30, num_draft_tokens=0)
    next(stream)
    num_calls = len(calls)
    stream.close()
    assert len(calls) == num_calls < 30
    assert cancelled.requests == [0, 1, 2, 3]
    assert marian.generate(LINES[0], **GREEDY)[0].text, "and the pipeline is free again"


class _Cancelled:
    def __init__(self) -> None:
        self.requests: list[int] = []

    def __call__(self, request: int) -> None:
        self.requests.append(request)


def test_other_calls_may_come_between_two_parts(marian: Pipeline) -> None:
    expected = marian.generate(LINES[0], **GREEDY)[0].text
    stream = marian.stream(LINES[0], **GREEDY)
    told = next(stream)
    got: list[str] = []
    other = threading.Thread(target=lambda: got.append(marian.generate(LINES[1], **GREEDY)[0].text))
    other.start()
    other.join(timeout=60)
    assert got == [marian.generate(LINES[1], **GREEDY)[0].text]
    assert told + "".join(stream) == expected


def test_what_cannot_be_streamed_is_refused_at_once(marian: Pipeline) -> None:
    with pytest.raises(OptionError, match="streaming does not go with num_beams=4"):
        marian.stream("x")
    with pytest.raises(OptionError, match="streaming does not go with num_return_sequences=2"):
        marian.stream("x", num_beams=1, do_sample=True, num_return_sequences=2)
    with pytest.raises(InputError, match="text is a list, not a str; pass several texts to stream_batch"):
        marian.stream(["x"])  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(OptionError, match=r"num_beam=3.*num_beams"):
        marian.stream("x", num_beam=3)  # type: ignore[call-arg]


def test_a_broken_text_ends_its_stream(folders: dict[str, Path], tmp_path: Path) -> None:
    for file in folders["t5"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["decoder.final_layer_norm.weight"][:] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(NumericsError, match="text 1: the model produced NaN"):
        list(Pipeline.from_pretrained(tmp_path).stream("10 files", max_new_tokens=4))


# ---------------------------------------------------------------- streamers of transformers


class Kept:
    """A streamer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[list[Any]] = []
        self.num_ends = 0

    def put(self, value: torch.Tensor) -> None:
        self.told.append(value.tolist())

    def end(self) -> None:
        self.num_ends += 1


@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_text_streamer_prints_the_final_text(
    folders: dict[str, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer, TextStreamer

    tokenizer = AutoTokenizer.from_pretrained(folders[name])
    pipeline = Pipeline.from_pretrained(folders[name])
    for text in LINES[:2]:
        streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        (result,) = pipeline.generate(text, streamer=streamer, **GREEDY, **languages(name))
        assert capsys.readouterr().out == result.text + "\n"
        assert result.text


def test_text_iterator_streamer_from_another_thread(folders: dict[str, Path], marian: Pipeline) -> None:
    from transformers import AutoTokenizer, TextIteratorStreamer

    tokenizer = AutoTokenizer.from_pretrained(folders["marian"])
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60, skip_special_tokens=True)
    thread = threading.Thread(target=lambda: marian.generate(LINES[0], streamer=streamer, **GREEDY))
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == marian.generate(LINES[0], **GREEDY)[0].text


def test_a_streamer_gets_the_prompt_and_then_the_tokens(marian: Pipeline) -> None:
    config, streamer = marian.model.config, Kept()
    (ids,) = marian.tokenizer.encode(LINES[:1])
    (result,) = marian.generate_ids([ids], streamer=streamer, **GREEDY)
    assert streamer.told[0] == [[config.decoder_start_token_id]]
    assert [token_id for part in streamer.told[1:] for token_id in part] == result.token_ids
    assert streamer.num_ends == 1


def test_a_streamer_always_ends(marian: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    streamer = Kept()
    assert marian.generate(" \n", streamer=streamer, **GREEDY)[0].text == " \n"
    assert (streamer.told, streamer.num_ends) == ([], 1)

    def fail(source: object) -> None:
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(marian.verifier, "encode", fail)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        marian.generate("x", streamer=streamer, **GREEDY)
    assert streamer.num_ends == 2


def test_what_a_streamer_cannot_take(marian: Pipeline) -> None:
    with pytest.raises(InputError, match=r"a streamer takes one input in one piece, and this call has 2 inputs"):
        marian.generate(["x", "y"], streamer=Kept(), **GREEDY)
    with pytest.raises(InputError, match=r"an input that is decoded in 2 pieces; use Pipeline\.stream"):
        marian.generate("x\ny", streamer=Kept(), **GREEDY)
    with pytest.raises(OptionError, match="streamer does not go with num_beams=4"):
        marian.generate("x", streamer=Kept())


# ---------------------------------------------------------------- beginnings given by the caller


def transformers_ids(folder: Path, source: list[int], prompt: list[int], **options: Any) -> list[int]:
    """What transformers' generate returns after the first token of the prompt."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    row: list[int] = model.generate(
        torch.tensor([source]),
        decoder_input_ids=torch.tensor([prompt]),
        decoder_start_token_id=prompt[0],
        do_sample=False,
        **options,
    )[0].tolist()
    return row[1:]


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", TEXT_FAMILIES)
def test_a_given_beginning_equals_decoder_input_ids(folders: dict[str, Path], name: str, num_beams: int) -> None:
    pipeline = Pipeline.from_pretrained(folders[name], drafter="prompt_lookup" if num_beams == 1 else None)
    said = {**languages(name), "num_beams": num_beams, "max_new_tokens": 9}
    (plain,) = pipeline.generate(LINES[0], **said)
    start = pipeline.tokenizer.target_start(said["target_lang"], has_default=True)
    first = pipeline.model.config.decoder_start_token_id if start.decoder_start is None else start.decoder_start
    beginning = pipeline.tokenizer.encode_target(["package"])[0]
    prompt = [first, *([] if start.forced_first is None else [start.forced_first]), *beginning]
    (source,) = pipeline.tokenizer.encode(LINES[:1], said["source_lang"])
    expected = transformers_ids(folders[name], source, prompt, num_beams=num_beams, max_new_tokens=9)
    (result,) = pipeline.generate(LINES[0], target_prefix="package", **said)
    assert result.token_ids == expected
    assert result.token_ids[: len(prompt) - 1] == prompt[1:]
    assert "package" in result.text
    assert result.stats.num_tokens == len(expected) - len(prompt) + 1 <= 9
    assert result.token_ids != plain.token_ids
    (by_ids,) = pipeline.generate(LINES[0], target_prefix=[beginning], **said)
    assert by_ids.token_ids == expected
    options = {option: value for option, value in said.items() if option != "source_lang"}
    (from_ids,) = pipeline.generate_ids([source], target_prefix=[prompt], **options)
    assert from_ids.token_ids == expected


def test_each_text_its_own_beginning(marian: Pipeline) -> None:
    texts, prefixes = [LINES[0], LINES[1], "", LINES[2]], ["This", None, "not used", [5, 6, 7]]
    results = marian.generate(texts, target_prefix=prefixes, **GREEDY)
    for text, prefix, result in zip(texts, prefixes, results, strict=True):
        alone = marian.generate(text, target_prefix=[prefix], **GREEDY)[0]
        assert result.token_ids == alone.token_ids
    assert results[0].text.startswith("This")
    assert results[1].token_ids == marian.generate(LINES[1], **GREEDY)[0].token_ids
    assert results[2].text == ""
    assert results[3].token_ids[:3] == [5, 6, 7]
    tensor = torch.tensor([[5, 6, 7]])
    assert marian.generate(LINES[2], target_prefix=tensor, **GREEDY)[0].token_ids == results[3].token_ids


def test_a_beginning_is_streamed_with_the_rest(marian: Pipeline) -> None:
    (result,) = marian.generate(LINES[0], target_prefix="This is", **GREEDY)
    parts = list(marian.stream(LINES[0], target_prefix="This is", **GREEDY))
    assert "".join(parts) == result.text
    assert parts[0] == "This"
    streamer = Kept()
    marian.generate(LINES[0], target_prefix=[[5, 6]], streamer=streamer, **GREEDY)
    assert streamer.told[0] == [[marian.model.config.decoder_start_token_id, 5, 6]]


def test_a_beginning_that_is_a_whole_forced_start(folders: dict[str, Path]) -> None:
    """Nothing but the language code is no beginning of its own: it is forced all the same."""
    pipeline = Pipeline.from_pretrained(folders["nllb"])
    said: dict[str, Any] = {"source_lang": "ita_Latn", "target_lang": "deu_Latn", "max_new_tokens": 6}
    assert (
        pipeline.generate(LINES[0], target_prefix="", **said)[0].token_ids
        == pipeline.generate(LINES[0], **said)[0].token_ids
    )


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (["a", "b"], "target_prefix has 2 entries for 1 inputs"),
        ([7, 8, 9], "target_prefix has 3 entries for 1 inputs"),
        ([7], r"target_prefix\[0\] is a int; give a text or a list of ids"),
        ([["a"]], r"target_prefix\[0\] is a list; give a text or a list of ids"),
        ([[5, 9999]], r"target_prefix\[0\] holds 9999, but the target vocabulary has"),
    ],
)
def test_wrong_beginnings_are_named(marian: Pipeline, prefix: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        marian.generate("x", target_prefix=prefix, **GREEDY)


def test_a_beginning_of_a_text_in_pieces(marian: Pipeline) -> None:
    with pytest.raises(InputError, match="text 1 is decoded in 2 pieces, and target_prefix can begin only one"):
        marian.generate("x\ny", target_prefix="This", **GREEDY)
    with pytest.raises(OptionError, match="a decoder prompt of 41 tokens leaves no room in a length of 40"):
        marian.generate("x", target_prefix=[[5] * 40], num_beams=1)


def test_the_limit_of_new_tokens_leaves_the_beginning_out(marian: Pipeline) -> None:
    (result,) = marian.generate(LINES[0], target_prefix=[[5, 6, 7]], num_beams=1, max_new_tokens=4, min_new_tokens=4)
    assert len(result.token_ids) == 7
    (result,) = marian.generate(LINES[0], target_prefix=[[5, 6, 7]], num_beams=1, max_length=6, min_length=6)
    assert len(result.token_ids) == 5, "max_length counts the decoder start and the beginning"


# ---------------------------------------------------------------- scores of texts


def test_scores_of_a_text_in_pieces(marian: Pipeline) -> None:
    said: dict[str, Any] = {**GREEDY, "output_scores": True, "output_logits": True, "output_margin": True}
    (result,) = marian.generate(f"{LINES[0]}\n{LINES[1]}", **said)
    parts = marian.generate(LINES[:2], **said)
    size = marian.model.config.target_vocab_size
    assert result.scores is not None
    assert result.logits is not None
    assert result.scores.shape == result.logits.shape == (len(result.token_ids), size)
    torch.testing.assert_close(result.logits, torch.cat([part.logits for part in parts]), rtol=0, atol=1e-4)  # type: ignore[arg-type]
    assert result.min_margin == pytest.approx(min(part.min_margin or 0.0 for part in parts), abs=1e-4)
    assert result.score == pytest.approx(sum(part.score or 0.0 for part in parts), abs=1e-4)
