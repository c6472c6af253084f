"""The translation, summarization and text2text-generation pipelines that transformers had until version 4."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

from spec2seq.errors import InputError, OptionError
from spec2seq.huggingface.task_settings import TaskSettings
from spec2seq.pipelines.pipeline import Pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Unpack

    from spec2seq.pipelines.arguments import GenerationArguments, LongInput
    from spec2seq.pipelines.plans import Languages
    from spec2seq.pipelines.results import GenerationResult

    Record = dict[str, str]
    Records = list[Record] | list[list[Record]]

_RESULT_KEYS = {
    "translation": "translation_text",
    "summarization": "summary_text",
    "text2text-generation": "generated_text",
}
_TRANSLATION = re.compile(r"translation_(.+?)_to_(.+)")
_LONG_INPUT: dict[bool | str | None, LongInput | None] = {
    None: None,
    True: "truncate",
    False: "error",
    "longest_first": "truncate",
    "only_first": "truncate",
    "do_not_truncate": "error",
}
_SAME_LIMIT = ({"max_new_tokens", "max_length"}, {"min_new_tokens", "min_length"})
# Of something with a length that many texts are read at once; of a stream one, as more may not come before an answer.
_CHUNK = 32


def pipeline(
    task: str,
    model: str | Path | Pipeline,
    *,
    drafter: str | Path | None = "auto",
    device: str | None = None,
    dtype: str = "float32",
    num_threads: int | None = None,
    batch_size: int | None = None,
    src_lang: Languages = None,
    tgt_lang: Languages = None,
    truncation: bool | str | None = None,
    **options: Unpack[GenerationArguments],
) -> TaskPipeline:
    """A pipeline as transformers had them, with a drafter.

    What the checkpoint's config.json says in `task_specific_params` for this task, such as a T5's prefix and lengths,
    stands above its generation settings and below `options`.

    Args:
        task: "translation", "translation_en_to_de" (any two languages), "summarization" or "text2text-generation".
        model, drafter, device, dtype, num_threads: as for `Pipeline.from_pretrained`; a `Pipeline` is used as it is.
        batch_size, src_lang, tgt_lang, truncation, options: what calls use that say nothing else.

    Raises:
        OptionError: an unknown task or option.
        ModelNotFoundError, UnsupportedModelError, CheckpointError, DrafterMismatchError: as for `from_pretrained`.
    """
    named = _TRANSLATION.fullmatch(task)
    if not named and task not in _RESULT_KEYS:
        raise OptionError(f"task={task!r} does not exist; use {', '.join(_RESULT_KEYS)} or translation_XX_to_YY")
    if not isinstance(model, Pipeline):
        model = Pipeline.from_pretrained(model, drafter, device=device, dtype=dtype, num_threads=num_threads)
    return TaskPipeline(model, task, batch_size, src_lang, tgt_lang, truncation, options)


class TaskPipeline:
    """Texts in, lists of dicts out; made by `pipeline`.

    Attributes:
        model: the pipeline that does the work.
        task: as given to `pipeline`.
    """

    def __init__(
        self,
        model: Pipeline,
        task: str,
        batch_size: int | None,
        src_lang: Languages,
        tgt_lang: Languages,
        truncation: bool | str | None,
        options: GenerationArguments,
    ) -> None:
        self.model = model
        self.task = task
        named = _TRANSLATION.fullmatch(task)
        self._named_languages = (named[1], named[2]) if named else None
        self._result_key = "translation_text" if named else _RESULT_KEYS[task]
        self._settings = TaskSettings.of_folder(Path(model.model.path))
        self._defaults = (batch_size, src_lang, tgt_lang, truncation)
        self._options = options

    def __call__(
        self,
        inputs: str | Iterable[str],
        *,
        batch_size: int | None = None,
        src_lang: Languages = None,
        tgt_lang: Languages = None,
        truncation: bool | str | None = None,
        **options: Unpack[GenerationArguments],
    ) -> Records | Iterator[list[Record]]:
        """Generate.

        Args:
            inputs: a text, a list of texts, or anything to iterate over: a generator, a column of a dataset.
            batch_size: texts decoded at once. By default all of a list, 32 of something that has a length, and one of
                a stream.
            src_lang, tgt_lang: language codes of the tokenizer, for all texts or one for each text of a list. A T5 has
                a prefix for two languages instead, where its config.json names them.
            truncation: True cuts texts longer than the model's positions, False refuses them; None splits them for
                translation models and cuts them for others.
            options: those of `config.GenerationOptions`.

        Returns:
            For one text its outputs; for a list one output per text, or a list of outputs per text where
            num_return_sequences is above 1; for everything else an iterator over lists of outputs, text by text. An
            output is a dict with "translation_text", "summary_text" or "generated_text".

        Raises:
            OptionError, InputError, NumericsError: as for `Pipeline.generate`.
        """
        own_size, own_source, own_target, own_truncation = self._defaults
        call = _Call(
            src_lang if src_lang is not None else own_source,
            tgt_lang if tgt_lang is not None else own_target,
            _long_input(truncation if truncation is not None else own_truncation),
            _merged(self._options, options),
        )
        size = batch_size if batch_size is not None else own_size
        if size is not None and size < 1:
            raise OptionError(f"batch_size={size} is not allowed: use 1 or more")
        if isinstance(inputs, str):
            return self._generate([inputs], call)[0]
        if isinstance(inputs, list):
            outputs = list(self._chunks(inputs, size or max(len(inputs), 1), call))
            is_single = all(len(records) == 1 for records in outputs)
            return [records[0] for records in outputs] if is_single else outputs
        if not isinstance(inputs, Iterable):
            raise InputError(f"inputs is a {type(inputs).__name__}; pass a text, or something to iterate over")
        return self._chunks(inputs, size or (_CHUNK if isinstance(inputs, Sized) else 1), call)

    def _chunks(self, inputs: Iterable[str], size: int, call: _Call) -> Iterator[list[Record]]:
        remaining, start = iter(inputs), 0
        while chunk := list(islice(remaining, size)):
            yield from self._generate(chunk, call.part(start, len(chunk)))
            start += len(chunk)

    def _generate(self, texts: Sequence[str], call: _Call) -> list[list[Record]]:
        for text in texts:
            if isinstance(text, dict):
                raise InputError(
                    f"an input is a dict with {', '.join(map(str, text))}; pass its text, as in "
                    "(row['text'] for row in dataset)"
                )
        source, target = self._languages(call)
        task = self._settings.for_task(self.task, (source, target))
        is_told = call.names_language or bool(self.model.tokenizer.languages)
        if task.is_for_languages or not is_told:
            # a prefix says which languages are meant, or the model itself, which has but one pair
            source = target = None
        results = self.model.generate(
            texts,
            task.options,
            source_lang=source,
            target_lang=target,
            source_prefix=task.prefix,
            long_input=call.long_input,
            **call.options,
        )
        return [self._records(result) for result in results]

    def _languages(self, call: _Call) -> tuple[Languages, Languages]:
        """Source and target language, of the call or of the task's name."""
        named = self._named_languages
        source = named[0] if named and call.src_lang is None else call.src_lang
        return source, named[1] if named and call.tgt_lang is None else call.tgt_lang

    def _records(self, result: GenerationResult) -> list[Record]:
        texts = [result.text, *(other.text for other in result.alternatives)]
        return [{self._result_key: text} for text in texts]


@dataclass(frozen=True)
class _Call:
    """What one call says, defaults put in."""

    src_lang: Languages
    tgt_lang: Languages
    long_input: LongInput | None
    options: GenerationArguments

    @property
    def names_language(self) -> bool:
        return self.src_lang is not None or self.tgt_lang is not None

    def part(self, start: int, size: int) -> _Call:
        """The same for some of the texts, whose languages may be listed."""
        source, target = (_part(languages, start, size) for languages in (self.src_lang, self.tgt_lang))
        return replace(self, src_lang=source, tgt_lang=target)


def _part(languages: Languages, start: int, size: int) -> Languages:
    return languages if languages is None or isinstance(languages, str) else languages[start : start + size]


def _long_input(truncation: bool | str | None) -> LongInput | None:
    if truncation not in _LONG_INPUT:
        raise OptionError(f"truncation={truncation!r} is not allowed: use True, False or None")
    return _LONG_INPUT[truncation]


def _merged(defaults: GenerationArguments, said: GenerationArguments) -> GenerationArguments:
    """The call's options above the pipeline's; a limit of the call takes the place of the other kind of limit too."""
    taken = {name for same in _SAME_LIMIT if same & said.keys() for name in same}
    kept = {name: value for name, value in defaults.items() if name not in taken}
    return cast("GenerationArguments", kept | said)
