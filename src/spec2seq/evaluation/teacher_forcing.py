"""What a model would say at every place of a given output: its scores with that output fed, however it would go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec2seq.decoding.processors import QueryContext, build_processors
from spec2seq.types import SourceBatch, TensorScores, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec2seq.generation_options import ResolvedOptions
    from spec2seq.interfaces import Verifier


@torch.inference_mode()
def forced_scores(
    verifier: Verifier,
    source_ids: Sequence[int],
    prompt: Sequence[int],
    generated: Sequence[int],
    options: ResolvedOptions,
    first_query: int = 0,
) -> TensorScores:
    """Scores of the tokens that follow the prompt and each further generated token, after all processors.

    Args:
        source_ids: one source.
        prompt: what the target starts with, decoder start token included.
        generated: tokens after it.
        first_query: how many of the generated tokens stand before the first score that is wanted.

    Returns:
        [1, m, V], m = len(generated) + 1 - first_query.
    """
    device = verifier.device
    tokens = torch.tensor([[*prompt, *generated]], device=device)
    length = tokens.shape[1]
    queries = torch.arange(len(prompt) - 1 + first_query, length, device=device)[None]
    processors = build_processors(options, is_beam=False, device=device)
    encoded = verifier.encode(SourceBatch.from_lists([source_ids], verifier.config.pad_token_id, device))
    output = verifier.decode(
        tokens,
        torch.arange(length, device=device)[None],
        torch.tensor([length], device=device),
        verifier.new_cache(1),
        encoded,
        Wanted(top=2, logits=True, banned=processors.static_bans),
        queries=queries,
    )
    context = QueryContext(
        tokens=tokens,
        lengths=queries + 1,
        prompt_lengths=torch.tensor([len(prompt)], device=device),
        max_lengths=torch.tensor([len(prompt) + options.budget(len(prompt))], device=device),
        valid=torch.ones_like(queries, dtype=torch.bool),
    )
    return TensorScores(processors(output.scores.logits(), context))


def forced_choices(
    verifier: Verifier,
    source_ids: Sequence[int],
    prompt: Sequence[int],
    target: Sequence[int],
    options: ResolvedOptions,
) -> list[int]:
    """The best token at every place of `target`, with the tokens of `target` before it."""
    _, best = forced_scores(verifier, source_ids, prompt, target[:-1], options).top(1)
    choices: list[int] = best[0, :, 0].tolist()
    return choices
