"""The keyword arguments of a call, for type checkers; `config.GenerationOptions` says what they mean. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, get_args

if TYPE_CHECKING:
    from collections.abc import Sequence

LongInput = Literal["split", "truncate", "error"]
LONG_INPUT_CHOICES: tuple[LongInput, ...] = get_args(LongInput)
DEFAULT_BATCH_TOKENS = 16384


class GenerationArguments(TypedDict, total=False):
    """One key per option of `config.GenerationOptions`; None means "not said"."""

    max_new_tokens: int | None
    max_length: int | None
    min_new_tokens: int | None
    min_length: int | None
    num_beams: int | None
    num_return_sequences: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    length_penalty: float | None
    early_stopping: bool | Literal["never"] | None
    renormalize_logits: bool | None
    no_repeat_ngram_size: int | None
    repetition_penalty: float | None
    bad_words_ids: Sequence[Sequence[int]] | None
    suppress_tokens: Sequence[int] | None
    forced_bos_token_id: int | Sequence[int] | None
    forced_eos_token_id: int | Sequence[int] | None
    eos_token_id: int | Sequence[int] | None
    num_draft_tokens: int | Literal["auto"] | None
    speculative_beams: bool | None
    top_beta: int | None
    tau: float | None
    guard_eos: bool | None
    output_scores: bool | None
    output_logits: bool | None
    output_margin: bool | None
