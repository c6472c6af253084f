"""Converted graphs on disk: kept, found again, mended, and done without."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.testing import tiny_config

pytest.importorskip("openvino", reason="needs pip install 'spec2seq[openvino]'")

import openvino

from spec2seq.backends.openvino.engine import Engine, ThreadPlan
from spec2seq.backends.openvino.keys import entry_key
from spec2seq.backends.openvino.store import FOLDER_VARIABLE, GraphStore, default_folder
from spec2seq.backends.openvino.threads import choose_threads


def graphs(number: float = 3.0) -> dict[str, Any]:
    from openvino import opset15 as ops

    parameter = ops.parameter([-1], openvino.Type.f32, name="x")
    result = ops.result(ops.multiply(parameter, ops.constant([number] * 50, openvino.Type.f32)), name="y")
    return {"double": openvino.Model([result], [parameter], "double")}


def value(found: dict[str, Any]) -> float:
    request = openvino.compile_model(found["double"], "CPU").create_infer_request()
    outputs = request.infer([np.ones(50, dtype=np.float32)])
    return float(next(iter(outputs.values()))[0])


class Counted:
    """A conversion that counts how often it is asked for."""

    def __init__(self, number: float = 3.0) -> None:
        self.times, self.number = 0, number

    def __call__(self) -> dict[str, Any]:
        self.times += 1
        return graphs(self.number)


def test_a_second_process_converts_nothing(tmp_path: Path) -> None:
    convert = Counted()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert value(GraphStore(tmp_path).get("a", convert)) == 3.0
        assert value(GraphStore(tmp_path).get("b", Counted(5.0))) == 5.0
    assert convert.times == 1
    assert sorted(path.name for path in (tmp_path / "openvino").iterdir()) == ["a", "b"]


def _cut(entry: Path) -> None:
    file = entry / "double.bin"
    file.write_bytes(file.read_bytes()[:-4])


def _alter(entry: Path) -> None:
    file = entry / "double.bin"
    file.write_bytes(b"\1" + file.read_bytes()[1:])


DAMAGES = {
    "cut": _cut,
    "altered": _alter,
    "no weights": lambda entry: (entry / "double.bin").unlink(),
    "no manifest": lambda entry: (entry / "manifest.json").unlink(),
    "no JSON": lambda entry: (entry / "manifest.json").write_text("{"),
    "other JSON": lambda entry: (entry / "manifest.json").write_text("[1]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_anew_with_a_warning(tmp_path: Path, damage: str) -> None:
    convert, entry = Counted(), tmp_path / "openvino" / "a"
    GraphStore(tmp_path).get("a", convert)
    DAMAGES[damage](entry)
    with pytest.warns(UserWarning, match=f"{entry} is damaged .* and is made anew"):
        assert value(GraphStore(tmp_path).get("a", convert)) == 3.0
    assert convert.times == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GraphStore(tmp_path).get("a", convert)
    assert convert.times == 2
    assert [path.name for path in (tmp_path / "openvino").iterdir()] == ["a"]


def test_where_nothing_can_be_written_it_works_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store, convert = GraphStore(tmp_path / "file"), Counted()  # a folder cannot be made in a file
    with pytest.warns(UserWarning, match="cannot write to .*; set SPEC2SEQ_CACHE to a folder"):
        assert value(store.get("a", convert)) == 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert value(store.get("a", convert)) == 3.0
        store.note("a", "threads", 2)
    assert convert.times == 2
    assert store.noted("a", "threads") is None


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(openvino, "save_model", stop)
    with pytest.raises(KeyboardInterrupt):
        GraphStore(tmp_path).get("a", Counted())
    assert list((tmp_path / "openvino").iterdir()) == []


def test_an_entry_that_another_process_wrote_meanwhile_is_used(tmp_path: Path) -> None:
    store = GraphStore(tmp_path)

    def convert() -> dict[str, Any]:
        GraphStore(tmp_path).get("a", Counted(7.0))
        return graphs(7.0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert value(store.get("a", convert)) == 7.0
        assert value(GraphStore(tmp_path).get("a", Counted())) == 7.0


def test_notes_stand_beside_an_entry(tmp_path: Path) -> None:
    store = GraphStore(tmp_path)
    store.get("a", Counted())
    assert store.noted("a", "threads") is None
    store.note("a", "threads", {"few": 1})
    store.note("a", "likeness", 0.5)
    assert GraphStore(tmp_path).noted("a", "threads") == {"few": 1}
    (tmp_path / "openvino" / "a" / "facts.json").write_text("no json")
    assert store.noted("a", "threads") is None


def test_the_folder_is_the_users_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert GraphStore().folder == tmp_path / "openvino"
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert default_folder() == Path.home() / ".cache" / "spec2seq"


def _network() -> Seq2Seq:
    torch.manual_seed(1)
    network = Seq2Seq(tiny_config())
    for parameter in network.parameters():
        parameter.data.normal_()
    return network


def test_keys_differ_with_every_number_setting_and_precision() -> None:
    network, config = _network(), tiny_config()
    key = entry_key("verifier", network, config, "float32")
    assert key == entry_key("verifier", _network(), config, "float32")
    assert key.startswith("verifier-float32-")
    others = [
        entry_key("verifier", network, config, "int8"),
        entry_key("spec", network, config, "float32"),
        entry_key("verifier", network, replace(config, embedding_scale=2.0), "float32"),
    ]
    for name, parameter in network.named_parameters():
        flat = parameter.data.view(-1) if parameter.data.is_contiguous() else parameter.data.t().view(-1)
        middle = len(flat) // 2
        before, flat[middle] = flat[middle].clone(), 7.5
        others.append(entry_key("verifier", network, config, "float32"))
        flat[middle] = before
        assert name
    assert len({key, *others}) == len(others) + 1


def _work(engine: Engine, clock: dict[str, float], seconds: dict[int, float]) -> Any:
    """Something that takes so long by the number of threads."""

    def work() -> None:
        clock["now"] += seconds[engine.threads.few]

    return work


def test_threads_are_measured_once_and_doubled_while_that_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 0.0}
    monkeypatch.setattr("time.perf_counter", lambda: clock["now"])
    monkeypatch.setattr("torch.get_num_threads", lambda: 6)
    store = GraphStore(tmp_path)
    store.get("a", Counted())
    engine = Engine({}, {}, "float32", ThreadPlan(1, 1))
    few = _work(engine, clock, {1: 1.0, 2: 0.97, 4: 0.1})  # the second thread gains too little
    many = _work(engine, clock, {1: 8.0, 2: 5.0, 4: 3.0, 6: 2.9})
    assert choose_threads(engine, few, many, store, "a") == ThreadPlan(1, 4)
    clock["now"] = -1.0
    assert choose_threads(engine, few, many, GraphStore(tmp_path), "a") == ThreadPlan(1, 4)
    assert clock["now"] == -1.0
    names = json.loads((tmp_path / "openvino" / "a" / "facts.json").read_text())
    assert [name.startswith("threads of 6 on ") for name in names] == [True]
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert choose_threads(engine, few, many, store, "a") == ThreadPlan(1, 1)
