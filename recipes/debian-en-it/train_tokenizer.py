#!/usr/bin/env python3
"""Train a sentencepiece vocabulary for both languages, and write the tokenizer files of a Marian or a T5 model.

    python recipes/debian-en-it/train_tokenizer.py corpus/train.tsv.gz --output tokenizer

A folder that holds a tokenizer already is left as it is.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from command_line import run_main
from corpus_files import read_pairs

from spec2seq.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_PIECES = 8000
EOS, UNKNOWN = 0, 1  # where Marian's vocabularies have them
PAD_TOKEN = "<pad>"
TOKENIZER_FILES = {
    "marian": ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json"),
    "t5": ("tokenizer.json", "tokenizer_config.json"),
}
"""By family. The last one is written last: a folder that has it is complete."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="pairs, tab-separated, plain or .gz")
    parser.add_argument("--output", "-o", type=Path, required=True, metavar="DIR", help="where the tokenizer goes")
    parser.add_argument(
        "--pieces", type=int, default=NUM_PIECES, metavar="N", help=f"size of the vocabulary (default: {NUM_PIECES})"
    )
    parser.add_argument("--family", choices=list(TOKENIZER_FILES), default="marian", help="(default: marian)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="(default: 2)")
    return parser.parse_args()


def train_pieces(texts: Iterator[str], num_pieces: int, num_threads: int) -> bytes:
    """A sentencepiece model.

    Raises:
        InputError: the texts are too few for so many pieces.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=texts,
            model_writer=model,
            vocab_size=num_pieces,
            character_coverage=0.9998,
            split_digits=True,
            eos_id=EOS,
            unk_id=UNKNOWN,
            bos_id=-1,
            pad_id=-1,
            num_threads=num_threads,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(f"no vocabulary of {num_pieces} pieces: {error}; use fewer --pieces or more text") from error
    return model.getvalue()


def write_marian_tokenizer(folder: Path, model: bytes) -> None:
    """Write what transformers' MarianTokenizer and `Pipeline` read: the pad token follows the last piece."""
    from sentencepiece import SentencePieceProcessor

    pieces = SentencePieceProcessor(model_proto=model)
    vocabulary = {pieces.id_to_piece(i): i for i in range(len(pieces))} | {PAD_TOKEN: len(pieces)}
    settings = {
        "source_lang": "en",
        "target_lang": "it",
        "model_max_length": 512,
        "tokenizer_class": "MarianTokenizer",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_t5_tokenizer(folder: Path, model: bytes) -> None:
    """Write what transformers' T5Tokenizer and `Pipeline` read: pad, end and unknown token before the pieces."""
    from sentencepiece import SentencePieceProcessor
    from transformers import T5Tokenizer

    pieces = SentencePieceProcessor(model_proto=model)
    first = max(EOS, UNKNOWN) + 1
    scored = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(first, len(pieces))]
    special = [(token, 0.0) for token in (PAD_TOKEN, "</s>", "<unk>")]
    T5Tokenizer(vocab=[*special, *scored], extra_ids=0, model_max_length=512).save_pretrained(folder)


def tokenizer_family(folder: Path) -> str:
    """Which of `TOKENIZER_FILES` a folder holds.

    Raises:
        InputError: none of them completely.
    """
    for family, names in TOKENIZER_FILES.items():
        if all((folder / name).is_file() for name in names):
            return family
    wanted = " nor ".join(", ".join(names) for names in TOKENIZER_FILES.values())
    raise InputError(f"{folder} has neither {wanted}: run train_tokenizer.py first")


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy a tokenizer's files into a model's folder."""
    for name in TOKENIZER_FILES[tokenizer_family(source)]:
        shutil.copyfile(source / name, folder / name)


def main() -> None:
    arguments = parse_arguments()
    if (arguments.output / TOKENIZER_FILES[arguments.family][-1]).exists():
        print(f"{arguments.output} is complete")
        return
    texts = chain.from_iterable((pair.source, pair.target) for pair in read_pairs(arguments.corpus))
    model = train_pieces(texts, arguments.pieces, arguments.threads)
    write = {"marian": write_marian_tokenizer, "t5": write_t5_tokenizer}[arguments.family]
    write(arguments.output, model)


if __name__ == "__main__":
    run_main(main)
