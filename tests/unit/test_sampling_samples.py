"""What a caller hears of several samples of one source."""

from __future__ import annotations

import pytest
import torch

from spec2seq.decoding.samples import SampleGroup
from spec2seq.decoding.search import Request
from spec2seq.option_resolution import resolve_options
from spec2seq.testing import tiny_config
from spec2seq.types import Emission, FinishReason, Hypothesis


def make_group(num_samples: int) -> SampleGroup:
    options = resolve_options({}, tiny_config(), None, {"do_sample": True, "num_return_sequences": num_samples})
    return SampleGroup([Request(10 + i, torch.tensor([5, 2]), options, [2], 1, 20) for i in range(num_samples)])


def ending(request: int, reason: FinishReason) -> Emission:
    return Emission(request, [7], ["bonus"], 3, reason)


def test_tokens_of_the_first_one_are_passed_on() -> None:
    group = make_group(2)
    emission = Emission(10, [4, 5], ["accepted", "bonus"], 1)
    assert group.follow(emission) == [emission]
    assert group.follow(Emission(11, [4, 5], ["accepted", "bonus"], 1)) == []


def test_the_reason_comes_when_all_are_done() -> None:
    group = make_group(3)
    assert group.follow(ending(10, "eos")) == [Emission(10, [7], ["bonus"], 3)]
    assert group.follow(ending(12, "length")) == []
    assert group.follow(ending(11, "length")) == [Emission(10, [], [], 3, "eos")]


@pytest.mark.parametrize("broken", [10, 11, 12])
def test_one_broken_sample_is_told(broken: int) -> None:
    group = make_group(3)
    told = [group.follow(ending(i, "error" if i == broken else "eos")) for i in (10, 11, 12)]
    assert told[-1][-1] == Emission(10, [], [], 3, "error")
    group.samples[broken - 10].error = "NaN"
    for sample in group.samples:
        sample.token_ids.append(sample.id)
    group.gather()
    assert group.samples[0].error == "NaN"
    assert group.samples[0].hypotheses == [Hypothesis([10]), Hypothesis([11]), Hypothesis([12])]
