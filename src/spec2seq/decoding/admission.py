"""What a decoder refuses before it queues anything: in a running batch a mistake would take its neighbours down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from spec2seq.errors import InputError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.config import ModelConfig
    from spec2seq.types import SourceBatch


def check_source(source: SourceBatch, config: ModelConfig) -> None:
    """Raises InputError for a source [B, S] that is empty, too long, or not of the model's source vocabulary."""
    if not len(source.lengths):
        return
    shortest, longest = (int(length) for length in source.lengths.aminmax())
    if shortest < 1:
        raise InputError(f"a source has {shortest} tokens; leave empty sources out")
    limit = config.max_source_positions
    if limit is not None and longest > limit:
        raise InputError(f"a source of {longest} tokens exceeds the {limit} positions of the model; shorten it")
    is_real = torch.arange(source.ids.shape[1], device=source.ids.device) < source.lengths[:, None]
    wrong = source.ids[is_real & ((source.ids < 0) | (source.ids >= config.source_vocab_size))]
    check_ids("a source holds", wrong[:1].tolist(), "source", config)


def check_rows(
    num_rows: int,
    config: ModelConfig,
    prompts: Sequence[Sequence[int]] | None,
    forced_first_tokens: Sequence[int | None] | None,
    budgets: Sequence[int] | None,
    seeds: Sequence[int] | None,
) -> None:
    """Check what is said about single sources; None where nothing is.

    Raises:
        InputError: a list has not one entry for each source, a prompt is empty, or an id is not of the target
            vocabulary.
        OptionError: a budget of no token.
    """
    lists = {"prompts": prompts, "forced_first_tokens": forced_first_tokens, "budgets": budgets, "seeds": seeds}
    for name, entries in lists.items():
        if entries is not None and len(entries) != num_rows:
            raise InputError(f"{name} has {len(entries)} entries for {num_rows} sources; give one for each source")
    for prompt in prompts or ():
        if not prompt:
            raise InputError(
                "a prompt of 0 tokens gives the model nothing to go on; begin with the decoder start token"
            )
        check_ids("a prompt holds", prompt, "target", config)
    forced = [token_id for token_id in forced_first_tokens or () if token_id is not None]
    check_ids("a forced first token is", forced, "target", config)
    for budget in budgets or ():
        if budget < 1:
            raise OptionError(f"a budget of {budget} new tokens is not allowed: use 1 or more, or leave the source out")


def check_encoder_states(
    encoder_states: Sequence[torch.Tensor] | None, source: SourceBatch, config: ModelConfig
) -> None:
    """Raises InputError unless there are none, or states [S_i, D] for every source."""
    if encoder_states is None:
        return
    found = [list(states.shape) for states in encoder_states]
    wanted = [[length, config.d_model] for length in source.lengths.tolist()]
    if found != wanted:
        raise InputError(
            f"encoder_states have shapes {found} for sources that need {wanted}; give the states of every source token"
        )


def check_ids(subject: str, token_ids: Sequence[int], side: Literal["source", "target"], config: ModelConfig) -> None:
    """Raises InputError for an id outside the vocabulary of that side; `subject` says, with its verb, where it is."""
    vocab_size = config.source_vocab_size if side == "source" else config.target_vocab_size
    wrong = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    if wrong:
        raise InputError(
            f"{subject} {wrong[0]}, but the {side} vocabulary has {vocab_size} tokens; "
            "use ids of this model's tokenizer"
        )
