"""Sampling with drafters on the verifier's states: every text comes as often as the verifier's law says."""

from __future__ import annotations

import pytest
import torch

from spec2seq.decoding.loop import Decoder
from spec2seq.decoding.warpers import Warpers
from spec2seq.option_resolution import resolve_options
from spec2seq.types import SourceBatch, Wanted
from tests.chi_square import p_value
from tests.unit.test_drafters_on_states import make_drafter, verifier

SOURCE = [3, 6, 0, 2]
NUM_ROWS, LENGTH, EOS = 1500, 4, 2
WARPING = {"temperature": 1.4, "top_k": 5, "top_p": 0.98}


def law() -> dict[tuple[int, ...], float]:
    """Probability of every output of at most so many tokens, all prefixes of a length at once."""
    engine = verifier()
    finished: dict[tuple[int, ...], float] = {}
    running: dict[tuple[int, ...], float] = {(): 1.0}
    for length in range(1, LENGTH + 1):
        tokens = torch.tensor([[2, *prefix] for prefix in running])
        encoded = engine.encode(SourceBatch.from_lists([SOURCE] * len(running), 1))
        positions, lengths = torch.arange(length).expand_as(tokens), torch.full((len(running),), length)
        output = engine.decode(tokens, positions, lengths, engine.new_cache(len(running)), encoded, Wanted(logits=True))
        chances = Warpers(1.4, 5, 0.98)(output.scores.logits()[:, -1]).softmax(-1).tolist()
        grown: dict[tuple[int, ...], float] = {}
        for (prefix, probability), row in zip(running.items(), chances, strict=True):
            for token, chance in enumerate(row):
                is_done = token == EOS or length == LENGTH
                (finished if is_done else grown)[(*prefix, token)] = probability * chance
        running = grown
    return finished


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, ...], float]:
    with torch.inference_mode():
        return law()


@pytest.mark.parametrize("kind", ["mix", "shortlist", "blockwise"])
@pytest.mark.parametrize("num_draft_tokens", [2, 5])
def test_outputs_follow_the_law(expected: dict[tuple[int, ...], float], kind: str, num_draft_tokens: int) -> None:
    said = {"do_sample": True, "num_return_sequences": NUM_ROWS, "max_new_tokens": LENGTH, **WARPING}
    options = resolve_options({}, verifier().config, None, {**said, "num_draft_tokens": num_draft_tokens})
    decoder = Decoder(verifier(), make_drafter(kind), max_rows=NUM_ROWS)
    (request,) = decoder.add(SourceBatch.from_lists([SOURCE], 1), options, seeds=None)
    while decoder.alive:
        decoder.step()
    result = decoder.result(request)
    places = {output: i for i, output in enumerate(expected)}
    counts = torch.zeros(len(expected))
    for hypothesis in result.hypotheses:
        counts[places[tuple(hypothesis.token_ids)]] += 1
    assert result.stats.num_accepted > NUM_ROWS / 10
    assert p_value(counts, torch.tensor(list(expected.values()))) > 1e-3
