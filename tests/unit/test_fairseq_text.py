"""Dictionaries, and the ways of cutting text into their symbols."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from spec2seq import Pipeline
from spec2seq.errors import CheckpointError, MissingExtraError, ModelNotFoundError
from spec2seq.fairseq_text.dictionary import Dictionary
from spec2seq.fairseq_text.segmentation import Gpt2Bytes, MosesSubwords, TokenisedText
from spec2seq.fairseq_text.tokenizer import DictionaryTokenizer
from spec2seq.weights.fairseq import FairseqSources, convert_fairseq
from tests.fairseq_files import write_dictionary
from tests.text_models import LINES

PAIR = Path(__file__).parents[1] / "fixtures" / "fairseq_pair"


def dictionary(symbols: list[str]) -> Dictionary:
    return Dictionary(("<s>", "<pad>", "</s>", "<unk>", *symbols))


def test_ids_follow_the_special_symbols(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a 9\n\u2581b 9\nc@@ 3\nmadeupword0000 0\n", encoding="utf-8")
    read = Dictionary.read(tmp_path / "dict.txt")
    assert read.symbols == ("<s>", "<pad>", "</s>", "<unk>", "a", "\u2581b", "c@@", "madeupword0000")
    assert len(read) == 8
    assert read.encode(["c@@", "a", "x", "</s>"]) == [6, 4, 3, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 9\nb\n", "line 2 is no symbol with a count: 'b'"),
        (b"a 9\nb x\n", "line 2 is no symbol with a count"),
        (b"a 9\n\n", "line 2 is no symbol"),
        (b"a 9\nb 8\nc 9\n", "line 3 counts 9 after 8"),
        (b"a 9\nb 8\na 7\n", "holds 'a' twice"),
        (b"a 9\n<unk> 8\n", "holds '<unk>' twice"),
        (b"", "holds no symbol"),
        (b"\xff\xfe 1\n", "is not UTF-8"),
    ],
)
def test_broken_dictionaries_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "dict.txt").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        Dictionary.read(tmp_path / "dict.txt")


def test_a_missing_dictionary_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no dictionary"):
        Dictionary.read(tmp_path / "dict.txt")


def test_tokenised_text_is_read_and_written_as_the_release_does() -> None:
    cut = TokenisedText()
    assert cut.split("  a\t b@@ c \n") == ["a", "b@@", "c"]
    assert cut.join(["</s>", "b@@", "c", "<unk>", "d@@", "</s>", "<pad>"]) == "bc <unk> d@@"


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\nl l</w>\nw e\nwe ll</w>\nk n\nkn o\nkno w\nknow n</w>\n", encoding="utf-8")
    return path


def test_plain_text_goes_through_moses_and_subwords(codes: Path) -> None:
    pytest.importorskip("subword_nmt", reason="needs pip install 'spec2seq[fairseq]'")
    plain = MosesSubwords(codes, ("en", "de"), dictionary(["well"]))
    assert plain.split("well, known bell.") == ["well", ",", "known", "b@@", "e@@", "ll", "."]
    assert plain.join(["Hallo", ",", "W@@", "elt", "!", "</s>"]) == "Hallo, Welt!"
    assert plain.join(["Hal@@", "lo", "We@@"]) == "Hallo We"  # cut within a word


def test_the_dictionary_tells_how_moses_was_called(codes: Path) -> None:
    pytest.importorskip("subword_nmt", reason="needs pip install 'spec2seq[fairseq]'")
    text = 'a well-known "x" & y'
    plain = MosesSubwords(codes, ("en", "de"), dictionary([]))
    assert "&amp;" not in plain.split(text)
    assert not any("@-" in symbol for symbol in plain.split(text))
    wmt14 = MosesSubwords(codes, ("en", "de"), dictionary(["&quot;", "##AT##-##AT##"]))
    joined = " ".join(wmt14.split(text)).replace("@@ ", "")
    assert joined == "a well ##AT##-##AT## known &quot; x &quot; &amp; y"
    assert wmt14.join(joined.split()) == 'a well-known "x" & y'


def test_without_subword_nmt_the_error_says_what_to_install(codes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "subword_nmt.apply_bpe", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'spec2seq\[fairseq\]'"):
        MosesSubwords(codes, ("en", "de"), dictionary([]))


def test_a_file_without_codes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("subword_nmt", reason="needs pip install 'spec2seq[fairseq]'")
    path = tmp_path / "codes"
    path.write_text("#version: 0.2\none two three\n")
    with pytest.raises(CheckpointError, match="holds no codes of subword-nmt"):
        MosesSubwords(path, ("en", "de"), dictionary([]))
    with pytest.raises(CheckpointError, match="holds no merges of GPT-2"):
        Gpt2Bytes(path)
    with pytest.raises(CheckpointError, match=f"{path} holds no codes"):
        convert_fairseq(FairseqSources(PAIR / "verifier.pt", None, PAIR, path), tmp_path / "pair", is_tokenised=False)
    assert capsys.readouterr().err == ""


def gpt2_merges(folder: Path) -> Path:
    """A byte-level tokenizer trained on a few lines, as GPT-2's vocab.bpe."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, vocab_size=300, show_progress=False)
    trained.save_model(str(folder))
    return folder / "merges.txt"


def test_gpt2_numbers_are_those_of_the_bytes_and_merges(tmp_path: Path) -> None:
    merges = gpt2_merges(tmp_path)
    vocabulary: dict[str, int] = json.loads((tmp_path / "vocab.json").read_text())
    cut = Gpt2Bytes(merges)
    assert cut.split("!") == ["0"]
    assert cut.split("~") == ["93"]
    assert cut.split(" ") == ["220"]  # as in GPT-2, whose bytes have these numbers
    assert cut.split("\n") == ["198"]
    pairs = merges.read_text().splitlines()[1:]
    for i in (0, 1, 7):
        piece = pairs[i].replace(" ", "").replace("\u0120", " ")
        assert cut.split(piece) == [str(256 + i)]
    assert all(vocabulary[pair.replace(" ", "")] == 256 + i for i, pair in enumerate(pairs))
    for text in (*LINES, "\u20ac 5 \U0001f600 na\u00efve\n\nx"):
        assert cut.join([*cut.split(text), "</s>"]) == text


def test_a_tokenizer_adds_the_symbols_at_the_ends_and_cuts() -> None:
    words = dictionary(["a", "b", "c"])
    plain = DictionaryTokenizer(words, words, TokenisedText(), starts_source=False)
    bart = DictionaryTokenizer(words, words, TokenisedText(), starts_source=True)
    assert plain(["a b", "", "x"]) == {"input_ids": [[4, 5, 2], [2], [3, 2]]}
    assert bart(["a b"]) == {"input_ids": [[0, 4, 5, 2]]}
    assert bart(["a b c"], truncation=True, max_length=4) == {"input_ids": [[0, 4, 5, 2]]}
    assert bart(["a b c"], max_length=4) == {"input_ids": [[0, 4, 5, 6, 2]]}
    assert plain.decode([0, 4, 3, 6, 2, 1]) == "a <unk> c"


def test_a_folder_converted_with_codes_takes_plain_text(tmp_path: Path, codes: Path) -> None:
    pytest.importorskip("subword_nmt", reason="needs pip install 'spec2seq[fairseq]'")
    sources = FairseqSources(PAIR / "verifier.pt", None, PAIR, codes)
    convert_fairseq(sources, tmp_path / "plain", is_tokenised=False)
    convert_fairseq(sources, tmp_path / "tokenised", is_tokenised=True)
    plain, tokenised = (Pipeline.from_pretrained(tmp_path / name) for name in ("plain", "tokenised"))
    symbols = plain.tokenizer._tokenizer._segmentation.split("s1, s2!")
    assert symbols[-1] == "!"
    assert plain.tokenizer.encode(["s1, s2!"]) == tokenised.tokenizer.encode([" ".join(symbols)])
    assert plain.tokenizer.encode(["s1, s2!"]) != tokenised.tokenizer.encode(["s1, s2!"])
    (tmp_path / "plain" / "bpe.codes").unlink()
    with pytest.raises(ModelNotFoundError, match=r"there is no file .*bpe\.codes"):
        _ = Pipeline.from_pretrained(tmp_path / "plain").tokenizer


def test_damaged_tokenizer_settings_are_refused(tmp_path: Path) -> None:
    convert_fairseq(FairseqSources(PAIR / "verifier.pt", None, PAIR, None), tmp_path / "pair", is_tokenised=True)
    path = tmp_path / "pair" / "fairseq_tokenizer.json"
    settings = json.loads(path.read_text())
    assert settings == {"segmentation": "tokenised", "source_lang": "xx", "target_lang": "yy", "starts_source": False}
    for content in ("{", "[]", json.dumps({**settings, "more": 1}), json.dumps({**settings, "segmentation": "x"})):
        path.write_text(content)
        with pytest.raises(CheckpointError, match="convert the model again"):
            DictionaryTokenizer.from_folder(tmp_path / "pair")


def test_bart_takes_gpt2_merges_as_its_codes(tmp_path: Path) -> None:
    """The folder of a BART whose dictionary calls subwords by their numbers, from text to ids."""
    merges = gpt2_merges(tmp_path)
    numbers = [str(number) for number in range(256 + len(merges.read_text().splitlines()) - 1)]
    write_dictionary(tmp_path / "source.dict.txt", numbers)
    shutil.copy(tmp_path / "source.dict.txt", tmp_path / "target.dict.txt")
    shutil.copy(merges, tmp_path / "bpe.codes")
    settings = {"segmentation": "gpt2", "source_lang": "source", "target_lang": "target", "starts_source": True}
    (tmp_path / "fairseq_tokenizer.json").write_text(json.dumps(settings))
    tokenizer = DictionaryTokenizer.from_folder(tmp_path)
    ids = tokenizer([LINES[0]])["input_ids"][0]
    assert (ids[0], ids[-1]) == (0, 2)
    assert ids[1:-1] == [int(number) + 4 for number in Gpt2Bytes(merges).split(LINES[0])]
    assert tokenizer.decode([2, *ids]) == LINES[0]
