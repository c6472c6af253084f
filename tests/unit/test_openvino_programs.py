"""Programs of the OpenVINO engine: when there is a new one, and that it computes the same."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.testing import tiny_config
from spec2seq.types import SourceBatch, Wanted

pytest.importorskip("openvino", reason="needs pip install 'spec2seq[openvino]'")

from spec2seq.backends.openvino import engine as engines
from spec2seq.backends.openvino.engine import FEW_POSITIONS, Engine, ThreadPlan
from spec2seq.backends.openvino.precision import in_precision
from spec2seq.backends.openvino.program import Program
from spec2seq.backends.openvino.sizes import padded_length, padded_prefix, padded_queries, padded_rows
from spec2seq.backends.openvino.tracing import size_names
from spec2seq.backends.openvino.trials import compute_alike
from spec2seq.backends.openvino.verifier import OpenVinoVerifier
from spec2seq.backends.openvino.verifier_graphs import step_outputs, verifier_graphs, verifier_inputs

if TYPE_CHECKING:
    from torch import Tensor

ONE_THREAD = ThreadPlan(1, 1)


@pytest.fixture(autouse=True)
def _inference() -> object:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def graphs() -> dict[str, Any]:
    return _graphs(seed=4)


def _graphs(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    network = Seq2Seq(tiny_config())
    for parameter in network.parameters():
        parameter.data.normal_(0.0, 0.4)
    return verifier_graphs(network)


def _engine(graphs: dict[str, Any], threads: ThreadPlan | None = None) -> Engine:
    return Engine(graphs, size_names(verifier_inputs(tiny_config())), "float32", threads or ONE_THREAD)


def _verifier(graphs: dict[str, Any]) -> OpenVinoVerifier:
    return OpenVinoVerifier(tiny_config(), _engine(graphs))


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


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes as long as 15 calls cost in vain, or 3 after calls of other sizes."""
    compile_as_before = Program.__init__

    def compile_in_vain(self: Program, *arguments: Any) -> None:
        compile_as_before(self, *arguments)
        self.seconds_to_compile = 15.0

    monkeypatch.setattr(Program, "__init__", compile_in_vain)
    monkeypatch.setattr(engines, "_SAVED_PER_CALL", 1.0)
    monkeypatch.setattr(engines, "_SAVED_PER_CHANGE", 5.0)


def _sized(verifier: OpenVinoVerifier, graph: str) -> set[int]:
    """The sizes that programs of a graph were made for, the number of rows and of scored queries left out."""
    return {
        dict(sizes).get("queries", dict(sizes).get("source"))
        for name, _, sizes in verifier.engine._sized
        if name == graph
    }


@pytest.mark.usefixtures("costs")
def test_frequent_sizes_get_programs_that_compute_the_same(graphs: dict[str, Any]) -> None:
    verifier = _verifier(graphs)
    plain = {width: _steps(_verifier(graphs), width) for width in (1, 5, 8)}
    assert torch.equal(_steps(verifier, 8), plain[8])  # 5 calls of 9 queries, all after the first alike
    assert _sized(verifier, "step") == set()
    assert torch.equal(_steps(verifier, 1), plain[1])
    assert _sized(verifier, "step") == {1}
    for _ in range(3):
        for width, expected in plain.items():
            assert torch.equal(_steps(verifier, width), expected)
    assert _sized(verifier, "step") == {1, 5, 9}
    assert _sized(verifier, "encoder") == _sized(verifier, "cross") == {32}
    _steps(verifier, 4, rows=2)
    assert _sized(verifier, "step") == {1, 5, 9}


@pytest.mark.usefixtures("costs")
def test_alternating_sizes_get_programs_sooner(graphs: dict[str, Any]) -> None:
    verifier = _verifier(graphs)
    tokens = torch.full((1, 40), 7)
    for width in (9, 40, 9, 40):
        verifier.encode(SourceBatch(tokens[:, :width], torch.tensor([width])))
        assert _sized(verifier, "encoder") == set()
    verifier.encode(SourceBatch(tokens[:, :9], torch.tensor([9])))
    assert _sized(verifier, "encoder") == {32}


@pytest.mark.usefixtures("costs")
def test_memory_for_such_programs_is_limited(graphs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = _verifier(graphs)
    num_bytes = verifier.engine.program("step", 1, step_outputs()).num_bytes
    assert 30_000 < num_bytes < 50_000
    monkeypatch.setattr(verifier.engine, "_bytes_left", num_bytes)
    _steps(verifier, 1)
    _steps(verifier, 1)
    assert _sized(verifier, "step") == {1}
    assert verifier.engine._bytes_left == 0
    _steps(verifier, 5)
    _steps(verifier, 1)
    _steps(verifier, 5)
    _steps(verifier, 5)
    assert _sized(verifier, "step") == {1}


@pytest.mark.usefixtures("costs")
def test_programs_that_compute_something_else_are_not_used(
    graphs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier, asked = _verifier(graphs), []
    monkeypatch.setattr(engines, "compute_alike", lambda *arguments: bool(asked.append(arguments)))
    for _ in range(3):
        _steps(verifier, 1)
        _steps(verifier, 5)
    assert verifier.engine._sized == {}
    assert len(asked) == 1  # nothing is expected of the graph any more


def test_trials_tell_networks_apart(graphs: dict[str, Any]) -> None:
    sizes = {"rows": 1, "queries": 3, "scored": 3}
    others = _graphs(seed=5)
    for precision in ("float32", "bfloat16"):
        clones = [{name: graph.clone() for name, graph in these.items()} for these in (graphs, others)]
        both = [in_precision(these, precision) for these in clones]
        engine, other = (Engine(these, {}, precision, ONE_THREAD) for these in both)
        for name, entries in size_names(verifier_inputs(tiny_config())).items():
            program = engine.program(name, 1)
            assert compute_alike(program, program, entries, sizes)
            assert not compute_alike(program, other.program(name, 1), entries, sizes)


def test_few_positions_and_many_have_their_own_numbers_of_threads(graphs: dict[str, Any]) -> None:
    engine = _engine(graphs, ThreadPlan(1, 2))
    few, many = engine.program("step", FEW_POSITIONS), engine.program("step", FEW_POSITIONS + 1)
    assert few is engine.program("step", 1)
    assert many is engine.program("step", 1000) is not few
    engine.threads = ThreadPlan(2, 2)
    engine.forget_others()
    assert engine.program("step", 1) is many


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that compiled, program after program."""
    compile_as_before, names = Program.__init__, []

    def noted(self: Program, *arguments: Any) -> None:
        names.append(threading.current_thread().name)
        compile_as_before(self, *arguments)

    monkeypatch.setattr(Program, "__init__", noted)
    return names


def test_what_was_compiled_ahead_is_used(graphs: dict[str, Any], compiled: list[str]) -> None:
    plain = _steps(_verifier(graphs), 4)
    compiled.clear()
    verifier = _verifier(graphs)
    calls = [("encoder", 9, None), ("cross", 9, None), ("step", 1, step_outputs())]
    verifier.engine.compile_ahead(*calls)
    assert torch.equal(_steps(verifier, 4), plain)
    assert len(compiled) == 3
    assert threading.current_thread().name not in compiled
    verifier.engine.compile_ahead(*calls)  # all there
    assert torch.equal(_steps(verifier, 4), plain)
    assert len(compiled) == 3


def test_what_was_compiled_ahead_in_vain_is_let_go_of(graphs: dict[str, Any], compiled: list[str]) -> None:
    engine = _engine(graphs, ThreadPlan(1, 2))
    engine.compile_ahead(("step", FEW_POSITIONS + 1, step_outputs()), ("encoder", 1, None))
    engine.program("step", 1, step_outputs((0,)))
    assert compiled[-1] == threading.current_thread().name
    assert engine._ahead.keys() == {"encoder"}
    engine.program("step", FEW_POSITIONS + 1, step_outputs())
    assert compiled.count(threading.current_thread().name) == 2


def test_what_cannot_be_compiled_ahead_fails_when_it_is_needed(
    graphs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("no memory")

    engine = _engine(graphs)
    with monkeypatch.context() as patched:
        patched.setattr(Program, "__init__", fail)
        engine.compile_ahead(("step", 1, None), ("cross", 1, None))
        with pytest.raises(RuntimeError, match="no memory"):
            engine.program("step", 1)
        with pytest.raises(RuntimeError, match="no memory"):
            engine.program("cross", 1)
    assert engine.program("step", 1) is engine.program("step", 1)


def test_sizes_are_few_and_never_too_small() -> None:
    in_batches = partial(padded_queries, num_rows=2)
    for padded, exact, most in ((padded_rows, 8, 0.25), (in_batches, 16, 0.125)):
        sizes = [padded(count) for count in range(1, 300)]
        assert sizes[:exact] == list(range(1, exact + 1))
        assert all(count <= size <= count * (1 + most) for count, size in enumerate(sizes, start=1))
        assert len(set(sizes)) < 60
    alone = [padded_queries(count, 1) for count in range(1, 34)]
    assert alone == [1, *sorted([5, 9, 13, 17, 21, 25, 29, 33] * 4)]
    assert [padded_length(length, 1) for length in (0, 1, 32, 33)] == [0, 32, 32, 64]
    assert [padded_length(length, 2) for length in (0, 1, 16, 17)] == [0, 16, 16, 32]
    assert [padded_prefix(length) for length in (1, 8, 9)] == [8, 8, 16]
