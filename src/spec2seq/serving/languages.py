"""Which languages are served, under which codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec2seq.errors import OptionError
from spec2seq.serving.language_names import language_name, short_code
from spec2seq.serving.refusals import InvalidRequestError
from spec2seq.serving.schemas import Language, LanguageName, LanguagePair

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spec2seq.tokenization import TextTokenizer

AUTO = "auto"


@dataclass(frozen=True)
class Direction:
    """From which language to which: codes of the tokenizer, None where the model knows only one pair."""

    source_lang: str | None = None
    target_lang: str | None = None
    source: str = ""  # the code that clients write


class ServedLanguages:
    """The languages that clients may name.

    Clients write short codes (`it`). A model that has several forms of a language, such as scripts, gives the short
    code to the first of them; every form also goes by the tokenizer's own code.

    Args:
        sources, targets: what the tokenizer calls a language by what clients call it; None stands for a pair that the
            model does not name at all.
    """

    def __init__(self, sources: dict[str, str | None], targets: dict[str, str | None]) -> None:
        self._sources = sources
        self._targets = targets

    @classmethod
    def of(
        cls, tokenizer: TextTokenizer, source_lang: str | None = None, target_lang: str | None = None
    ) -> ServedLanguages:
        """The languages of a model, or of them only those that are named.

        Raises:
            OptionError: the model does not know a language that is named, or only one of a pair is.
        """
        if tokenizer.languages:
            known = _by_short_code(tokenizer.languages)
            return cls(_only(known, source_lang, "source_lang"), _only(known, target_lang, "target_lang"))
        pair = (source_lang, target_lang) if source_lang or target_lang else tokenizer.language_pair
        if pair is None:
            return cls({}, {})
        source, target = pair
        if not source or not target:
            raise OptionError(
                f"--source-lang {source or '(not said)'} with --target-lang {target or '(not said)'}: name both "
                "languages, or none"
            )
        return cls({source: None}, {target: None})

    @property
    def is_empty(self) -> bool:
        """Whether no languages are known: such a model does not translate."""
        return not self._sources

    def listing(self) -> list[Language]:
        """Every source language with what it can be translated to."""
        return [
            Language(code=code, name=_name(code), targets=[target for target in self._targets if target != code])
            for code in self._sources
        ]

    def first_pair(self) -> LanguagePair | None:
        """What a page may show at first."""
        for source in self._sources:
            for target in self._targets:
                if target != source:
                    return LanguagePair(source=_entry(source), target=_entry(target))
        return None

    def direction(self, source: str, target: str | None) -> Direction:
        """What a request's codes mean; `target` may be None where only one language can be meant.

        Raises:
            InvalidRequestError: a language is not served, or it is not clear which one is meant.
        """
        if self.is_empty:
            raise InvalidRequestError(
                "this model does not say which languages it translates; start the service with --source-lang and "
                "--target-lang, or use /v1/completions",
                "source",
            )
        source = self._detected() if source == AUTO else _served(source, self._sources, "source")
        if target is None:
            others = [code for code in self._targets if code != source]
            if len(others) != 1:
                raise InvalidRequestError(
                    "target is missing: several languages are served; name one of those that GET /languages lists",
                    "target",
                )
            target = others[0]
        target = _served(target, self._targets, "target")
        if source == target:
            name = _name(source)
            raise InvalidRequestError(
                f"{name} ({target}) is not available as a target language from {name} ({source})", "target"
            )
        return Direction(self._sources[source], self._targets[target], source)

    def _detected(self) -> str:
        if len(self._sources) > 1:
            raise InvalidRequestError(
                "auto is not supported: this service has several source languages and does not detect them; name one",
                "source",
            )
        return next(iter(self._sources))


def _by_short_code(codes: Iterable[str]) -> dict[str, str | None]:
    by_short_code: dict[str, str | None] = {}
    for code in sorted(codes):
        short = short_code(code)
        by_short_code[code if short in by_short_code else short] = code
    return by_short_code


def _only(known: dict[str, str | None], code: str | None, option: str) -> dict[str, str | None]:
    if code is None:
        return known
    found = {short: own for short, own in known.items() if code in (short, own)}
    if not found:
        flag = "--" + option.replace("_", "-")
        raise OptionError(f"{flag} {code} is not a language of this model; known are {', '.join(known)}")
    return found


def _served(code: str, known: dict[str, str | None], param: str) -> str:
    if code in known:
        return code
    for short, own in known.items():
        if code == own:
            return short
    raise InvalidRequestError(f"{code[:40]} is not supported", param)


def _name(code: str) -> str:
    return language_name(short_code(code)) + (f" ({code})" if "_" in code else "")


def _entry(code: str) -> LanguageName:
    return LanguageName(code=code, name=_name(code))
