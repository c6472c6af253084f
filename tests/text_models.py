"""Tiny model folders with real tokenizers: sentencepiece or BPE trained on a few lines, random weights behind them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import sentencepiece

from tests.families import tiny_hf_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = """The small package contains the library.
This package provides the documentation files for developers.
A tool to convert files between formats, with many options!
It reads the text and writes the translated text to a file.
Libraries needed to build programs that use the network.
Questo pacchetto contiene la libreria e i file di sviluppo.
Uno strumento per leggere e scrivere file di testo.
Hello, world? Yes: 10 files, 25 tools and 3 games.""".splitlines()

NLLB_LANGUAGES = ["eng_Latn", "ita_Latn", "deu_Latn"]
_FAIRSEQ_SPECIALS = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]

Piece = tuple[str, float]


def train_pieces(file: Path) -> list[Piece]:
    """A unigram sentencepiece model of 80 pieces; returns the learned ones (without <unk>, <s>, </s>)."""
    with file.open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_writer=stream, vocab_size=80, hard_vocab_limit=False, minloglevel=2
        )
    model = sentencepiece.SentencePieceProcessor()
    model.Load(str(file))
    return [(model.id_to_piece(i), model.get_score(i)) for i in range(3, model.get_piece_size())]


def _marian(folder: Path, pieces: list[Piece]) -> Any:
    from transformers import MarianTokenizer

    tokens = ["</s>", "<unk>", *(piece for piece, _ in pieces), ">>fra<<", ">>ita<<", "<pad>"]
    vocab = folder / "marian_vocab.json"
    vocab.write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    spm = str(folder / "pieces.spm")
    return MarianTokenizer(source_spm=spm, target_spm=spm, vocab=str(vocab), source_lang="en", target_lang="it")


def _marian_separate(folder: Path, pieces: list[Piece]) -> Any:
    from transformers import MarianTokenizer

    source = ["</s>", "<unk>", *(piece for piece, _ in pieces), "<pad>"]
    target = ["</s>", "<unk>", *(piece for piece, _ in reversed(pieces[:60])), "<pad>"]
    vocab, target_vocab = folder / "marian_vocab.json", folder / "marian_target_vocab.json"
    vocab.write_text(json.dumps({token: i for i, token in enumerate(source)}))
    target_vocab.write_text(json.dumps({token: i for i, token in enumerate(target)}))
    spm = str(folder / "pieces.spm")
    return MarianTokenizer(
        source_spm=spm, target_spm=spm, vocab=str(vocab), target_vocab_file=str(target_vocab), separate_vocabs=True
    )


def _mbart_cc25(folder: Path, pieces: list[Piece]) -> Any:
    from transformers import MBartTokenizer
    from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES

    languages = [(code, 0.0) for code in FAIRSEQ_LANGUAGE_CODES]
    return MBartTokenizer(vocab=[*_FAIRSEQ_SPECIALS, *pieces, *languages, ("<mask>", 0.0)])


def _mbart_50(folder: Path, pieces: list[Piece]) -> Any:
    from transformers import MBart50Tokenizer

    return MBart50Tokenizer(vocab=[("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *pieces])


def _nllb(folder: Path, pieces: list[Piece]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import NllbTokenizer

    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    specials = [token for token, _ in _FAIRSEQ_SPECIALS]
    bpe.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=90, special_tokens=specials, show_progress=False))
    learned = json.loads(bpe.to_str())["model"]
    merges = [tuple(merge) for merge in learned["merges"]]
    return NllbTokenizer(vocab=learned["vocab"], merges=merges, additional_special_tokens=NLLB_LANGUAGES)


def _m2m100(folder: Path, pieces: list[Piece]) -> Any:
    from transformers import M2M100Tokenizer

    tokens = [token for token, _ in (*_FAIRSEQ_SPECIALS, *pieces)]
    vocab = folder / "m2m100_vocab.json"
    vocab.write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    return M2M100Tokenizer(vocab_file=str(vocab), spm_file=str(folder / "pieces.spm"))


def _t5(folder: Path, pieces: list[Piece]) -> Any:
    from transformers import T5Tokenizer

    return T5Tokenizer(vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces], extra_ids=2)


_TOKENIZERS: dict[str, Callable[[Path, list[Piece]], Any]] = {
    "marian": _marian,
    "marian_separate": _marian_separate,
    "mbart_cc25": _mbart_cc25,
    "mbart_50": _mbart_50,
    "nllb": _nllb,
    "m2m100": _m2m100,
    "t5": _t5,
}
TEXT_FAMILIES = tuple(_TOKENIZERS)
# weights whose outputs differ from text to text and do not run in circles
_SEEDS = {"marian": 2, "marian_separate": 2, "mbart_cc25": 2, "m2m100": 2, "t5": 7}


def make_tokenizer(name: str, folder: Path) -> Any:
    """A transformers tokenizer of the family, trained now; work files go to `folder`."""
    pieces = train_pieces(folder / "pieces.spm")
    return _TOKENIZERS[name](folder, pieces)


def make_text_model(name: str, folder: Path, seed: int | None = None, generation: dict[str, Any] | None = None) -> None:
    """Save a tiny random model of the family with a tokenizer of its own to `folder`.

    `generation` overrides what the family's generation_config usually says.
    """
    work = folder.parent / f"{folder.name}-work"
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(name, work)
    ids = [*tokenizer.get_vocab().values(), *_language_ids(tokenizer)]
    config: dict[str, Any] = {"vocab_size": max(ids) + 1}
    if name.startswith("marian"):
        pad = tokenizer.pad_token_id
        target_size = len(tokenizer.target_encoder) if name == "marian_separate" else max(ids) + 1
        start = target_size - 1 if name == "marian_separate" else pad
        config.update(pad_token_id=start, decoder_start_token_id=start, decoder_vocab_size=target_size)
    model = tiny_hf_model(name, _SEEDS.get(name, 0) if seed is None else seed, config)
    if name.startswith("marian"):
        model.generation_config.bad_words_ids = [[config["pad_token_id"]]]
    if name in ("mbart_50", "nllb", "m2m100"):
        model.generation_config.forced_bos_token_id = None
    for key, value in (generation or {}).items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _language_ids(tokenizer: Any) -> list[int]:
    languages = getattr(tokenizer, "lang_token_to_id", {})
    return list(languages.values())
