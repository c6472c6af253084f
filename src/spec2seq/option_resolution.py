"""What a call really uses: its arguments, an options object, the checkpoint and the defaults, put together."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from spec2seq.errors import OptionError
from spec2seq.generation_options import OPTION_NAMES, GenerationOptions, ResolvedOptions, option_info, unknown_option
from spec2seq.transformers_settings import SETTING_NAMES, check_settings, no_sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec2seq.config import ModelConfig

CHECKPOINT_SETTINGS = SETTING_NAMES | frozenset(OPTION_NAMES)
"""Names that a config.json without a generation_config.json beside it may use for generation settings."""


def resolve_options(
    checkpoint: Mapping[str, object],
    model: ModelConfig,
    options: GenerationOptions | None = None,
    arguments: Mapping[str, object] | None = None,
) -> ResolvedOptions:
    """Put together what call, options object, checkpoint and defaults say: the first that speaks counts.

    Args:
        checkpoint: the checkpoint's generation settings, as in generation_config.json.
        model: gives the vocabulary, the positions and the end-of-sequence ids nobody else names.
        options: an options object shared by many calls.
        arguments: what this call says. Neutral values of transformers' other settings are let through too.

    Raises:
        OptionError: a name is unknown, a value is not allowed, options contradict each other, or the checkpoint or the
            call asks for something that is not supported.

    Warns:
        UserWarning: the call says something that has no effect with the rest of it.
    """
    own, foreign = _split(arguments or {})
    for name in foreign.keys() - SETTING_NAMES:
        raise OptionError(unknown_option(name, foreign[name]))
    checkpoint_own, checkpoint_foreign = _split(checkpoint)
    said = _Said(GenerationOptions.from_mapping(own), options or GenerationOptions(), _of_checkpoint(checkpoint_own))
    resolved = _resolved(said, model)
    check_settings(checkpoint_foreign, foreign, resolved.do_sample)
    _check_ids(resolved, model.target_vocab_size)
    _check_sampling(resolved, said)
    _check_beams(resolved, said)
    _check_outputs(resolved)
    _check_tau(resolved, said)
    _check_bans(resolved, said)
    return resolved


class _Said(NamedTuple):
    """Who says what, strongest first."""

    arguments: GenerationOptions
    options: GenerationOptions
    checkpoint: GenerationOptions

    def value(self, name: str) -> Any:
        """What the first one says who says it; the default when nobody does."""
        return next((value for level in self if (value := getattr(level, name)) is not None), option_info(name).default)

    def first(self, *names: str) -> GenerationOptions | None:
        """The first one who says any of these options."""
        return next((level for level in self if any(getattr(level, name) is not None for name in names)), None)

    def is_by_user(self, *names: str) -> bool:
        """Whether the call or the options object says any of these options."""
        level = self.first(*names)
        return level is not None and level is not self.checkpoint


def _split(values: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """The options in `values`, and everything else."""
    own = {name: value for name, value in values.items() if name in OPTION_NAMES}
    return own, {name: value for name, value in values.items() if name not in OPTION_NAMES}


def _of_checkpoint(values: Mapping[str, object]) -> GenerationOptions:
    try:
        return GenerationOptions.from_mapping(values)
    except OptionError as error:
        raise OptionError(f"in the checkpoint's generation settings: {error}") from None


def _resolved(said: _Said, model: ModelConfig) -> ResolvedOptions:
    eos_token_ids = said.value("eos_token_id")
    if eos_token_ids is None:
        eos_token_ids = model.eos_token_ids
    eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
    max_new_tokens, max_length = _limits(said, model.max_target_positions)
    min_new_tokens, min_length = _minima(said)
    top_beta, suppressed = said.value("top_beta"), said.value("suppress_tokens")
    is_sampling = said.value("do_sample") and said.value("temperature") > 0
    return ResolvedOptions(
        num_beams=said.value("num_beams"),
        num_return_sequences=said.value("num_return_sequences"),
        do_sample=is_sampling,
        temperature=said.value("temperature") if is_sampling else 1.0,
        top_k=said.value("top_k") if is_sampling else 0,
        top_p=said.value("top_p") if is_sampling else 1.0,
        min_p=said.value("min_p") if is_sampling else 0.0,
        is_seeded=is_sampling and said.value("seed") is not None,
        length_penalty=said.value("length_penalty"),
        early_stopping=said.value("early_stopping"),
        renormalize_logits=said.value("renormalize_logits"),
        no_repeat_ngram_size=said.value("no_repeat_ngram_size"),
        repetition_penalty=said.value("repetition_penalty"),
        min_new_tokens=min_new_tokens,
        min_length=min_length,
        bad_words_ids=tuple(word for word in said.value("bad_words_ids") or () if not _is_eos(word, eos_token_ids)),
        suppress_tokens=suppressed,
        forced_eos_token_ids=tuple(i for i in said.value("forced_eos_token_id") if i not in suppressed),
        eos_token_ids=eos_token_ids,
        num_draft_tokens=said.value("num_draft_tokens"),
        speculative_beams=said.value("speculative_beams"),
        top_beta=top_beta,
        tau=said.value("tau") if top_beta > 1 else 0.0,
        guard_eos=said.value("guard_eos"),
        output_scores=said.value("output_scores"),
        output_logits=said.value("output_logits"),
        output_margin=said.value("output_margin"),
        # An empty list turns off what the checkpoint forces.
        forced_bos_token_id=None if said.value("forced_bos_token_id") == () else said.value("forced_bos_token_id"),
        max_new_tokens=max_new_tokens,
        max_length=max_length,
        max_positions=model.max_target_positions,
        seed=said.value("seed") if is_sampling else None,
    )


def _is_eos(word: tuple[int, ...], eos_token_ids: tuple[int, ...]) -> bool:
    return len(word) == 1 and word[0] in eos_token_ids


def _minima(said: _Said) -> tuple[int, int]:
    """min_new_tokens and min_length of whoever says either of them first; the one that does not count is 0."""
    level = said.first("min_new_tokens", "min_length")
    if level is None:
        return 0, 0
    return (level.min_new_tokens, 0) if level.min_new_tokens is not None else (0, level.min_length or 0)


def _limits(said: _Said, positions: int | None) -> tuple[int, int | None]:
    """max_new_tokens and max_length of `ResolvedOptions`, of whoever says either of them first.

    A model with P positions takes in P tokens, so that the longest output counts P + 1 with the decoder start token:
    the last one is never fed. A user may ask for that; what a checkpoint asks for is cut to it; the default stays
    within P as in transformers.
    """
    level = said.first("max_new_tokens", "max_length")
    if level is None:
        default: int = option_info("max_new_tokens").default
        return (default, None) if positions is None else (min(default, positions - 1), positions)
    max_length = None if level.max_new_tokens is not None else level.max_length
    max_new_tokens = level.max_new_tokens if max_length is None else max_length - 1
    assert max_new_tokens is not None  # `first` found one of the two
    if positions is not None and level is said.checkpoint:
        max_length = min(max_length or positions + 1, positions + 1)
        max_new_tokens = min(max_new_tokens, positions)
    elif positions is not None and max_new_tokens > positions:
        raise OptionError(_too_long(level, positions))
    return max_new_tokens, max_length


def _too_long(level: GenerationOptions, positions: int) -> str:
    if level.max_new_tokens is not None:
        return f"max_new_tokens={level.max_new_tokens} exceeds the {positions} positions of the model; use at most that"
    return (
        f"max_length={level.max_length} exceeds the {positions} positions of the model; use at most {positions + 1} "
        "(the last token needs no position)"
    )


def _check_ids(resolved: ResolvedOptions, vocab_size: int) -> None:
    forced_bos = resolved.forced_bos_token_id
    groups = {
        "eos_token_id": resolved.eos_token_ids,
        "suppress_tokens": resolved.suppress_tokens,
        "forced_eos_token_id": resolved.forced_eos_token_ids,
        "bad_words_ids": tuple(token_id for word in resolved.bad_words_ids for token_id in word),
        "forced_bos_token_id": forced_bos if isinstance(forced_bos, tuple) else (forced_bos or 0,),
    }
    for name, token_ids in groups.items():
        wrong = [token_id for token_id in token_ids if token_id >= vocab_size]
        if wrong:
            raise OptionError(
                f"{name} holds {wrong[0]}, but the target vocabulary has {vocab_size} tokens; use ids below that"
            )


# what only sampling reads, and the values of it that ask for nothing
_SAMPLING_OPTIONS = {"temperature": (1.0,), "top_k": (50, 0), "top_p": (1.0,), "min_p": (0.0,), "seed": ()}


def _check_sampling(resolved: ResolvedOptions, said: _Said) -> None:
    if not said.value("do_sample"):
        for name, neutral in _SAMPLING_OPTIONS.items():
            if said.is_by_user(name) and said.value(name) not in neutral:
                warnings.warn(no_sampling(name, said.value(name)), stacklevel=3)
        return
    where = "do_sample=True"
    if not said.is_by_user("do_sample"):
        where = "do_sample=True in the checkpoint's generation settings"
    if resolved.num_beams > 1:
        raise OptionError(
            f"{where} contradicts num_beams={resolved.num_beams}: pass do_sample=False for beam search, "
            "or num_beams=1 for sampling"
        )
    if resolved.top_beta > 1:
        raise OptionError(
            f"{where} contradicts top_beta={resolved.top_beta}, which relaxes greedy search: pass do_sample=False, "
            "or top_beta=1 for sampling"
        )


def _check_beams(resolved: ResolvedOptions, said: _Said) -> None:
    beams, outputs = resolved.num_beams, resolved.num_return_sequences
    if outputs > beams and not resolved.do_sample:
        raise OptionError(
            f"num_return_sequences={outputs} needs sampling or beam search with as many beams, but num_beams={beams}; "
            f"pass do_sample=True, num_beams={outputs} or more, or num_return_sequences={beams}"
        )
    if beams > 1 and resolved.top_beta > 1:
        raise OptionError(
            f"top_beta={resolved.top_beta} relaxes greedy search and cannot be combined with num_beams={beams}; "
            "pass num_beams=1 or top_beta=1"
        )
    for name in ("length_penalty", "early_stopping", "speculative_beams"):
        value = getattr(resolved, name)
        if beams == 1 and said.is_by_user(name) and value != option_info(name).default:
            warnings.warn(f"{name}={value!r} has no effect without beam search; pass num_beams above 1", stacklevel=3)


def _check_outputs(resolved: ResolvedOptions) -> None:
    if resolved.output_logits and resolved.num_beams > 1:
        raise OptionError(
            f"output_logits=True is not supported with num_beams={resolved.num_beams}; pass num_beams=1, or "
            "output_scores=True for the scores of the beams"
        )
    if resolved.output_margin and (resolved.num_beams > 1 or resolved.do_sample):
        raise OptionError(
            f"output_margin=True with num_beams={resolved.num_beams}, do_sample={resolved.do_sample}: only greedy "
            "search chooses between the two best tokens; pass num_beams=1 and do_sample=False"
        )


def _check_tau(resolved: ResolvedOptions, said: _Said) -> None:
    if said.first("tau") is not None and said.first("top_beta") is None:
        tau = said.value("tau")
        raise OptionError(f"tau={tau!r} without top_beta says nothing; pass top_beta=3 with it, or leave tau out")


def _check_bans(resolved: ResolvedOptions, said: _Said) -> None:
    if said.is_by_user("bad_words_ids") and not resolved.bad_words_ids:
        raise OptionError(
            f"bad_words_ids={said.value('bad_words_ids')!r} bans nothing but the end of the sequence, which cannot be "
            "banned; use min_new_tokens for longer outputs"
        )
    banned = set(resolved.suppress_tokens)
    forced_bos = resolved.forced_bos_token_id
    forced_bos = forced_bos if isinstance(forced_bos, tuple) else () if forced_bos is None else (forced_bos,)
    if banned & set(forced_bos):
        raise OptionError(
            f"forced_bos_token_id={forced_bos!r} is forced and suppressed; take it out of suppress_tokens"
        )
    if said.value("forced_eos_token_id") and not resolved.forced_eos_token_ids:
        raise OptionError(
            f"forced_eos_token_id={said.value('forced_eos_token_id')!r} is forced and suppressed; "
            "take it out of suppress_tokens"
        )
    if said.is_by_user("min_new_tokens", "min_length") and said.is_by_user("max_new_tokens", "max_length"):
        minimum = max(resolved.min_new_tokens, resolved.min_length - 1)
        if minimum > resolved.max_new_tokens:
            raise OptionError(
                f"at least {minimum} new tokens are asked for and at most {resolved.max_new_tokens}; "
                "lower the minimum or raise the maximum"
            )
