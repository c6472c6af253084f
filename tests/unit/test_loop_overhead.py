"""What the loop may not do between two calls of a fast model: ask a tensor for a number: a GPU would be waited for."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spec2seq.decoding.loop import Decoder
from spec2seq.decoding.transfer import packed, unpacked
from spec2seq.drafters.prompt_lookup import PromptLookupDrafter
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import tiny_config
from spec2seq.types import SourceBatch

TEXT = [*range(10, 40), *range(12, 40)]
SOURCE = [*range(10, 24), 2]

_ATEN = torch.ops.aten
# the first two in inference mode, the last otherwise
QUESTIONS = {_ATEN.item.default, _ATEN.is_nonzero.default, _ATEN._local_scalar_dense.default}


class CountingQuestions(TorchDispatchMode):
    """Counts how often a tensor is turned into a Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in QUESTIONS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("kind", ["none", "text", "prompt_lookup"])
def test_a_round_asks_no_tensor_for_a_number(kind: str, num_rows: int) -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "loop_overhead.py"))
    verifier = script["TextVerifier"](TEXT)
    makers = {
        "none": lambda: None,
        "text": lambda: script["TextDrafter"](TEXT),
        "prompt_lookup": lambda: PromptLookupDrafter(tiny_config()),
    }
    options = resolve_options({}, verifier.config, None, {"max_new_tokens": 40, "num_draft_tokens": 8})
    decoder = Decoder(verifier, makers[kind]())
    requests = decoder.add(SourceBatch.from_lists([SOURCE] * num_rows, 1), options)
    decoder.step()
    num_rounds = 0
    with CountingQuestions() as questions:
        while all(len(request.token_ids) < 25 for request in decoder._live.values()):
            decoder.step()
            num_rounds += 1
        assert questions.count == 0
    assert num_rounds > 1
    while decoder.alive:
        decoder.step()
    assert [decoder.result(request).hypotheses[0].token_ids for request in requests] == [TEXT[:40]] * num_rows


@pytest.mark.parametrize("is_inference", [True, False])
def test_questions_are_counted(is_inference: bool) -> None:
    with torch.inference_mode(is_inference), CountingQuestions() as questions:
        assert int(torch.arange(3).max()) == 2
        assert bool(torch.arange(3).any())
    assert questions.count == 2


def test_what_travels_together_arrives_as_it_was() -> None:
    tensors = [
        torch.tensor([[2**40 + 1, -3]]),
        torch.tensor([float("nan"), float("inf"), 1.1], dtype=torch.float32),
        torch.zeros((2, 0), dtype=torch.long),
        torch.tensor([True, False]),
    ]
    for found, expected in zip(unpacked(packed(tensors), tensors), tensors, strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found.nan_to_num(nan=-7.0), expected.nan_to_num(nan=-7.0))
        assert found.shape == expected.shape
