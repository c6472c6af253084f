"""The class most users need: load a model and a drafter once, then generate."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spec2seq.decoding.loop import Decoder
from spec2seq.errors import InputError, OptionError
from spec2seq.option_resolution import resolve_options
from spec2seq.pipelines.arguments import DEFAULT_BATCH_TOKENS
from spec2seq.pipelines.batching import decode_pieces, explained_memory_errors, max_rows
from spec2seq.pipelines.collecting import Collector, Reporter
from spec2seq.pipelines.devices import cpu_threads
from spec2seq.pipelines.drafter_choice import choose_drafter, drafter_of_call
from spec2seq.pipelines.engines import EngineChoice
from spec2seq.pipelines.id_inputs import unpadded_rows
from spec2seq.pipelines.plans import InputPlan, Piece, TextOptions, TextPlanner, text_label
from spec2seq.pipelines.splitting import SplitText
from spec2seq.pipelines.streaming import check_streamable, only_texts, stream_texts, token_relay
from spec2seq.pipelines.target_prefixes import give_prefixes
from spec2seq.pipelines.text_inputs import check_whole, checked_texts
from spec2seq.tokenization import TargetStart, TextTokenizer
from spec2seq.weights import load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import Self, Unpack

    from spec2seq.generation_options import GenerationOptions, ResolvedOptions
    from spec2seq.interfaces import Verifier
    from spec2seq.pipelines.arguments import GenerationArguments, LongInput
    from spec2seq.pipelines.batching import OnTokens
    from spec2seq.pipelines.collecting import OnProgress, OnResult
    from spec2seq.pipelines.drafter_choice import MakeDrafter
    from spec2seq.pipelines.engines import OnNotice
    from spec2seq.pipelines.id_inputs import IdRows
    from spec2seq.pipelines.plans import Languages
    from spec2seq.pipelines.results import GenerationResult
    from spec2seq.pipelines.streaming import TokenStreamer
    from spec2seq.pipelines.target_prefixes import TargetPrefixes
    from spec2seq.types import DecodedRequest
    from spec2seq.weights import LoadedModel


class Pipeline:
    """An encoder-decoder model with its tokenizer and a drafter.

    May be called from several threads: calls take turns. Torch's settings are left as the caller has them.

    Attributes:
        model: the loaded checkpoint.
        verifier: the engine that runs it.
        make_drafter: makes the drafter of a call; None for plain search.
    """

    def __init__(
        self,
        model: LoadedModel,
        verifier: Verifier,
        make_drafter: MakeDrafter | None = None,
        num_threads: int | None = None,
    ) -> None:
        _check_threads(num_threads)
        self.model = model
        self.verifier = verifier
        self.make_drafter = make_drafter
        self.num_threads = num_threads
        self._tokenizer: TextTokenizer | None = None
        self._lock = threading.RLock()

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        drafter: str | Path | None = "auto",
        backend: str = "auto",
        device: str | None = None,
        dtype: str = "float32",
        num_threads: int | None = None,
        on_notice: OnNotice | None = None,
    ) -> Self:
        """Load a model.

        Args:
            model: a local folder in Hugging Face's layout, or an id of the Hub.
            drafter: "prompt_lookup", the folder of a trained drafter or of a smaller model with the same vocabulary, or
                None for plain search. "auto": the drafter in the folder PATH-drafter if there is one, else
                "prompt_lookup".
            backend: "torch", "openvino", or "auto": OpenVINO on a CPU where it is installed and has the dtype, else
                torch. $SPEC2SEQ_BACKEND, where it is set, says what "auto" means.
            device: "cpu" (also when None), "cuda", "cuda:1", ...
            dtype: "float32" or "bfloat16"; "float16" on torch, "int8" on OpenVINO.
            num_threads: CPU threads used inside calls. None leaves torch's number as it is, and lets OpenVINO find out
                once per model and machine how many are fastest.
            on_notice: told, in a sentence, about work that takes seconds: the first conversion for OpenVINO.

        Raises:
            ModelNotFoundError, UnsupportedModelError, CheckpointError: the model cannot be loaded.
            DrafterMismatchError: the drafter was made for another vocabulary.
            OptionError: an unknown backend, device, dtype or drafter, or some that do not go together.
            MissingExtraError: the engine is not installed.
        """
        _check_threads(num_threads)
        engine = EngineChoice.of(backend, device, dtype, num_threads, on_notice)
        loaded = load_model(str(model), dtype=engine.weights_dtype)
        make_drafter = choose_drafter(drafter, loaded, engine)
        hidden_layers = make_drafter().hidden_layers if make_drafter else ()
        return cls(loaded, engine.verifier(loaded.network, hidden_layers), make_drafter, num_threads)

    @property
    def tokenizer(self) -> TextTokenizer:
        """The folder's tokenizer, loaded when it is first needed."""
        return self.load_tokenizer()

    def load_tokenizer(self) -> TextTokenizer:
        """Load the tokenizer now, and not within the first call.

        Raises:
            ModelNotFoundError, CheckpointError: there is none, or it is damaged.
        """
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = TextTokenizer.from_folder(Path(self.model.path), self.model.config)
            return self._tokenizer

    def options(
        self, options: GenerationOptions | None = None, **arguments: Unpack[GenerationArguments]
    ) -> ResolvedOptions:
        """What a call with these options would use: arguments, then `options`, then the checkpoint, then the defaults.

        Raises:
            OptionError: an option is unknown, not allowed, or contradicts another.
        """
        said = {name: value for name, value in arguments.items() if value is not None}
        return resolve_options(self.model.generation, self.model.config, options, said)

    def generate(
        self,
        texts: str | Sequence[str],
        options: GenerationOptions | None = None,
        *,
        source_lang: Languages = None,
        target_lang: Languages = None,
        source_prefix: str = "",
        target_prefix: TargetPrefixes = None,
        long_input: LongInput | None = None,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        streamer: TokenStreamer | None = None,
        on_progress: OnProgress | None = None,
        on_result: OnResult | None = None,
        label: Callable[[int], str] = text_label,
        **arguments: Unpack[GenerationArguments],
    ) -> list[GenerationResult]:
        """Generate from texts.

        Args:
            texts: one text or several. Blank ones come back as they are.
            options: options shared by many calls; arguments beat them.
            source_lang, target_lang: language codes of the tokenizer, one for all texts or one for each.
            source_prefix: put in front of every text (of every piece of it), such as "summarize: " for a T5.
            target_prefix: what the outputs begin with, to be continued: a text for all, or for each text a text, token
                ids, or None. It does not count among the new tokens. A text stands behind the forced first token; ids
                stand behind the decoder start, as transformers' decoder_input_ids do.
            long_input: what to do with a text longer than the model's positions. "split" cuts every text at newlines,
                and at sentences and words where a line is too long; white space between the pieces is kept. "truncate"
                drops the end with a warning; "error" raises. By default translation families split, others truncate.
            batch_tokens: most rows x (source + target) tokens in one batch; less needs less memory.
            streamer: told the token ids as they are verified, prompt first, as transformers' `TextStreamer` and
                `TextIteratorStreamer` expect it. For one text in one piece, without beams.
            on_progress: called with (number of finished texts, number of texts) after each one.
            on_result: called with (index, result) as texts finish, in any order.
            label: what messages call the text with an index; "text 1" and so on.
            arguments: the options of `config.GenerationOptions`, with transformers' names.

        Returns:
            One result per text, in the same order.

        Raises:
            OptionError: an option or a language code is wrong.
            InputError: a text cannot be used.
            NumericsError: the model produced NaN for a text; raised when all others are done, and holds their results.
        """
        text_options = TextOptions(source_lang, target_lang, source_prefix, long_input, label, target_prefix)
        with self._lock:
            resolved, plans = self.prepare(texts, text_options, options, **arguments)
            collector = Collector(plans, self.tokenizer.decode, Reporter(on_progress, on_result))
            with token_relay(streamer, collector.pieces, len(plans), resolved, self.model.config) as on_tokens:
                self.decode(collector.pieces, resolved, collector.add, batch_tokens, on_tokens)
        return collector.results(label)

    def stream(
        self,
        text: str,
        options: GenerationOptions | None = None,
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        source_prefix: str = "",
        target_prefix: str | Sequence[int] | None = None,
        long_input: LongInput | None = None,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        **arguments: Unpack[GenerationArguments],
    ) -> Generator[str, None, None]:
        """Generate from one text and yield the output in parts, as soon as they are certain.

        The parts, joined, are the text that `generate` returns. They end with whole words where there are spaces, and
        with whole characters always. Closing the generator stops the work. Other calls may come between two parts.

        Args:
            text: one text; of a long one, piece after piece is told.
            target_prefix: a text, or token ids.
            options, source_lang, target_lang, source_prefix, long_input, batch_tokens, arguments: as for `generate`.

        Raises:
            OptionError, InputError, NumericsError: as for `generate`; OptionError also for beam search and several
                samples, whose text is known only at the end.
        """
        if not isinstance(text, str):
            raise InputError(f"text is a {type(text).__name__}, not a str; pass several texts to stream_batch")
        prefixes = None if target_prefix is None else [target_prefix]
        text_options = TextOptions(source_lang, target_lang, source_prefix, long_input, target_prefix=prefixes)
        return only_texts(self._stream([text], options, arguments, text_options, batch_tokens))

    def stream_batch(
        self,
        texts: Sequence[str],
        options: GenerationOptions | None = None,
        *,
        source_lang: Languages = None,
        target_lang: Languages = None,
        source_prefix: str = "",
        target_prefix: TargetPrefixes = None,
        long_input: LongInput | None = None,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        label: Callable[[int], str] = text_label,
        **arguments: Unpack[GenerationArguments],
    ) -> Generator[tuple[int, str], None, None]:
        """The same from several texts at once: yields (index of the text, part of its output)."""
        text_options = TextOptions(source_lang, target_lang, source_prefix, long_input, label, target_prefix)
        return self._stream(texts, options, arguments, text_options, batch_tokens)

    def generate_ids(
        self,
        source_ids: IdRows,
        attention_mask: IdRows | None = None,
        options: GenerationOptions | None = None,
        *,
        target_lang: Languages = None,
        target_prefix: TargetPrefixes = None,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        streamer: TokenStreamer | None = None,
        on_progress: OnProgress | None = None,
        on_result: OnResult | None = None,
        **arguments: Unpack[GenerationArguments],
    ) -> list[GenerationResult]:
        """Generate from token ids, without any tokenizer unless `target_lang` or a text as `target_prefix` is given.

        Args:
            source_ids: one list per input with all the tokens the model expects (end of sequence, language), or a
                tensor [B, S], padded on either side.
            attention_mask: 1 where an id is real; by default pad ids at the ends of a row are padding.
            options, target_lang, target_prefix, batch_tokens, streamer, on_progress, on_result, arguments: as for
                `generate`.

        Returns:
            One result per input, in the same order; `token_ids` are what transformers' generate returns after the
            decoder start token, `text` is "". An input without any id gets an empty result.

        Raises:
            OptionError, NumericsError: as for `generate`.
            InputError: ids that this model cannot take.
        """
        with self._lock:
            resolved = self.options(options, **arguments)
            rows = unpadded_rows(source_ids, attention_mask, self.model.config)
            starts = self._starts_of_ids(resolved, target_lang, len(rows))
            plans = [
                InputPlan(SplitText(), [Piece(row, start)] if row else [])
                for row, start in zip(rows, starts, strict=True)
            ]
            self._give_prefixes(plans, TextOptions(target_lang=target_lang, target_prefix=target_prefix))
            collector = Collector(plans, None, Reporter(on_progress, on_result))
            with token_relay(streamer, collector.pieces, len(plans), resolved, self.model.config) as on_tokens:
                self.decode(collector.pieces, resolved, collector.add, batch_tokens, on_tokens)
        return collector.results(lambda index: f"source_ids[{index}]")

    def prepare(
        self,
        texts: str | Sequence[str],
        text_options: TextOptions,
        options: GenerationOptions | None = None,
        **arguments: Unpack[GenerationArguments],
    ) -> tuple[ResolvedOptions, list[InputPlan]]:
        """What a call with these texts and options comes to: the options that apply, and the pieces of every text.

        For those who drive a decoder themselves, within `turn`. Raises what `generate` raises before it decodes.
        """
        texts = checked_texts(texts)
        resolved = self.options(options, **arguments)
        is_start_said = _says_start(options) or arguments.get("forced_bos_token_id") is not None
        return resolved, self.plan(texts, resolved, text_options, is_start_said=is_start_said)

    def plan(
        self,
        texts: Sequence[str],
        resolved: ResolvedOptions,
        text_options: TextOptions,
        *,
        is_start_said: bool = False,
    ) -> list[InputPlan]:
        """The pieces of every text as the decoder will be asked for them; see `TextPlanner`."""
        check_whole("source_prefix", text_options.source_prefix)
        forced = resolved.forced_first_tokens(len(texts))
        planner = TextPlanner(self.tokenizer, self.model.config, text_options, forced, is_start_said=is_start_said)
        plans = planner.plan(texts)
        self._give_prefixes(plans, text_options)
        return plans

    def decode(
        self,
        pieces: Sequence[Piece],
        resolved: ResolvedOptions,
        take: Callable[[int, DecodedRequest], None],
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        on_tokens: OnTokens | None = None,
    ) -> None:
        """Decode pieces and call `take(index, outcome)` for each when it is finished.

        `on_tokens(index, token_ids)` is called whenever a piece got new tokens.
        """
        with self.turn(batch_tokens):
            if not pieces:
                return
            decoder = self.new_decoder(resolved, batch_tokens)
            for piece, outcome in decode_pieces(decoder, pieces, resolved, on_tokens):
                take(piece, outcome)

    def _give_prefixes(self, plans: Sequence[InputPlan], text_options: TextOptions) -> None:
        if text_options.target_prefix is not None:
            has_language = text_options.names_target(len(plans))
            prefixes, label = text_options.target_prefix, text_options.label
            give_prefixes(plans, prefixes, has_language, self._encode_target, self.model.config, label)

    def _encode_target(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_target(texts)

    def _stream(
        self,
        texts: str | Sequence[str],
        options: GenerationOptions | None,
        arguments: GenerationArguments,
        text_options: TextOptions,
        batch_tokens: int,
    ) -> Generator[tuple[int, str], None, None]:
        with self.turn(batch_tokens):
            resolved, plans = self.prepare(texts, text_options, options, **arguments)
            check_streamable(resolved, "streaming")
            decoder = self.new_decoder(resolved, batch_tokens)
        turn = partial(self.turn, batch_tokens)
        return stream_texts(decoder, plans, resolved, self.tokenizer.decode, turn, text_options.label)

    @contextmanager
    def turn(self, batch_tokens: int) -> Iterator[None]:
        """What holds while the model works: no other call does, and the threads are this pipeline's."""
        if batch_tokens < 1:
            raise OptionError(f"batch_tokens={batch_tokens} is not allowed: use 1 or more")
        with self._lock, cpu_threads(self.num_threads), explained_memory_errors(batch_tokens):
            yield

    def new_decoder(self, resolved: ResolvedOptions, batch_tokens: int) -> Decoder:
        """An empty decoder with a drafter of its own, where these options use one.

        Raises:
            OptionError: the options do not suit the drafter.
        """
        drafter = drafter_of_call(self.make_drafter, resolved, self.model.config)
        rows = max_rows(resolved.num_beams, self.verifier.device)
        return Decoder(self.verifier, drafter, max_rows=rows, max_batch_tokens=batch_tokens)

    def _starts_of_ids(self, resolved: ResolvedOptions, target_lang: Languages, num_rows: int) -> list[TargetStart]:
        forced = resolved.forced_first_tokens(num_rows)
        if target_lang is None:
            return [TargetStart(forced_first=token_id) for token_id in forced]
        return TextPlanner(self.tokenizer, self.model.config, TextOptions(target_lang=target_lang), forced).starts


def _check_threads(num_threads: int | None) -> None:
    if num_threads is not None and num_threads < 1:
        raise OptionError(f"num_threads={num_threads} is not allowed: use 1 or more, or None to leave it to the engine")


def _says_start(options: GenerationOptions | None) -> bool:
    return options is not None and options.forced_bos_token_id is not None
