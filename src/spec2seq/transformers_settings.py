"""The generation settings of transformers that are not options here: what they may say without changing anything.

Checkpoints carry them, and users pass them out of habit. A setting that asks for nothing is let through; one that asks
for something is refused, so that nothing is ever silently ignored. Names and neutral values: transformers 5.24,
`GenerationConfig`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from spec2seq.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Only sampling reads them, so that any value is neutral without it; these are neutral with it too.
SAMPLING: dict[str, tuple[object, ...]] = {
    "top_h": (),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
}

# These change the output. None is neutral for all of them, and so are the values here.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "use_cache": (True, False),
    "max_time": (),
    "stop_strings": ([], ()),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "remove_invalid_values": (False,),
    "exponential_decay_length_penalty": (),
    "begin_suppress_tokens": ([], ()),
    "sequence_bias": (),
    "token_healing": (False,),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "constraints": (),
    "force_words_ids": (),
    "forced_decoder_ids": (),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "prompt_lookup_num_tokens": (),
    "assistant_early_exit": (),
    "assistant_ensemble_weight": (),
    "speculation_type": (),
    "use_mtp": (False,),
}

# In a checkpoint these say who wrote it, name tokens that the model's own configuration names too, or tune the cache,
# compiler and assistant of transformers. None of them changes what is generated here.
WITHOUT_EFFECT = frozenset(
    {
        "transformers_version",
        "_from_model_config",
        "_commit_hash",
        "pad_token_id",
        "bos_token_id",
        "decoder_start_token_id",
        "return_dict_in_generate",
        "cache_implementation",
        "cache_config",
        "max_cache_len",
        "compile_config",
        "disable_compile",
        "prefill_chunk_size",
        "low_memory",
        "is_assistant",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "max_matching_ngram_size",
        "assistant_lookbehind",
        "target_lookbehind",
        "continuous_batching_config",
    }
)

SETTING_NAMES = frozenset(SAMPLING) | frozenset(NEUTRAL) | WITHOUT_EFFECT


def check_settings(checkpoint: Mapping[str, object], arguments: Mapping[str, object], is_sampling: bool) -> None:
    """Refuse settings that are no options here unless they are neutral. An argument stands above the checkpoint.

    Args:
        checkpoint: the checkpoint's settings that are no options.
        arguments: the same of the caller; all of them are in `SETTING_NAMES`.
        is_sampling: whether tokens are drawn at random.

    Raises:
        OptionError: a setting is not neutral.

    Warns:
        UserWarning: the caller tuned sampling without asking for it.
    """
    arguments = {name: value for name, value in arguments.items() if value is not None}
    for name, value in {**checkpoint, **arguments}.items():
        if not _is_neutral(name, value, name in arguments, is_sampling):
            raise OptionError(_refusal(name, value, name in arguments))
    for name in SAMPLING.keys() & arguments.keys():
        if arguments[name] not in SAMPLING[name]:
            warnings.warn(no_sampling(name, arguments[name]), stacklevel=3)


def no_sampling(name: str, value: object) -> str:
    """The message for something that only sampling reads, in a call without sampling."""
    return f"{name}={value!r} has no effect: it tunes sampling, and do_sample is off"


def _is_neutral(name: str, value: object, is_argument: bool, is_sampling: bool) -> bool:
    if value is None or value in NEUTRAL.get(name, ()):
        return True
    if name in SAMPLING:
        return not is_sampling or value in SAMPLING[name]
    return name in WITHOUT_EFFECT and not is_argument


def _refusal(name: str, value: object, is_argument: bool) -> str:
    if is_argument:
        return f"{name}={value!r} is not supported; leave it out"
    neutral = SAMPLING.get(name) or NEUTRAL.get(name)
    remedy = f"pass {name}={neutral[0]!r}" if neutral else "remove it from generation_config.json"
    return f"{name}={value!r} in the checkpoint's generation settings is not supported; {remedy} to do without it"
