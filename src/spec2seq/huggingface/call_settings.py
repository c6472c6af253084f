"""What a call of transformers' generate asks for, in this package's options.

transformers turns a generation configuration into logits processors and stopping criteria and mixes in the caller's own
ones. They are read back here one by one; whatever has no counterpart is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spec2seq.errors import OptionError
from spec2seq.option_resolution import resolve_options
from spec2seq.transformers_settings import NEUTRAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spec2seq.config import ModelConfig
    from spec2seq.generation_options import ResolvedOptions

Read = Callable[[Any], dict[str, Any]]

# In the order in which transformers applies them, and this package too.
_PROCESSORS: dict[str, Read] = {
    "RepetitionPenaltyLogitsProcessor": lambda it: {"repetition_penalty": it.penalty},
    "NoRepeatNGramLogitsProcessor": lambda it: {"no_repeat_ngram_size": it.ngram_size},
    "NoBadWordsLogitsProcessor": lambda it: {"bad_words_ids": it.bad_word_ids},
    "MinLengthLogitsProcessor": lambda it: {"min_length": it.min_length},
    "MinNewTokensLengthLogitsProcessor": lambda it: {"min_new_tokens": it.min_new_tokens},
    "ForcedBOSTokenLogitsProcessor": lambda it: {"forced_bos_token_id": it.bos_token_id},
    "ForcedEOSTokenLogitsProcessor": lambda it: {"forced_eos_token_id": it.eos_token_id.tolist()},
    "SuppressTokensLogitsProcessor": lambda it: {"suppress_tokens": it.suppress_tokens.tolist()},
    "TemperatureLogitsWarper": lambda it: {"temperature": it.temperature},
    "TopKLogitsWarper": lambda it: {"top_k": it.top_k},
    "TopPLogitsWarper": lambda it: {"top_p": it.top_p},
    "MinPLogitsWarper": lambda it: {"min_p": it.min_p},
    "LogitNormalization": lambda it: {"renormalize_logits": True},
}
_CRITERIA: dict[str, Read] = {
    "MaxLengthCriteria": lambda it: {"max_length": it.max_length},
    "EosTokenCriteria": lambda it: {"eos_token_id": it.eos_token_id.tolist()},
}
_COPIED = ("num_beams", "num_return_sequences", "do_sample", "length_penalty", "early_stopping")


def read_call(
    generation_config: Any,
    logits_processor: Sequence[Any],
    stopping_criteria: Sequence[Any],
    prompt_length: int,
    model: ModelConfig,
    own: Mapping[str, object],
) -> ResolvedOptions:
    """The options of a call.

    Args:
        generation_config: with the defaults of the model and the arguments of the call put together.
        logits_processor, stopping_criteria: what transformers made of it and of the caller's own.
        prompt_length: tokens that every row begins with.
        model: that is called.
        own: options that only this package has.

    Raises:
        OptionError: something cannot be honoured.
    """
    _check_config(generation_config)
    settings = {name: getattr(generation_config, name) for name in _COPIED}
    found = _read_each(logits_processor, _PROCESSORS, "logits processor")
    ends = _read_each(stopping_criteria, _CRITERIA, "stopping criterion")
    settings |= {"eos_token_id": ends.get("eos_token_id", []), "top_k": found.get("top_k", 0)}
    settings |= _without_minima(found) | _outputs(generation_config)
    _check_processors(logits_processor, ends, prompt_length, is_sampling=settings["do_sample"])
    new_tokens: dict[str, object] = {"max_new_tokens": ends["max_length"] - prompt_length}
    least = max(found.get("min_new_tokens", 0), found.get("min_length", 0) - prompt_length)
    return resolve_options(settings | {"min_new_tokens": least}, model, None, new_tokens | dict(own))


def _without_minima(found: dict[str, Any]) -> dict[str, Any]:
    # transformers applies both minima; one of them says it all
    return {name: value for name, value in found.items() if not name.startswith("min_") or name == "min_p"}


def _outputs(generation_config: Any) -> dict[str, bool]:
    is_dict = bool(generation_config.return_dict_in_generate)
    names = ("output_scores", "output_logits")
    return {name: is_dict and bool(getattr(generation_config, name)) for name in names}


def _check_config(generation_config: Any) -> None:
    for name, neutral in NEUTRAL.items():
        value = getattr(generation_config, name, None)
        if value is not None and value not in neutral:
            raise OptionError(f"{name}={value!r} is not supported by custom_generate; leave it out")


def _read_each(objects: Sequence[Any], readers: Mapping[str, Read], kind: str) -> dict[str, Any]:
    """Options of all objects, which must be of transformers' own classes and in its own order."""
    found: dict[str, Any] = {}
    names = list(readers)
    last = -1
    for one in objects:
        name = type(one).__name__
        if name not in readers or not type(one).__module__.startswith("transformers.generation."):
            raise OptionError(f"{kind} {name} is not supported by custom_generate; leave it out")
        if names.index(name) <= last:
            raise OptionError(
                f"{kind} {name} comes after {names[last]}, which is not supported; "
                "pass it as an option of generate, so that it gets its usual place"
            )
        last = names.index(name)
        found |= readers[name](one)
    return found


def _check_processors(
    processors: Sequence[Any], ends: dict[str, Any], prompt_length: int, *, is_sampling: bool
) -> None:
    """Refuse what the objects say beyond the options that were read of them."""
    if "max_length" not in ends:
        raise OptionError("the call has no MaxLengthCriteria; pass max_new_tokens")
    for one in processors:
        name = type(one).__name__
        said = {
            "prompt_ignore_length": (getattr(one, "prompt_ignore_length", None), None),
            "filter_value": (getattr(one, "filter_value", -float("inf")), -float("inf")),
            "prompt_length_to_skip": (getattr(one, "prompt_length_to_skip", prompt_length), prompt_length),
        }
        if name == "ForcedEOSTokenLogitsProcessor":
            said["max_length"] = (one.max_length, ends["max_length"])
        if name in ("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor"):
            said["eos_token_id"] = (one.eos_token_id.tolist(), ends.get("eos_token_id", []))
        for field, (value, expected) in said.items():
            if value is not expected and value != expected:
                raise OptionError(f"{name} with {field}={value!r} is not supported; this call has {expected!r}")
        if name.endswith("Warper") and not is_sampling:
            raise OptionError(f"logits processor {name} is not supported without do_sample=True; leave it out")
