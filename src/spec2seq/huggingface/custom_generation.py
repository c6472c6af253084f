"""Decoding for a model object of transformers: `model.generate(..., custom_generate=custom_generate)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from spec2seq.errors import InputError, NumericsError, OptionError
from spec2seq.huggingface.call_settings import read_call
from spec2seq.huggingface.generate_outputs import make_output
from spec2seq.huggingface.live_models import live_model
from spec2seq.pipelines.plans import Piece
from spec2seq.pipelines.streaming import token_relay
from spec2seq.tokenization import TargetStart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.config import ModelConfig
    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.huggingface.live_models import DrafterChoice
    from spec2seq.pipelines.streaming import TokenStreamer
    from spec2seq.types import DecodedRequest

# Told by generate to whatever decodes; they say how, not what.
_HARMLESS = frozenset({"encoder_outputs", "attention_mask", "use_cache", "cache", "logits_to_keep", "inputs_embeds"})
_NUM_SEEDS = 2**53


def custom_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Sequence[Any],
    stopping_criteria: Sequence[Any],
    generation_config: Any,
    *,
    drafter: DrafterChoice = None,
    num_draft_tokens: int | Literal["auto"] = "auto",
    top_beta: int = 1,
    tau: float | None = None,
    token_streamer: TokenStreamer | None = None,
    inputs_tensor: Tensor | None = None,
    **model_kwargs: Any,
) -> Any:
    """What transformers' generate calls in place of its own search; pass it as `custom_generate=`.

    `model.generate(**inputs, custom_generate=spec2seq.custom_generate, drafter=...)` returns what it returns without
    these two arguments, sooner. All other options of generate stay as they are; the encoder runs in transformers, the
    decoder here, with the very weights of the model object. `torch.manual_seed` fixes the samples, which are not those
    that transformers draws.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor, model_kwargs: what
            generate passes. The mask is taken as given; without one all positions count, padding as well.
        drafter: "prompt_lookup", the folder of a drafter or of a smaller model, a function that makes a drafter, or
            None for plain search.
        num_draft_tokens, top_beta, tau: as in `config.GenerationOptions`.
        token_streamer: a streamer of transformers. The argument `streamer` of generate does not reach this function.

    Returns:
        Ids [B * num_return_sequences, T], prompt included; a `GenerateEncoderDecoderOutput` or
        `GenerateBeamEncoderDecoderOutput` with return_dict_in_generate.

    Raises:
        OptionError: something that cannot be honoured, named.
        InputError: inputs that do not go with the drafter or the streamer.
        UnsupportedModelError: a model of another family, or one whose weights are not simply there.
        NumericsError: the model produced NaN.
    """
    _check_call(model, model_kwargs)
    num_copies = max(generation_config.num_beams, generation_config.num_return_sequences)
    prompts = input_ids[::num_copies].tolist()
    pipeline = live_model(model).pipeline(drafter)
    config = pipeline.model.config
    own = _own_options(num_draft_tokens, top_beta, tau)
    options = read_call(generation_config, logits_processor, stopping_criteria, input_ids.shape[1], config, own)
    rows = _sources(inputs_tensor, model_kwargs, num_copies, config, needs_ids=pipeline.make_drafter is not None)
    pieces = _pieces(rows, prompts, options)
    outcomes: dict[int, DecodedRequest] = {}
    with token_relay(token_streamer, pieces, len(pieces), options, config) as on_tokens:
        pipeline.decode(pieces, options, outcomes.__setitem__, on_tokens=on_tokens)
    results = [outcomes[i] for i in range(len(pieces))]
    _check_numerics(results)
    return make_output(results, prompts, options, generation_config, input_ids.device)


def _check_call(model: Any, model_kwargs: dict[str, Any]) -> None:
    if model.training:
        raise OptionError("the model is in training mode, where its outputs are random; call model.eval() first")
    mask = model_kwargs.pop("decoder_attention_mask", None)
    if mask is not None and not bool((mask == 1).all()):
        raise OptionError(
            "decoder_attention_mask with zeros is not supported by custom_generate; pass decoder_input_ids of equal "
            "length, or call it row by row"
        )
    cache = model_kwargs.get("cache")
    if cache is not None and cache.get_seq_length() > 0:
        raise OptionError("a cache that is filled already is not supported by custom_generate; leave cache out")
    for name, value in model_kwargs.items():
        if name not in _HARMLESS and value is not None:
            raise OptionError(f"{name} is not supported by custom_generate; leave it out")


def _own_options(num_draft_tokens: int | str, top_beta: int, tau: float | None) -> dict[str, object]:
    own: dict[str, object] = {"num_draft_tokens": num_draft_tokens}
    return own | ({} if top_beta == 1 else {"top_beta": top_beta}) | ({} if tau is None else {"tau": tau})


def _sources(
    inputs_tensor: Tensor | None, model_kwargs: dict[str, Any], num_copies: int, config: ModelConfig, *, needs_ids: bool
) -> list[tuple[list[int], Tensor]]:
    """Source ids and encoder states [S_i, D] of every row, without masked positions."""
    states = model_kwargs["encoder_outputs"][0][::num_copies]
    mask = model_kwargs.get("attention_mask")
    is_real = torch.ones(states.shape[:2], dtype=torch.bool) if mask is None else mask[::num_copies] != 0
    is_real = is_real.to(states.device)
    if not bool(is_real.any(dim=1).all()):
        row = int(is_real.any(dim=1).long().argmin())
        raise InputError(f"attention_mask masks the whole of row {row}; leave that row out")
    ids = _source_ids(inputs_tensor)
    if ids is None and needs_ids:
        raise InputError("a drafter reads the source ids, and this call has none; pass input_ids, or drafter=None")
    if ids is None:
        ids = torch.full(states.shape[:2], config.pad_token_id)
    rows = zip(ids.to(states.device), states, is_real, strict=True)
    return [(row[real].tolist(), hidden[real]) for row, hidden, real in rows]


def _source_ids(inputs_tensor: Tensor | None) -> Tensor | None:
    """The ids [B, S] that were encoded; None where it was embeddings, or something that the caller had encoded."""
    is_ids = inputs_tensor is not None and inputs_tensor.dim() == 2 and bool((inputs_tensor >= 0).all())
    return inputs_tensor if is_ids else None


def _pieces(
    rows: Sequence[tuple[list[int], Tensor]], prompts: Sequence[list[int]], options: ResolvedOptions
) -> list[Piece]:
    # torch's own generator, so that torch.manual_seed fixes the samples as it does in transformers
    seeds = torch.randint(_NUM_SEEDS, (len(rows),)).tolist() if options.do_sample else [None] * len(rows)
    forced = options.forced_first_tokens(len(rows))
    return [
        Piece(ids, TargetStart(prompt[0], first), prompt[1:], states, seed)
        for (ids, states), prompt, first, seed in zip(rows, prompts, forced, seeds, strict=True)
    ]


def _check_numerics(results: Sequence[DecodedRequest]) -> None:
    for row, result in enumerate(results):
        if result.error:
            raise NumericsError(f"row {row}: {result.error}")
