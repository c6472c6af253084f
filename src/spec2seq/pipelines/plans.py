"""From inputs to what the decoder is asked for: one plan per input, one piece per request."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spec2seq.errors import InputError, OptionError
from spec2seq.option_values import shortened
from spec2seq.pipelines.arguments import LONG_INPUT_CHOICES
from spec2seq.pipelines.splitting import SplitText, is_blank, split_lines, split_long, whole_text
from spec2seq.tokenization import TargetStart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from spec2seq.config import ModelConfig
    from spec2seq.pipelines.arguments import LongInput
    from spec2seq.pipelines.target_prefixes import TargetPrefixes
    from spec2seq.tokenization import TextTokenizer

    Languages = str | Sequence[str | None] | None

# Sentences are what translation models were trained on; a summary needs its whole source.
SPLITTING_FAMILIES = ("marian", "mbart", "m2m_100", "fairseq_transformer")


@dataclass(frozen=True)
class Piece:
    """One request.

    Attributes:
        source_ids: with all the tokens that the model expects.
        start: how its target begins.
        target_prefix: given target tokens behind the decoder start; where there are any, nothing is forced.
        encoder_states: [S, D] of a source that was encoded elsewhere.
        seed: what its random numbers come from; None leaves it to the options.
    """

    source_ids: list[int]
    start: TargetStart
    target_prefix: list[int] = field(default_factory=list)
    encoder_states: Tensor | None = field(default=None, compare=False, repr=False)
    seed: int | None = None


@dataclass
class InputPlan:
    """The pieces of one input, in order, and the text around them. Blank inputs have no pieces."""

    split: SplitText
    pieces: list[Piece] = field(default_factory=list)


def text_label(index: int) -> str:
    """What messages call the text with this index."""
    return f"text {index + 1}"


@dataclass(frozen=True)
class TextOptions:
    """What a call says about its texts; see `Pipeline.generate`.

    Attributes:
        source_lang, target_lang: one code for all texts, or one for each.
        label: what messages call the text with an index.
        target_prefix: what the outputs begin with, see `target_prefixes.give_prefixes`.
    """

    source_lang: Languages = None
    target_lang: Languages = None
    source_prefix: str = ""
    long_input: LongInput | None = None
    label: Callable[[int], str] = text_label
    target_prefix: TargetPrefixes = None

    def names_target(self, num_texts: int) -> list[bool]:
        """For each text, whether a target language is named."""
        return [code is not None for code in _one_each(self.target_lang, num_texts, "target_lang")]


class TextPlanner:
    """Makes the plans of a call's texts.

    Args:
        tokenizer: of the model.
        config: of the model; its source positions are the limit.
        options: what the call says about its texts.
        forced_first_tokens: one per text, as the options and the checkpoint have them.
        is_start_said: whether it was the call that said them.

    Raises:
        OptionError: languages that do not fit, or an unknown `long_input`.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        config: ModelConfig,
        options: TextOptions,
        forced_first_tokens: Sequence[int | None],
        *,
        is_start_said: bool = False,
    ) -> None:
        num_texts = len(forced_first_tokens)
        self._tokenizer = tokenizer
        self._limit = config.max_source_positions
        self._long_input = _long_input(options.long_input, config)
        self._source_prefix = options.source_prefix
        self._label = options.label
        self._source_langs = _one_each(options.source_lang, num_texts, "source_lang")
        target_langs = _one_each(options.target_lang, num_texts, "target_lang")
        if is_start_said and any(target_langs):
            raise OptionError("target_lang and forced_bos_token_id both say how the output begins; pass one of them")
        self.starts = [
            self._start(language, forced) for language, forced in zip(target_langs, forced_first_tokens, strict=True)
        ]

    def _start(self, target_lang: str | None, forced: int | None) -> TargetStart:
        start = self._tokenizer.target_start(target_lang, has_default=forced is not None)
        return start if start.forced_first is not None else TargetStart(start.decoder_start, forced)

    def plan(self, texts: Sequence[str]) -> list[InputPlan]:
        """One plan per text.

        Raises:
            InputError: a text is too long and may not be split or truncated.

        Warns:
            UserWarning: texts were truncated; once, with how many and which is the first.
        """
        # in the other modes a text is one piece whatever its length: its newlines belong to it
        cut = split_lines if self._long_input == "split" else whole_text
        plans = [InputPlan(cut(text)) for text in texts]
        prefixes = [self._take_prefixes(plan.split) for plan in plans]
        encoded = self._encode(plans, prefixes)
        too_long = []
        for i, (plan, rows) in enumerate(zip(plans, encoded, strict=True)):
            limit = self._limit
            if limit is not None and any(len(row) > limit for row in rows):
                too_long.append(i)
                rows = self._shorten(i, plan, prefixes[i], rows, limit)
            plan.pieces = [Piece(row, self.starts[i]) for row in rows]
        if too_long and self._long_input == "truncate":
            self._warn_truncated(too_long)
        return plans

    def _take_prefixes(self, split: SplitText) -> list[str]:
        """Take the language codes off the pieces and return what is to be put in front of each; a code holds until the
        next one."""
        lines, separators = split.pieces, split.separators
        split.pieces, split.separators = [], [separators[0]]
        code, prefixes = "", []
        for line, separator in zip(lines, separators[1:], strict=True):
            own_code, rest = self._tokenizer.split_language_code(line)
            code = own_code or code
            split.add(rest, separator)
            if not is_blank(rest):
                prefixes.append(code + self._source_prefix)
        return prefixes

    def _encode(self, plans: Sequence[InputPlan], prefixes: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Source ids of every piece of every plan; one call of the tokenizer per language."""
        encoded: list[list[list[int]]] = [[] for _ in plans]
        for language in dict.fromkeys(self._source_langs):
            mine = [i for i in range(len(plans)) if self._source_langs[i] == language]
            strings = [
                prefix + piece for i in mine for prefix, piece in zip(prefixes[i], plans[i].split.pieces, strict=True)
            ]
            rows = iter(self._tokenizer.encode(strings, language))
            for i in mine:
                encoded[i] = [next(rows) for _ in prefixes[i]]
        return encoded

    def _shorten(
        self, index: int, plan: InputPlan, prefixes: list[str], rows: list[list[int]], limit: int
    ) -> list[list[int]]:
        """Do with a plan's too long pieces what the options say. Returns the new source ids."""
        language, name = self._source_langs[index], self._label(index)
        if self._long_input == "error":
            raise InputError(
                f"{name} has {max(map(len, rows))} tokens, but the model takes at most {limit}; shorten it, or "
                "pass long_input='split' or 'truncate'"
            )
        if self._long_input == "truncate":
            strings = [prefix + piece for prefix, piece in zip(prefixes, plan.split.pieces, strict=True)]
            return self._tokenizer.encode(strings, language, max_length=limit)
        return self._split_further(name, plan, prefixes, rows, limit, language)

    def _split_further(
        self, name: str, plan: InputPlan, prefixes: list[str], rows: list[list[int]], limit: int, language: str | None
    ) -> list[list[int]]:
        lines, separators = plan.split.pieces, plan.split.separators
        plan.split = SplitText(separators=[separators[0]])
        new_rows: list[list[int]] = []
        for line, separator, prefix, row in zip(lines, separators[1:], prefixes, rows, strict=True):
            if len(row) <= limit:
                plan.split.add(line, separator)
                new_rows.append(row)
                continue
            parts = self._parts(name, line, prefix, limit, language)
            plan.split.separators[-1] += parts.separators[0]
            for part, space in zip(parts.pieces, parts.separators[1:], strict=True):
                plan.split.add(part, space)
            plan.split.separators[-1] += separator
            new_rows += self._tokenizer.encode([prefix + part for part in parts.pieces], language)
        return new_rows

    def _parts(self, name: str, line: str, prefix: str, limit: int, language: str | None) -> SplitText:
        def count(piece: str) -> int:
            return len(self._tokenizer.encode([prefix + piece], language)[0])

        if prefix and count("") >= limit:
            raise InputError(
                f"{name}: the {count('')} tokens of source_prefix {shortened(prefix)} leave no room in the {limit} "
                "that the model takes; shorten the prefix"
            )
        return split_long(line, limit, count)

    def _warn_truncated(self, too_long: list[int]) -> None:
        limit, first = self._limit, self._label(too_long[0])
        subject = (
            f"{first} is longer than the model's {limit} tokens and was"
            if len(too_long) == 1
            else f"{len(too_long)} texts are longer than the model's {limit} tokens (the first is {first}) and were"
        )
        warnings.warn(f"{subject} truncated; pass long_input='split' or 'error' for something else", stacklevel=5)


def _long_input(value: LongInput | None, config: ModelConfig) -> LongInput:
    if value is None:
        return "split" if config.family in SPLITTING_FAMILIES else "truncate"
    if value not in LONG_INPUT_CHOICES:
        raise OptionError(f"long_input={value!r} is not allowed: use one of {', '.join(LONG_INPUT_CHOICES)}")
    return value


def _one_each(languages: Languages, num_texts: int, name: str) -> list[str | None]:
    if languages is None or isinstance(languages, str):
        return [languages] * num_texts
    if len(languages) != num_texts:
        raise OptionError(
            f"{name} has {len(languages)} codes for {num_texts} texts; pass one code, or one for each text"
        )
    return list(languages)
