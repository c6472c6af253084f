"""The tokenizer of a converted folder, with the methods that `tokenization` calls."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from spec2seq.errors import CheckpointError, ModelNotFoundError
from spec2seq.fairseq_text.dictionary import END_ID, SPECIAL_SYMBOLS, START, Dictionary
from spec2seq.fairseq_text.segmentation import Gpt2Bytes, MosesSubwords, TokenisedText

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.fairseq_text.segmentation import Segmentation

SETTINGS_FILE, SOURCE_FILE, TARGET_FILE = "fairseq_tokenizer.json", "source.dict.txt", "target.dict.txt"
CODES_FILE = "bpe.codes"

SegmentationName = Literal["tokenised", "moses", "gpt2"]


@dataclass(frozen=True)
class TextSettings:
    """fairseq_tokenizer.json.

    Attributes:
        segmentation: "tokenised" (symbols with white space between them), "moses" (Moses and subword-nmt) or "gpt2".
        source_lang, target_lang: as fairseq calls them.
        starts_source: whether sources start with `<s>` (BART); all end with `</s>`.
    """

    segmentation: SegmentationName
    source_lang: str
    target_lang: str
    starts_source: bool


class DictionaryTokenizer:
    """Text to the ids of fairseq's dictionaries and back."""

    def __init__(
        self, source: Dictionary, target: Dictionary, segmentation: Segmentation, *, starts_source: bool
    ) -> None:
        self._source, self._target = source, target
        self._segmentation = segmentation
        self._start = [SPECIAL_SYMBOLS.index(START)] if starts_source else []

    @classmethod
    def from_folder(cls, folder: Path) -> DictionaryTokenizer:
        """Read the tokenizer of a folder that has a `fairseq_tokenizer.json`.

        Raises:
            ModelNotFoundError: a file is missing.
            CheckpointError: a file is damaged.
            MissingExtraError: an optional package is not installed.
        """
        settings = _read_settings(folder / SETTINGS_FILE)
        source, target = Dictionary.read(folder / SOURCE_FILE), Dictionary.read(folder / TARGET_FILE)
        return cls(
            source,
            target,
            make_segmentation(settings, folder / CODES_FILE, source),
            starts_source=settings.starts_source,
        )

    def __call__(
        self, texts: Sequence[str], truncation: bool = False, max_length: int | None = None, verbose: bool = True
    ) -> dict[str, list[list[int]]]:
        """{"input_ids": ids of every text}, with the symbols at its ends; cut to `max_length` where asked for."""
        return {"input_ids": [self._encode(text, max_length if truncation else None) for text in texts]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of generated ids, the symbols at its ends left out."""
        return self._segmentation.join([self._target.symbols[i] for i in ids])

    def _encode(self, text: str, max_length: int | None) -> list[int]:
        ids = self._start + self._source.encode(self._segmentation.split(text))
        return [*(ids if max_length is None else ids[: max_length - 1]), END_ID]


def make_segmentation(settings: TextSettings, codes: Path | None, source: Dictionary) -> Segmentation:
    """What cuts text as the settings say.

    Raises:
        ModelNotFoundError: it needs a file of codes and there is none.
        CheckpointError: the file holds no codes.
        MissingExtraError: an optional package is not installed.
    """
    if settings.segmentation == "tokenised":
        return TokenisedText()
    if codes is None or not codes.is_file():
        raise ModelNotFoundError(f"there is no file {codes}: the codes of subwords are needed to cut plain text")
    if settings.segmentation == "gpt2":
        return Gpt2Bytes(codes)
    return MosesSubwords(codes, (settings.source_lang, settings.target_lang), source)


def has_dictionary_tokenizer(folder: Path) -> bool:
    """Whether a folder's tokenizer is of this kind."""
    return (folder / SETTINGS_FILE).is_file()


def save_dictionary_tokenizer(
    folder: Path, settings: TextSettings, source: Path, target: Path, codes: Path | None
) -> None:
    """Put settings, dictionaries and codes into a folder."""
    (folder / SETTINGS_FILE).write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(source, folder / SOURCE_FILE)
    shutil.copyfile(target, folder / TARGET_FILE)
    if codes is not None:
        shutil.copyfile(codes, folder / CODES_FILE)


def _read_settings(path: Path) -> TextSettings:
    try:
        settings = TextSettings(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): convert the model again") from error
    if settings.segmentation not in get_args(SegmentationName):
        raise CheckpointError(f"{path}: segmentation cannot be {settings.segmentation!r}; convert the model again")
    return settings
