"""Decoded requests in the form in which transformers' generate returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spec2seq.types import pad_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.types import DecodedRequest


def make_output(
    results: Sequence[DecodedRequest],
    prompts: Sequence[Sequence[int]],
    options: ResolvedOptions,
    generation_config: Any,
    device: torch.device,
) -> Any:
    """Ids, or with return_dict_in_generate an object of transformers.

    Its `scores` and `logits` hold zeros behind the end of a row, where nothing was computed. A beam search has
    `sequences_scores`, no scores per step.

    Args:
        results: one per row.
        prompts: of the same rows.
        options: of the call.
        generation_config: the same as transformers has it.
        device: of the ids.
    """
    outputs = [hypothesis for result in results for hypothesis in result.hypotheses]
    starts = [prompt[0] for result, prompt in zip(results, prompts, strict=True) for _ in result.hypotheses]
    rows = [[start, *hypothesis.token_ids] for start, hypothesis in zip(starts, outputs, strict=True)]
    sequences, _ = pad_rows(rows, _filler(options, generation_config), device)
    if not generation_config.return_dict_in_generate:
        return sequences
    from transformers import generation

    kinds: Any = generation
    if options.num_beams > 1:
        scores = _tensor([hypothesis.score for hypothesis in outputs], device) if options.output_scores else None
        return kinds.GenerateBeamEncoderDecoderOutput(sequences=sequences, sequences_scores=scores)
    return kinds.GenerateEncoderDecoderOutput(
        sequences=sequences,
        scores=_per_step([hypothesis.scores for hypothesis in outputs], device) if options.output_scores else None,
        logits=_per_step([hypothesis.logits for hypothesis in outputs], device) if options.output_logits else None,
    )


def _filler(options: ResolvedOptions, generation_config: Any) -> int:
    """What transformers puts behind the end of a shorter row: in beam search the end itself where the pad is 0."""
    pad = generation_config._pad_token_tensor
    pad_id = None if pad is None else int(pad)
    if options.num_beams == 1:
        return pad_id or 0
    if not options.eos_token_ids:
        return -1
    return pad_id or options.eos_token_ids[0]


def _tensor(scores: Sequence[float | None], device: torch.device) -> Tensor:
    return torch.tensor([float(score or 0.0) for score in scores], device=device)


def _per_step(parts: Sequence[Tensor | None], device: torch.device) -> tuple[Tensor, ...]:
    """One tensor [rows, V] per step out of one [n, V] per row."""
    known = [part for part in parts if part is not None]
    return tuple(torch.nn.utils.rnn.pad_sequence(known).to(device).unbind(0))
