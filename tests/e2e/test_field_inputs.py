"""Inputs that other systems got wrong: nothing to say, odd characters and lines, no network, threads, bad callbacks."""

from __future__ import annotations

import io
import shutil
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq import Pipeline
from spec2seq.cli.main import run
from spec2seq.errors import InputError, OptionError
from tests.text_models import LINES, make_text_model
from tests.unit.test_pipeline import Reference

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GREEDY: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 12}
# emoji with joiners, right to left with marks, ligatures, letters decomposed and composed, wide, private, unassigned
ODD_TEXTS = [
    "Hello \U0001f600 world \U0001f469\u200d\U0001f469\u200d\U0001f467!",
    "\u200f\u05e9\u05dc\u05d5\u05dd the \u0627\u0644\u0639\u0627\u0644\u0645 text\u200e",
    "o\ufb03ce \ufb01les",
    "library cafe\u0301 e\u0300\u0323",
    "library caf\u00e9 \u1eb9\u0300",
    "\uff26\uff49\uff4c\uff45\u3000\u7e41\u9ad4\u4e2d\u6587",
    "files \ue000 \U0001fbff\U000e0041 \u0378",
    "a\u00a0b\u00adc\ufeffd\u2028e\u0085f\x0bg\x0ch\x00i",
]
INVISIBLE = [
    "",
    " ",
    "\n",
    "\t",
    "\u200b",
    "\ufeff",
    "\u00a0\u2060\u00ad",
    "\x00\x07",
    "\u2028",
    "\x85",
    "\u200e \u200f",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for name in ("marian", "nllb", "t5"):
        make_text_model(name, root / name)
    return {name: root / name for name in ("marian", "nllb", "t5")}


@pytest.fixture(scope="module")
def marian(folders: dict[str, Path]) -> Pipeline:
    return Pipeline.from_pretrained(folders["marian"])


class TestOddCharacters:
    @pytest.mark.parametrize("name", ["marian", "t5", "nllb"])
    def test_equal_transformers_with_the_same_tokenizer(self, folders: dict[str, Path], name: str) -> None:
        languages = ("ita_Latn", "deu_Latn") if name == "nllb" else (None, None)
        reference = Reference(folders[name], *languages)
        pipeline = Pipeline.from_pretrained(folders[name])
        said = {"source_lang": languages[0], "target_lang": languages[1], "long_input": "error", **GREEDY}
        results = pipeline.generate(ODD_TEXTS, **said)
        expected = [reference.ids(text, **GREEDY)[0] for text in ODD_TEXTS]
        assert [result.token_ids for result in results] == expected
        assert [result.text for result in results] == [reference.text(ids) for ids in expected]
        assert len({tuple(ids) for ids in expected}) > 3

    def test_what_does_not_show_comes_back_as_it_is(
        self, folders: dict[str, Path], marian: Pipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        t5 = Pipeline.from_pretrained(folders["t5"])
        for pipeline in (marian, t5):
            monkeypatch.setattr(pipeline.verifier, "encode", lambda source: pytest.fail(f"called with {source.ids}"))
            for mode in ("split", "truncate", "error"):
                results = pipeline.generate(INVISIBLE, long_input=mode, source_prefix="say: ")  # type: ignore[arg-type]
                assert [result.text for result in results] == INVISIBLE
        assert marian.generate(">>ita<< \u200b")[0].text == "\u200b"

    def test_lines_that_do_not_show_keep_their_place_between_others(self, marian: Pipeline) -> None:
        first, second = (result.text for result in marian.generate(LINES[:2], **GREEDY))
        (result,) = marian.generate(f"\u200b\n{LINES[0]}\n\ufeff \r\n\n{LINES[1]}\n\x00", **GREEDY)
        assert result.text == f"\u200b\n{first}\n\ufeff \r\n\n{second}\n\x00"

    @pytest.mark.parametrize("text", ["caf\udce9", "\ud83d", "ok \udfff ok"])
    def test_halves_of_characters_are_refused_by_name(self, marian: Pipeline, text: str) -> None:
        with pytest.raises(InputError, match=r"texts\[1\] holds '\\ud\w{3}' at character \d, half a character"):
            marian.generate(["fine", text])

    def test_line_i_of_the_output_belongs_to_line_i_of_the_input(
        self, folders: dict[str, Path], marian: Pipeline, tmp_path: Path
    ) -> None:
        """Only a newline ends a line, whatever else Python takes for one."""
        lines = [*ODD_TEXTS, "", "one\rtwo", "\x0c", "\x1c\x1d\x1e", "a\u2029b", *INVISIBLE[4:], "last"]
        (tmp_path / "in.txt").write_bytes("\n".join(lines).encode())
        arguments = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
        greedy = ["--num-beams", "1", "--max-new-tokens", "12"]
        assert run(["generate", "--model", str(folders["marian"]), *arguments, *greedy]) == 0
        written = (tmp_path / "out.txt").read_bytes().decode().split("\n")
        alone = [marian.generate(line, **GREEDY)[0].text for line in lines]
        assert written == [text.replace("\n", " ") for text in alone]


class TestEmptyOutputs:
    def test_an_end_at_once_is_no_text(self, marian: Pipeline) -> None:
        results = marian.generate([LINES[0], f"{LINES[1]}\n{LINES[2]}\n"], num_beams=1, max_new_tokens=1)
        end = marian.model.config.eos_token_ids[0]
        assert [result.text for result in results] == ["", "\n\n"]
        assert [result.token_ids for result in results] == [[end], [end, end]]
        for result in results:
            assert result.finish_reason == "eos"
            assert result.stats.tokens_per_round == 1.0
            assert result.stats.acceptance_rate == 0.0

    def test_a_forced_end_costs_no_round(self, marian: Pipeline) -> None:
        end = marian.model.config.eos_token_ids[0]
        (result,) = marian.generate(LINES[0], forced_bos_token_id=end, num_beams=1)
        assert (result.text, result.token_ids, result.finish_reason) == ("", [end], "eos")
        assert (result.stats.num_rounds, result.stats.tokens_per_round, result.stats.acceptance_rate) == (0, 0.0, 0.0)

    def test_an_empty_output_is_an_empty_line_also_in_the_summary(
        self, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ntwo\n")))
        arguments = ["--num-beams", "1", "--max-new-tokens", "1", "--stats"]
        assert run(["generate", "--model", str(folders["marian"]), *arguments]) == 0
        captured = capsys.readouterr()
        assert captured.out == "\n\n\n"
        assert "2 tokens in 2 rounds: 1.00 tokens per round" in captured.err


class TestLengths:
    def test_without_any_length_outputs_go_on_to_256_tokens(
        self, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """transformers stops at 20 without a word."""
        (result,) = Pipeline.from_pretrained(folders["t5"]).generate(LINES[0], eos_token_id=[])
        assert (len(result.token_ids), result.finish_reason) == (256, "length")
        marian = Pipeline.from_pretrained(folders["marian"])
        del marian.model.generation["max_length"]
        (result,) = marian.generate(LINES[0], num_beams=1, eos_token_id=[], forced_eos_token_id=[])
        assert len(result.token_ids) == (marian.model.config.max_target_positions or 0) - 1
        assert run(["generate", "--help"]) == 0
        assert "256" in capsys.readouterr().out


class TestLanguages:
    def test_every_row_begins_with_its_own(self, folders: dict[str, Path]) -> None:
        targets = ["deu_Latn", "ita_Latn", "eng_Latn", "ita_Latn"]
        pipeline = Pipeline.from_pretrained(folders["nllb"])
        results = pipeline.generate(LINES[:4], source_lang="eng_Latn", target_lang=targets, max_new_tokens=12)
        for text, target, result in zip(LINES, targets, results, strict=False):
            reference = Reference(folders["nllb"], "eng_Latn", target)
            assert result.token_ids == reference.ids(text, max_new_tokens=12)[0]
            assert result.token_ids[0] == pipeline.tokenizer.languages[target]
            assert result.stats.num_forced == 1


class TestLoading:
    def test_a_local_folder_needs_no_network(
        self, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []

        def refuse(*arguments: Any, **_: Any) -> None:
            calls.append(arguments)
            raise OSError("no network here")

        for name in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, name, refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        for name in ("marian", "nllb", "t5"):
            folder = shutil.copytree(folders[name], tmp_path / name)
            pipeline = Pipeline.from_pretrained(folder, drafter=folder)
            target = "ita_Latn" if name == "nllb" else None
            assert pipeline.generate(LINES[0], target_lang=target, num_beams=1, max_new_tokens=3)[0].token_ids
        assert calls == []

    @pytest.mark.parametrize("name", ["marian", "t5", "nllb"])
    def test_a_vocabulary_padded_beyond_the_tokenizers(
        self, folders: dict[str, Path], name: str, tmp_path: Path
    ) -> None:
        """Rows that make the size a round number; a model may say them all the same."""
        from transformers import AutoModelForSeq2SeqLM

        folder = shutil.copytree(folders[name], tmp_path / name)
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        size = model.config.vocab_size
        model.resize_token_embeddings(size + 40)
        with torch.no_grad():
            weight = model.get_output_embeddings().weight
            weight[size:] = weight[5:45] * torch.tensor([1.1, 0.9]).repeat(20)[:, None]
        model.save_pretrained(folder)
        languages = ("ita_Latn", "deu_Latn") if name == "nllb" else (None, None)
        reference = Reference(folder, *languages)
        expected = [reference.ids(text, **GREEDY)[0] for text in LINES]
        assert any(token_id >= size for row in expected for token_id in row)
        pipeline = Pipeline.from_pretrained(folder, drafter=folder)
        results = pipeline.generate(LINES, source_lang=languages[0], target_lang=languages[1], **GREEDY)
        assert [result.token_ids for result in results] == expected
        assert [result.text for result in results] == [reference.text([i for i in ids if i < size]) for ids in expected]


class TestCallers:
    @pytest.mark.parametrize("make", [iter, tuple, lambda texts: (text for text in texts), dict.fromkeys])
    def test_texts_and_ids_may_come_from_anything_that_can_be_gone_through(
        self, marian: Pipeline, make: Callable[[Any], Any]
    ) -> None:
        expected = [result.text for result in marian.generate(LINES[:3], **GREEDY)]
        assert [result.text for result in marian.generate(make(LINES[:3]), **GREEDY)] == expected
        rows = [(5, 6, 0), (7, 0)]
        by_ids = [result.token_ids for result in marian.generate_ids(rows, **GREEDY)]
        assert [result.token_ids for result in marian.generate_ids(make(rows), **GREEDY)] == by_ids
        assert len(by_ids) == 2

    def test_nothing_at_all_is_refused(self, marian: Pipeline) -> None:
        with pytest.raises(InputError, match="texts is a NoneType; pass a str or several"):
            marian.generate(None)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="source_ids is a int; give one list of ids per input"):
            marian.generate_ids(5)  # type: ignore[arg-type]

    def test_wrong_types_are_named(self, marian: Pipeline, folders: dict[str, Path]) -> None:
        wrong: Any = 3
        with pytest.raises(InputError, match="texts is a bytes; pass a str"):
            marian.generate(b"text")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="target_prefix is a int; give one text for all, or a list"):
            marian.generate(LINES[0], target_prefix=wrong)
        with pytest.raises(OptionError, match="streamer=3 has no put and end"):
            marian.generate(LINES[0], streamer=wrong)
        with pytest.raises(OptionError, match="drafter is a int; use auto, prompt_lookup, a folder, or None"):
            Pipeline.from_pretrained(folders["nllb"], drafter=wrong)

    @pytest.mark.filterwarnings("ignore:drafter unused")
    def test_eight_threads_with_eight_wishes(self, folders: dict[str, Path]) -> None:
        pipeline = Pipeline.from_pretrained(folders["nllb"], num_threads=1)
        wishes: list[dict[str, Any]] = [
            {"num_draft_tokens": 3},
            {"num_beams": 2, "num_draft_tokens": 0},
            {"suppress_tokens": [8, 11]},
            {"do_sample": True, "seed": 3},
            {"source_lang": "ita_Latn"},
            {"max_new_tokens": 3},
            {"batch_tokens": 1},
            {"num_draft_tokens": 0, "output_scores": True},
        ]

        def ask(wish: dict[str, Any]) -> list[tuple[str, float | None]]:
            said = {"target_lang": "deu_Latn", "num_beams": 1, "max_new_tokens": 10, **wish}
            return [(result.text, result.score) for result in pipeline.generate(LINES, **said)]

        expected = [ask(wish) for wish in wishes]
        got: list[Any] = [None] * 8
        barrier = threading.Barrier(8)

        def work(place: int) -> None:
            barrier.wait()
            got[place] = [ask(wishes[place]) for _ in range(2)]

        threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [[one, one] for one in expected]

    @pytest.mark.parametrize("callback", ["on_progress", "on_result"])
    @pytest.mark.parametrize("call", [1, 2, 4])
    def test_an_error_in_a_callback_is_the_callers_and_spoils_nothing(
        self, folders: dict[str, Path], callback: str, call: int
    ) -> None:
        threads = torch.get_num_threads()
        pipeline = Pipeline.from_pretrained(folders["t5"], num_threads=threads + 1)
        texts = ["", *LINES[:4]]
        expected = [result.text for result in pipeline.generate(texts, **GREEDY)]
        told: list[Any] = []

        def fail(*arguments: Any) -> None:
            told.append(arguments)
            if len(told) == call:
                raise LookupError("not today")

        with pytest.raises(LookupError, match="not today"):
            pipeline.generate(texts, **GREEDY, **{callback: fail})
        assert len(told) == call
        assert torch.get_num_threads() == threads
        # from another thread: a lock that was not given back would hold it for ever
        got: list[str] = []
        other = threading.Thread(
            target=lambda: got.extend(result.text for result in pipeline.generate(texts, **GREEDY)), daemon=True
        )
        other.start()
        other.join(60)
        assert got == expected

    def test_a_callback_may_call_the_pipeline(self, marian: Pipeline) -> None:
        expected = [result.text for result in marian.generate(LINES, **GREEDY)]
        inner: dict[int, str] = {}

        def ask_again(index: int, result: Any) -> None:
            inner[index] = marian.generate(LINES[index], num_draft_tokens=0, **GREEDY)[0].text

        assert [result.text for result in marian.generate(LINES, **GREEDY, on_result=ask_again)] == expected
        assert [inner[index] for index in range(len(LINES))] == expected
