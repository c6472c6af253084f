"""Programs of the OpenVINO engine: when there is a new one, and that it computes the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.testing import tiny_config
from spec2seq.types import SourceBatch, Wanted

pytest.importorskip("openvino")

from spec2seq.backends.openvino import step_programs
from spec2seq.backends.openvino.engine import FEW_POSITIONS, Engine, ThreadPlan
from spec2seq.backends.openvino.sizes import padded_length, padded_prefix, padded_queries, padded_rows
from spec2seq.backends.openvino.verifier import OpenVinoVerifier
from spec2seq.backends.openvino.verifier_graphs import verifier_graphs

if TYPE_CHECKING:
    from torch import Tensor


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def graphs() -> dict[str, object]:
    torch.manual_seed(4)
    network = Seq2Seq(tiny_config())
    for parameter in network.parameters():
        parameter.data.normal_(0.0, 0.4)
    return verifier_graphs(network)


def _verifier(graphs: dict[str, object]) -> OpenVinoVerifier:
    return OpenVinoVerifier(tiny_config(), Engine(graphs, "float32", ThreadPlan(1, 1)))


def _steps(verifier: OpenVinoVerifier, width: int, rows: int = 1) -> Tensor:
    """Logits of 40 tokens, `width` at a time."""
    tokens = torch.randint(3, 50, (rows, 40), generator=torch.Generator().manual_seed(1))
    encoded = verifier.encode(SourceBatch(tokens[:, :9], torch.full((rows,), 9)))
    cache, positions, lengths = verifier.new_cache(rows), torch.arange(40).repeat(rows, 1), torch.full((rows,), width)
    return torch.cat(
        [
            verifier.decode(
                tokens[:, i : i + width], positions[:, i : i + width], lengths, cache, encoded, Wanted(logits=True)
            ).scores.logits()
            for i in range(0, 40, width)
        ],
        dim=1,
    )


def test_frequent_sizes_get_programs_that_compute_the_same(
    graphs: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_programs, "_CALLS_BEFORE", 15)
    monkeypatch.setattr(step_programs, "_MOST_FIXED", 2)
    verifier = _verifier(graphs)
    plain = {width: _steps(_verifier(graphs), width) for width in (1, 4, 5, 8)}
    for _ in range(3):
        for width, expected in plain.items():
            assert torch.equal(_steps(verifier, width), expected)
    _steps(verifier, 1, rows=2)
    outputs = ("logits", "new")
    assert set(verifier._programs._fixed) == {(1, outputs), (4, outputs)}  # 120 and 30 calls; 5 came too late


def test_large_graphs_get_no_second_program(graphs: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(graphs, "float32", ThreadPlan(1, 1))
    assert 30_000 < engine.num_bytes("step") < 50_000
    monkeypatch.setattr(step_programs, "_CALLS_BEFORE", 0)
    monkeypatch.setattr(step_programs, "_LARGEST_GRAPH", 30_000)
    verifier = OpenVinoVerifier(tiny_config(), engine)
    _steps(verifier, 1)
    assert not verifier._programs._fixed


def test_few_positions_and_many_have_their_own_numbers_of_threads(graphs: dict[str, object]) -> None:
    engine = Engine(graphs, "float32", ThreadPlan(1, 2))
    few, many = engine.program("step", FEW_POSITIONS), engine.program("step", FEW_POSITIONS + 1)
    assert few is engine.program("step", 1)
    assert many is engine.program("step", 1000) is not few
    engine.threads = ThreadPlan(2, 2)
    engine.forget_others()
    assert engine.program("step", 1) is many


def test_sizes_are_few_and_never_too_small() -> None:
    for padded, exact, most in ((padded_rows, 8, 0.25), (padded_queries, 16, 0.125)):
        sizes = [padded(count) for count in range(1, 300)]
        assert sizes[:exact] == list(range(1, exact + 1))
        assert all(count <= size <= count * (1 + most) for count, size in enumerate(sizes, start=1))
        assert len(set(sizes)) < 60
    assert [padded_length(length) for length in (0, 1, 16, 17)] == [0, 16, 16, 32]
    assert [padded_prefix(length) for length in (1, 8, 9)] == [8, 8, 16]
