"""CTranslate2 on the same folder and ids, to compare with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spec2seq.errors import MissingExtraError, UnsupportedModelError
from spec2seq.evaluation.peer_errors import call_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spec2seq.generation_options import ResolvedOptions


def convert(model: Path, output: Path) -> None:
    """Convert a folder in Hugging Face's layout, in fp32: CTranslate2 reduces the precision when it loads.

    Args:
        model: the folder.
        output: a folder that does not exist yet.

    Raises:
        MissingExtraError: ctranslate2 is not installed.
        UnsupportedModelError: it cannot convert this model.
        OSError: the folder cannot be written.
    """
    _converter(model).convert(str(output))


def _converter(model: Path) -> Any:
    try:
        from ctranslate2.converters import TransformersConverter
    except ImportError as error:
        raise _missing(error) from error
    import torch

    class Fp32Converter(TransformersConverter):  # type: ignore[misc]
        """Keeps what the model does with its start token.

        CTranslate2 starts Marian models from an embedding of zeros. Transformers looks the start token up like any
        other, and it is not zero in every model. Nothing but the start token ever stands at position 0, so that its
        embedding can be added to that position instead.
        """

        def load_model(self, model_class: Any, name: str, **settings: Any) -> Any:
            self._network = super().load_model(model_class, name, **{**settings, "dtype": torch.float32})
            return self._network

        def _load(self) -> Any:
            try:
                spec = super()._load()
            # Whatever it trips over in a model or in a version of transformers that it does not know. What is done
            # below is ours, and fails as such: a peer must not drop out of a comparison by our fault.
            except (ValueError, LookupError, AttributeError, TypeError, RuntimeError, OSError) as error:
                reason = f"{type(error).__name__}: {error}"
                raise UnsupportedModelError(f"CTranslate2 cannot convert {model}: {reason}") from error
            if getattr(spec.decoder, "start_from_zero_embedding", False):
                config, embedding = self._network.config, self._network.get_decoder().embed_tokens
                scale = config.d_model**0.5 if config.scale_embedding else 1.0
                positions = torch.as_tensor(spec.decoder.position_encodings.encodings).detach().clone()
                positions[0] += scale * embedding.weight[config.decoder_start_token_id].detach()
                spec.decoder.position_encodings.encodings = positions
            return spec

    return Fp32Converter(str(model))


@dataclass(frozen=True)
class SearchSettings:
    """What CTranslate2 is told about a search, in its own words."""

    beam_size: int
    max_decoding_length: int
    min_decoding_length: int
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int

    @classmethod
    def of(cls, options: ResolvedOptions, *, is_length_fixed: bool = False) -> SearchSettings:
        """Of resolved options; with a fixed length, an output ends at its limit and nowhere before."""
        minimum = max(options.min_new_tokens, options.min_length - 1)
        return cls(
            options.num_beams,
            options.max_new_tokens,
            options.max_new_tokens if is_length_fixed else minimum,
            options.length_penalty,
            options.repetition_penalty,
            options.no_repeat_ngram_size,
        )


class CTranslate2Peer:
    """A converted model. What it is asked for raises PeerError where CTranslate2 fails.

    Args:
        folder: what `convert` wrote.
        compute_type: "float32" or "int8".
        num_threads: for one batch.
    """

    def __init__(self, folder: Path, compute_type: str = "float32", num_threads: int = 1) -> None:
        try:
            from ctranslate2 import Translator
        except ImportError as error:
            raise _missing(error) from error
        self._translator: Any = Translator(
            str(folder), device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=num_threads
        )
        self._source_tokens, self._target_tokens = _vocabularies(folder)
        self._target_ids = {token: i for i, token in enumerate(self._target_tokens)}

    def generate(
        self, sources: Sequence[Sequence[int]], settings: SearchSettings, forced_first: int | None = None
    ) -> list[list[int]]:
        """Outputs of one batch: ids after the decoder start token, end of sequence and forced first token included."""
        prefixes = None if forced_first is None else [[self._target_tokens[forced_first]]] * len(sources)
        return self._translate(sources, prefixes, settings)

    def choices(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: SearchSettings
    ) -> list[list[int]]:
        """The best token at every place of each target, with the tokens of the target before it.

        There is no call that scores a given output: the target's first t tokens are given as a prefix and one token
        more is asked for, for every t.
        """
        chosen: list[list[int]] = [[] for _ in targets]
        for length in range(max(map(len, targets), default=0)):
            rows = [i for i, target in enumerate(targets) if len(target) > length]
            prefixes = [[self._target_tokens[token] for token in targets[i][:length]] for i in rows]
            one_more = SearchSettings(1, length + 1, 0, 1.0, settings.repetition_penalty, settings.no_repeat_ngram_size)
            outputs = self._translate([sources[i] for i in rows], prefixes, one_more)
            for i, output in zip(rows, outputs, strict=True):
                chosen[i].append(output[length] if len(output) > length else -1)
        return chosen

    def _translate(
        self, sources: Sequence[Sequence[int]], prefixes: list[list[str]] | None, settings: SearchSettings
    ) -> list[list[int]]:
        tokens = [[self._source_tokens[token] for token in source] for source in sources]
        with call_of("CTranslate2"):
            results = self._translator.translate_batch(
                tokens,
                target_prefix=prefixes,
                beam_size=settings.beam_size,
                max_decoding_length=settings.max_decoding_length,
                min_decoding_length=settings.min_decoding_length,
                length_penalty=settings.length_penalty,
                repetition_penalty=settings.repetition_penalty,
                no_repeat_ngram_size=settings.no_repeat_ngram_size,
                max_input_length=0,
                return_end_token=True,
            )
        return [[self._target_ids[token] for token in result.hypotheses[0]] for result in results]


def _vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    """Tokens of the source and of the target by id."""
    shared = folder / "shared_vocabulary.json"
    names = (
        ("shared_vocabulary.json",) * 2 if shared.is_file() else ("source_vocabulary.json", "target_vocabulary.json")
    )
    source, target = (json.loads((folder / name).read_text(encoding="utf-8")) for name in names)
    return source, target


def _missing(error: ImportError) -> MissingExtraError:
    return MissingExtraError(f"CTranslate2 is not installed ({error}): pip install 'spec2seq[bench]'")
