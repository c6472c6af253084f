"""Beginnings of outputs that a caller gives: what the decoder finds behind the decoder start token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from spec2seq.decoding.admission import check_ids
from spec2seq.errors import InputError
from spec2seq.pipelines.piece_decoder import decoder_start
from spec2seq.pipelines.text_inputs import check_whole
from spec2seq.tokenization import TargetStart

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.config import ModelConfig
    from spec2seq.pipelines.plans import InputPlan, Piece

    TargetPrefixes = str | Sequence[str | Sequence[int] | None] | Tensor | None
    EncodeTarget = Callable[[Sequence[str]], list[list[int]]]


def give_prefixes(
    plans: Sequence[InputPlan],
    prefixes: TargetPrefixes,
    has_language: Sequence[bool],
    encode: EncodeTarget,
    config: ModelConfig,
    label: Callable[[int], str],
) -> None:
    """Put the given beginnings into the pieces of the plans.

    A text stands behind the forced first token, as the rest of an output would. Ids stand right behind the decoder
    start token, which may be among them, and behind the token of a language that the call names; so they are what
    transformers takes as `decoder_input_ids`.

    Args:
        plans: one per input.
        prefixes: a text for all inputs, or for each input a text, ids, or None.
        has_language: per input, whether the call names its target language.
        encode: texts to target ids, nothing added.
        config: of the model.
        label: what messages call an input.

    Raises:
        InputError: not one entry per input, an entry of another type, half a character in it, an id outside the
            vocabulary, or a beginning for an input that is split into several pieces.
    """
    entries = _one_each(prefixes, len(plans))
    texts = [entry for entry in entries if isinstance(entry, str)]
    for text in texts:
        check_whole("target_prefix", text)
    encoded = iter(encode(texts)) if texts else iter(())
    for i, (plan, entry) in enumerate(zip(plans, entries, strict=True)):
        is_text = isinstance(entry, str)
        ids = next(encoded) if is_text else _checked_ids(i, entry, config)
        if not ids or not plan.pieces:
            continue
        if len(plan.pieces) > 1:
            raise InputError(
                f"{label(i)} is decoded in {len(plan.pieces)} pieces, and target_prefix can begin only one; "
                "give each line or sentence as an input of its own, or pass long_input='truncate'"
            )
        plan.pieces[0] = _with_prefix(plan.pieces[0], ids, config, is_text=is_text, has_language=has_language[i])


def _with_prefix(piece: Piece, ids: list[int], config: ModelConfig, *, is_text: bool, has_language: bool) -> Piece:
    start = decoder_start(piece.start, config)
    if not is_text and ids[0] == start:
        ids = ids[1:]
    first = piece.start.forced_first if is_text or has_language else None
    if first is not None and ids[:1] != [first]:
        ids = [first, *ids]
    return replace(piece, start=TargetStart(start), target_prefix=ids) if ids else piece


def _one_each(prefixes: TargetPrefixes, num_inputs: int) -> list[object]:
    if isinstance(prefixes, str):
        return [prefixes] * num_inputs
    if not isinstance(prefixes, Tensor | Sequence | None):
        raise InputError(
            f"target_prefix is a {type(prefixes).__name__}; give one text for all, or a list with one entry per input"
        )
    entries: list[object] = prefixes.tolist() if isinstance(prefixes, Tensor) else list(prefixes or ())
    if len(entries) != num_inputs:
        raise InputError(
            f"target_prefix has {len(entries)} entries for {num_inputs} inputs; give one text for all, or for each "
            "input a text, a list of ids, or None"
        )
    return entries


def _checked_ids(index: int, entry: object, config: ModelConfig) -> list[int]:
    if entry is None:
        return []
    values = entry.tolist() if isinstance(entry, Tensor) else entry
    if not isinstance(values, Sequence) or not all(isinstance(value, int) for value in values):
        raise InputError(f"target_prefix[{index}] is a {type(entry).__name__}; give a text or a list of ids")
    check_ids(f"target_prefix[{index}] holds", values, "target", config)
    return list(values)
