"""How text becomes the symbols of a dictionary, and back: one class for each way that models were prepared in."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any, Protocol

from spec2seq.errors import CheckpointError, MissingExtraError
from spec2seq.fairseq_text.dictionary import END, PAD, START

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spec2seq.fairseq_text.dictionary import Dictionary

CONTINUED = "@@ "  # subword-nmt ends every part of a word but the last with @@
# How the corpora of the WMT14 models spell a dash between two words, and how Moses does.
_DASH, _MOSES_DASH = "##AT##-##AT##", "@-@"
_QUOTE_ENTITIES = ("&apos;", "&quot;", "&apos;s")


class Segmentation(Protocol):
    """One way of cutting text."""

    def split(self, text: str) -> list[str]:
        """Symbols of a text."""

    def join(self, symbols: Sequence[str]) -> str:
        """The text of symbols, special ones but `<unk>` left out."""


class TokenisedText:
    """The text is symbols with white space between them, as the paper's released scripts read and write it."""

    def split(self, text: str) -> list[str]:
        return text.split()

    def join(self, symbols: Sequence[str]) -> str:
        return " ".join(_without_ends(symbols)).replace(CONTINUED, "")


class MosesSubwords:
    """Plain text: Moses tokens, cut into subwords by the codes of subword-nmt.

    Args:
        codes: file of subword-nmt's codes.
        languages: of source and target, as Moses calls them.
        dictionary: of the source; it tells whether Moses escaped quotes and split words at dashes.

    Raises:
        MissingExtraError: subword-nmt or sacremoses is not installed.
        CheckpointError: the file holds no codes.
    """

    def __init__(self, codes: Path, languages: tuple[str, str], dictionary: Dictionary) -> None:
        try:
            from sacremoses import MosesDetokenizer, MosesTokenizer
            from subword_nmt.apply_bpe import BPE
        except ImportError as error:
            raise MissingExtraError(
                f"text for this model needs {error.name}: run `pip install 'spec2seq[fairseq]'`"
            ) from error
        self._has_entities = any(symbol in dictionary.ids for symbol in _QUOTE_ENTITIES)
        self._has_dashes = _DASH in dictionary.ids or _MOSES_DASH in dictionary.ids
        self._dash = _DASH if _DASH in dictionary.ids else _MOSES_DASH
        self._tokenizer = MosesTokenizer(lang=languages[0])
        self._detokenizer = MosesDetokenizer(lang=languages[1])
        with codes.open(encoding="utf-8") as file:
            self._codes = _checked_codes(codes, file, BPE)

    def split(self, text: str) -> list[str]:
        words = self._tokenizer.tokenize(text, aggressive_dash_splits=self._has_dashes, escape=self._has_entities)
        symbols: list[str] = self._codes.segment_tokens([self._dash if word == _MOSES_DASH else word for word in words])
        return symbols

    def join(self, symbols: Sequence[str]) -> str:
        # an output that was cut may end within a word
        words = f"{' '.join(_without_ends(symbols))} ".replace(CONTINUED, "").split()
        text: str = self._detokenizer.detokenize([_MOSES_DASH if word == self._dash else word for word in words])
        return text


class Gpt2Bytes:
    """Plain text: the byte-level subwords of GPT-2, which BART's dictionaries call by GPT-2's own numbers.

    Args:
        merges: GPT-2's vocab.bpe (merges.txt): the numbers are those of the 256 bytes, then of the merges in order.

    Raises:
        CheckpointError: the file holds no merges.
    """

    def __init__(self, merges: Path) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        lines = merges.read_text(encoding="utf-8").splitlines()
        rules = [line.split(" ") for line in lines if line.strip() and not line.startswith("#version")]
        if not rules or any(len(rule) != 2 for rule in rules):
            raise CheckpointError(f"{merges} holds no merges of GPT-2's subwords: give its vocab.bpe")
        pairs = [(left, right) for left, right in rules]
        pieces = [*_byte_symbols(), *("".join(pair) for pair in pairs)]
        self._tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=pairs))
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()

    def split(self, text: str) -> list[str]:
        return [str(number) for number in self._tokenizer.encode(text).ids]

    def join(self, symbols: Sequence[str]) -> str:
        text: str = self._tokenizer.decode([int(symbol) for symbol in symbols if symbol.isdigit()])
        return text


def _without_ends(symbols: Sequence[str]) -> list[str]:
    return [symbol for symbol in symbols if symbol not in (START, PAD, END)]


def _checked_codes(path: Path, file: Any, make: Any) -> Any:
    """subword-nmt prints something and leaves the program over a file that holds no codes."""
    try:
        with redirect_stderr(StringIO()):
            return make(file)
    except (SystemExit, ValueError, IndexError) as error:
        raise CheckpointError(f"{path} holds no codes of subword-nmt: give the file of the model") from error


def _byte_symbols() -> list[str]:
    """The characters that GPT-2 writes for the 256 bytes, in the order of its numbers.

    Printable bytes stand for themselves and come first; the others are characters from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), 256)]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
