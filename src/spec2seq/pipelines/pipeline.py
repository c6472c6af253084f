"""The class most users need: load a model and a drafter once, then generate."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spec2seq.backends.torch_engine import TorchVerifier
from spec2seq.config import resolve_options
from spec2seq.decoding.loop import Decoder
from spec2seq.errors import InputError, OptionError
from spec2seq.pipelines.arguments import DEFAULT_BATCH_TOKENS
from spec2seq.pipelines.batching import decode_pieces, explained_memory_errors, max_rows
from spec2seq.pipelines.collecting import Collector, Reporter
from spec2seq.pipelines.drafter_choice import choose_drafter
from spec2seq.pipelines.id_inputs import unpadded_rows
from spec2seq.pipelines.plans import InputPlan, Piece, TextOptions, TextPlanner, text_label
from spec2seq.pipelines.splitting import SplitText
from spec2seq.tokenization import TargetStart, TextTokenizer
from spec2seq.weights import load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self, Unpack

    from spec2seq.config import GenerationOptions, ResolvedOptions
    from spec2seq.interfaces import Verifier
    from spec2seq.pipelines.arguments import GenerationArguments, LongInput
    from spec2seq.pipelines.collecting import OnProgress, OnResult
    from spec2seq.pipelines.drafter_choice import MakeDrafter
    from spec2seq.pipelines.id_inputs import IdRows
    from spec2seq.pipelines.plans import Languages
    from spec2seq.pipelines.results import GenerationResult
    from spec2seq.types import DecodedRequest
    from spec2seq.weights import LoadedModel

BACKENDS = ("torch",)
# a model without a position table sets no limit of its own
MAX_DRAFT_TOKENS = 1024
# left behind by errors="surrogateescape" and by cutting UTF-16 in the middle of a character
_SURROGATE = re.compile("[\ud800-\udfff]")


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
        if num_threads is not None and num_threads < 1:
            raise OptionError(f"num_threads={num_threads} is not allowed: use 1 or more, or None to leave it to torch")
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
        drafter: str | Path | None = "prompt_lookup",
        backend: str = "torch",
        device: str | None = None,
        dtype: str = "float32",
        num_threads: int | None = None,
    ) -> Self:
        """Load a model.

        Args:
            model: a local folder in Hugging Face's layout, or an id of the Hub.
            drafter: "prompt_lookup", the folder of a smaller model with the same vocabulary, or None for plain search.
            backend: "torch", or "auto" for the best there is.
            device: "cpu" (also when None), "cuda", "cuda:1", ...
            dtype: "float32", "bfloat16" or "float16".
            num_threads: CPU threads used inside calls; None leaves the number as it is.

        Raises:
            ModelNotFoundError, UnsupportedModelError, CheckpointError: the model cannot be loaded.
            DrafterMismatchError: the drafter was made for another vocabulary.
            OptionError: an unknown backend, device, dtype or drafter.
        """
        if backend not in (*BACKENDS, "auto"):
            raise OptionError(f"backend={backend!r} does not exist; use {', '.join(BACKENDS)} or auto")
        place = _device(device)
        loaded = load_model(str(model), dtype=dtype)
        make_drafter = choose_drafter(drafter, loaded, dtype, place)
        return cls(loaded, TorchVerifier(loaded.network, place), make_drafter, num_threads)

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
        long_input: LongInput | None = None,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
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
            long_input: what to do with a text longer than the model's positions. "split" cuts every text at newlines,
                and at sentences and words where a line is too long; white space between the pieces is kept. "truncate"
                drops the end with a warning; "error" raises. By default translation families split, others truncate.
            batch_tokens: most rows x (source + target) tokens in one batch; less needs less memory.
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
        texts = _checked_texts(texts)
        text_options = TextOptions(source_lang, target_lang, source_prefix, long_input, label)
        with self._lock:
            resolved = self.options(options, **arguments)
            is_start_said = _says_start(options) or arguments.get("forced_bos_token_id") is not None
            plans = self.plan(texts, resolved, text_options, is_start_said=is_start_said)
            collector = Collector(plans, self.tokenizer.decode, Reporter(on_progress, on_result))
            self.decode(collector.pieces, resolved, collector.add, batch_tokens)
        return collector.results(label)

    def generate_ids(
        self,
        source_ids: IdRows,
        attention_mask: IdRows | None = None,
        options: GenerationOptions | None = None,
        *,
        target_lang: Languages = None,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        on_progress: OnProgress | None = None,
        on_result: OnResult | None = None,
        **arguments: Unpack[GenerationArguments],
    ) -> list[GenerationResult]:
        """Generate from token ids, without any tokenizer unless `target_lang` is given.

        Args:
            source_ids: one list per input with all the tokens the model expects (end of sequence, language), or a
                tensor [B, S], padded on either side.
            attention_mask: 1 where an id is real; by default pad ids at the ends of a row are padding.
            options, target_lang, batch_tokens, on_progress, on_result, arguments: as for `generate`.

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
            collector = Collector(plans, None, Reporter(on_progress, on_result))
            self.decode(collector.pieces, resolved, collector.add, batch_tokens)
        return collector.results(lambda index: f"source_ids[{index}]")

    def plan(
        self,
        texts: Sequence[str],
        resolved: ResolvedOptions,
        text_options: TextOptions,
        *,
        is_start_said: bool = False,
    ) -> list[InputPlan]:
        """The pieces of every text as the decoder will be asked for them; see `TextPlanner`."""
        forced = resolved.forced_first_tokens(len(texts))
        planner = TextPlanner(self.tokenizer, self.model.config, text_options, forced, is_start_said=is_start_said)
        return planner.plan(texts)

    def decode(
        self,
        pieces: Sequence[Piece],
        resolved: ResolvedOptions,
        take: Callable[[int, DecodedRequest], None],
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
    ) -> None:
        """Decode pieces and call `take(index, outcome)` for each when it is finished."""
        if batch_tokens < 1:
            raise OptionError(f"batch_tokens={batch_tokens} is not allowed: use 1 or more")
        if not pieces:
            return
        with self._lock, _cpu_threads(self.num_threads), explained_memory_errors(batch_tokens):
            decoder = self._decoder(resolved, batch_tokens)
            for piece, outcome in decode_pieces(decoder, pieces, resolved):
                take(piece, outcome)

    def _decoder(self, resolved: ResolvedOptions, batch_tokens: int) -> Decoder:
        drafter = None
        if self.make_drafter and resolved.num_beams > 1 and not resolved.speculative_beams:
            warnings.warn(
                f"drafter unused: num_beams={resolved.num_beams} runs plain beam search; "
                "--num-beams 1 (num_beams=1) gives speculative greedy search, "
                "--speculative-beams (speculative_beams=True) drafts for the same beams",
                stacklevel=4,
            )
        elif self.make_drafter and resolved.num_draft_tokens != 0:
            drafter = self.make_drafter()
            self._check_draft(resolved.num_draft_tokens, drafter.max_draft_tokens)
        rows = max_rows(resolved.num_beams, self.verifier.device)
        return Decoder(self.verifier, drafter, max_rows=rows, max_batch_tokens=batch_tokens)

    def _check_draft(self, num_draft_tokens: int | str, drafter_limit: int | None) -> None:
        limit = drafter_limit or self.model.config.max_target_positions or MAX_DRAFT_TOKENS
        if isinstance(num_draft_tokens, int) and num_draft_tokens > limit:
            raise OptionError(
                f"num_draft_tokens={num_draft_tokens} exceeds the {limit} that can be drafted at once; "
                "use fewer (5 to 25 are usual), or auto"
            )

    def _starts_of_ids(self, resolved: ResolvedOptions, target_lang: Languages, num_rows: int) -> list[TargetStart]:
        forced = resolved.forced_first_tokens(num_rows)
        if target_lang is None:
            return [TargetStart(forced_first=token_id) for token_id in forced]
        return TextPlanner(self.tokenizer, self.model.config, TextOptions(target_lang=target_lang), forced).starts


def _checked_texts(texts: str | Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, Iterable):
        raise InputError(f"texts is a {type(texts).__name__}; pass a str or several of them")
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"texts[{i}] is a {type(text).__name__}, not a str; pass token ids to generate_ids")
        surrogate = _SURROGATE.search(text)
        if surrogate:
            raise InputError(
                f"texts[{i}] holds {surrogate.group()!r} at character {surrogate.start()}, half a character that no "
                "tokenizer takes; decode the bytes it came from as what they are, or with errors='replace'"
            )
    return texts


def _says_start(options: GenerationOptions | None) -> bool:
    return options is not None and options.forced_bos_token_id is not None


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or "cpu")
    except RuntimeError as error:
        raise OptionError(f"device={name!r} does not exist; use cpu, cuda or cuda:0") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"device={name!r}: torch finds no CUDA device here; use cpu")
    return device


@contextmanager
def _cpu_threads(num_threads: int | None) -> Iterator[None]:
    """Run with so many CPU threads and put the caller's number back."""
    before = torch.get_num_threads()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        if num_threads is not None:
            torch.set_num_threads(before)
