"""Text to token ids and back, with the checkpoint's own tokenizer; language codes of the multilingual families.

The only place that knows a tokenizer. transformers is imported inside the functions that need it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from spec2seq.errors import CheckpointError, ModelNotFoundError, OptionError
from spec2seq.fairseq_text.tokenizer import DictionaryTokenizer, has_dictionary_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spec2seq.config import ModelConfig

TOKENIZER_FILES = (
    "tokenizer.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "vocab.json",
    "tokenizer_config.json",
)
MULTILINGUAL_FAMILIES = ("mbart", "m2m_100")

# codes as mBART (en_XX), NLLB (eng_Latn) and M2M100 (__en__) write them
_LANGUAGE_TOKEN = re.compile(r"[a-z]{2,3}_[A-Z]{2}|[a-z]{3}_[A-Z][a-z]{3}|__[a-z]{2,3}__")
# multilingual Marian models are told the target language by the first word of the source: >>fra<<
_TEXT_LANGUAGE_CODE = re.compile(r">>[\w-]+<<[ \t]*")


@dataclass(frozen=True)
class TargetStart:
    """How a row of a target language begins; None leaves it to the model's configuration and the options.

    Attributes:
        decoder_start: the language id in place of the decoder start token (mBART-cc25).
        forced_first: the language id forced as first generated token (mBART-50, M2M100, NLLB).
    """

    decoder_start: int | None = None
    forced_first: int | None = None


class TextTokenizer:
    """The tokenizer of one model folder. Not safe to share between threads: a source language is a state of it."""

    def __init__(self, tokenizer: Any, config: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self.languages = _language_ids(tokenizer) if config.family in MULTILINGUAL_FAMILIES else {}

    @classmethod
    def from_folder(cls, folder: Path, config: ModelConfig) -> TextTokenizer:
        """Load the tokenizer from a local folder; never touches the network.

        Raises:
            ModelNotFoundError: the folder holds no tokenizer.
            CheckpointError: a tokenizer file is damaged.
        """
        if has_dictionary_tokenizer(folder):
            return cls(DictionaryTokenizer.from_folder(folder), config)
        files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
        if not files:
            raise ModelNotFoundError(
                f"{folder} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): "
                "add its files, or pass token ids with Pipeline.generate_ids"
            )
        for file in files:
            _check_file(file)
        try:
            tokenizer = _tokenizer_class(folder).from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, ImportError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CheckpointError(f"the tokenizer in {folder} cannot be loaded: {reason}") from error
        return cls(tokenizer, config)

    @property
    def starts_with_language(self) -> bool:
        """Whether the decoder starts with the target language's id (mBART-cc25) instead of being forced to it."""
        config = self._config
        return config.family == "mbart" and config.decoder_start_token_id not in config.eos_token_ids

    @property
    def unknown_id(self) -> int | None:
        """The id of what the tokenizer has no piece for; None where there is no such thing."""
        unknown: int | None = getattr(self._tokenizer, "unk_token_id", None)
        return unknown

    @property
    def language_pair(self) -> tuple[str, str] | None:
        """Source and target language of a bilingual model; None where its tokenizer does not name them."""
        source, target = (getattr(self._tokenizer, name, None) for name in ("source_lang", "target_lang"))
        return (source, target) if source and target and not self.languages else None

    def encode(
        self, texts: Sequence[str], source_lang: str | None = None, max_length: int | None = None
    ) -> list[list[int]]:
        """Source ids of every text, with the end and language tokens that the family's tokenizer adds.

        Args:
            texts: any strings.
            source_lang: a language code of the tokenizer; None means the tokenizer's own default.
            max_length: cut longer texts to so many ids, the added tokens included.

        Raises:
            OptionError: `source_lang` is unknown, or the model has no language codes.
        """
        if not texts:
            return []
        tokenizer = self._tokenizer
        if source_lang is None:
            return self._encode(texts, max_length)
        self._language_id(source_lang, "source_lang")
        default = tokenizer.src_lang
        tokenizer.src_lang = source_lang
        try:
            return self._encode(texts, max_length)
        finally:
            tokenizer.src_lang = default

    def _encode(self, texts: Sequence[str], max_length: int | None) -> list[list[int]]:
        # verbose=False: lengths are checked by the caller, who knows the model's positions
        encoded = self._tokenizer(list(texts), truncation=max_length is not None, max_length=max_length, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def encode_target(self, texts: Sequence[str]) -> list[list[int]]:
        """Target ids of the beginnings of outputs, nothing added.

        Raises:
            OptionError: this kind of tokenizer cannot split target text.
        """
        if isinstance(self._tokenizer, DictionaryTokenizer):
            raise OptionError("target_prefix as text is not supported for this model's dictionaries; pass token ids")
        # only Marian splits target text in another way than source text
        name = "text_target" if self._config.family == "marian" else "text"
        encoded = self._tokenizer(**{name: list(texts)}, add_special_tokens=False, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of generated ids, special tokens left out, spaces cleaned up as the tokenizer is configured to.

        Ids beyond the tokenizer's vocabulary, which a model may be padded to, have no text.
        """
        try:
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        except IndexError:  # tokenizers in Rust leave such ids out, sentencepiece's own does not
            known = [token_id for token_id in ids if self._is_known(token_id)]
            text = self._tokenizer.decode(known, skip_special_tokens=True)
        return text

    def _is_known(self, token_id: int) -> bool:
        try:
            self._tokenizer.convert_ids_to_tokens(token_id)
        except IndexError:
            return False
        return True

    def split_language_code(self, text: str) -> tuple[str, str]:
        """A leading `>>xx<<` of a multilingual Marian source, and the rest; ("", text) where there is none."""
        match = _TEXT_LANGUAGE_CODE.match(text) if self._config.family == "marian" else None
        return (match.group(), text[match.end() :]) if match else ("", text)

    def target_start(self, target_lang: str | None, has_default: bool) -> TargetStart:
        """How rows of this target language begin.

        Args:
            target_lang: a language code of the tokenizer, or None for the checkpoint's own default.
            has_default: whether the options force a first token already.

        Raises:
            OptionError: the code is unknown or the model has none; or it is missing and there is no default.
        """
        if target_lang is not None:
            language_id = self._language_id(target_lang, "target_lang")
            if self.starts_with_language:
                return TargetStart(decoder_start=language_id)
            return TargetStart(forced_first=language_id)
        if self.starts_with_language:
            has_default = self._config.decoder_start_token_id >= 0
        if self.languages and not has_default:
            raise OptionError(
                f"target_lang is missing: this {self._config.family} model must be told its target language, "
                f"one of {_listing(self.languages)}"
            )
        return TargetStart()

    def _language_id(self, code: str, option: str) -> int:
        if code in self.languages:
            return self.languages[code]
        if self.languages:
            close = _close_codes(code, self.languages)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known are {_listing(self.languages)}"
            raise OptionError(f"{option}={code!r} is not a language of this model; {hint}")
        if self._config.family == "marian":
            hint = "leave it out, or start each text with a code such as '>>fra<<' where the model is multilingual"
        else:
            hint = "leave it out"
        raise OptionError(f"{option}={code!r}: this {self._config.family} model has no language codes; {hint}")


def _tokenizer_class(folder: Path) -> Any:
    """The class that loads a folder's tokenizer."""
    import transformers

    settings = folder / "tokenizer_config.json"
    named = json.loads(settings.read_text(encoding="utf-8")).get("tokenizer_class") if settings.is_file() else None
    if named != "MarianTokenizer":
        return transformers.AutoTokenizer

    class MarianTokenizer(transformers.MarianTokenizer):
        """Without sacremoses, which takes 0.4 s to load and whose normalizer nothing calls."""

        def _setup_normalizer(self) -> None:
            self.punc_normalizer = str

    return MarianTokenizer


def _language_ids(tokenizer: Any) -> dict[str, int]:
    tokens = {token.strip("_"): token for token in tokenizer.all_special_tokens if _LANGUAGE_TOKEN.fullmatch(token)}
    # M2M100 keeps its language tokens apart from the special ones
    tokens.update(getattr(tokenizer, "lang_code_to_token", {}))
    return {code: int(tokenizer.convert_tokens_to_ids(token)) for code, token in tokens.items()}


def _close_codes(code: str, languages: dict[str, int]) -> list[str]:
    """Codes of the same language first (en -> en_XX), then codes that look alike."""
    language = re.split("[_-]", code.lower())[0]
    same = sorted(known for known in languages if known.split("_")[0] == language)
    by_lower = {known.lower(): known for known in languages}
    alike = [by_lower[name] for name in get_close_matches(code.lower(), by_lower, n=4, cutoff=0.6)]
    if len(language) == 2:
        alike += sorted(known for known in languages if len(known) > 5 and known.startswith(language))
    return list(dict.fromkeys(same + alike))[:4]


def _listing(languages: dict[str, int]) -> str:
    codes = sorted(languages)
    return ", ".join(codes) if len(codes) <= 12 else f"{', '.join(codes[:12])}, ... ({len(codes)} in all)"


def _check_file(file: Path) -> None:
    """Refuse what a broken download leaves behind: nothing, a git-lfs pointer, half a JSON file."""
    with file.open("rb") as stream:
        head = stream.read(64)
        stream.seek(max(0, file.stat().st_size - 64))
        tail = stream.read().rstrip()
    if not head:
        raise CheckpointError(f"{file} is empty: copy or download it again")
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{file} is a git-lfs pointer, not the file itself: run `git lfs pull` in its folder")
    if file.suffix == ".json" and not tail.endswith(b"}"):
        raise CheckpointError(f"{file} is not complete JSON: copy or download it again")
