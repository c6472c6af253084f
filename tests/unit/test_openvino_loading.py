"""Choosing an engine and loading it: what goes together, what is checked, what is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq.backends.native import support
from spec2seq.backends.openvino import library
from spec2seq.cli.main import run
from spec2seq.errors import MissingExtraError, OptionError, UnsupportedModelError
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.pipelines import engines
from spec2seq.pipelines.engines import BACKEND_VARIABLE, EngineChoice
from spec2seq.testing import tiny_config
from tests.text_models import LINES, make_text_model
from tests.tiny_drafters import tiny_drafter

if TYPE_CHECKING:
    from pathlib import Path

needs_openvino = pytest.mark.skipif(not library.is_installed(), reason="OpenVINO is not installed")


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BACKEND_VARIABLE)


@pytest.fixture(params=[True, False], ids=["installed", "missing"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(engines, "is_installed", lambda: request.param)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    return bool(request.param)


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        (None, "float32", "openvino"),
        ("cpu", "bfloat16", "openvino"),
        ("cpu", "float16", "torch"),
        ("cuda", "float32", "torch"),
    ],
)
def test_auto_takes_openvino_where_it_is_there_and_can(
    device: str | None, dtype: str, expected: str, installed: bool
) -> None:
    assert EngineChoice.of("auto", device, dtype).backend == (expected if installed else "torch")


def test_a_variable_says_what_auto_means(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, "torch")
    assert EngineChoice.of("auto", None, "float32").backend == "torch"
    monkeypatch.setenv(BACKEND_VARIABLE, "tensorrt")
    assert EngineChoice.of("torch", None, "float32").backend == "torch"
    with pytest.raises(OptionError, match="backend='tensorrt' does not exist; use torch, openvino or auto"):
        EngineChoice.of("auto", None, "float32")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (("torch", None, "int8"), "dtype='int8' is not supported with backend='torch'; .* or backend='openvino'"),
        (("openvino", None, "float16"), "dtype='float16' is not supported with backend='openvino'; use float32, bf"),
        (("openvino", "cuda", "float32"), "device='cuda': OpenVINO runs on the CPU here; use device='cpu'"),
        (("auto", "cuda", "int8"), "device='cuda': OpenVINO runs on the CPU here"),
        (("auto", None, "int4"), "dtype='int4' does not exist; use one of float32, bfloat16, float16, float64, int8"),
    ],
)
def test_what_does_not_go_together_is_said(
    said: tuple[str, str | None, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "is_installed", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(OptionError, match=message):
        EngineChoice.of(*said)


def test_what_is_not_installed_is_said_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(library, "import_module", refuse)
    monkeypatch.setattr(engines, "is_installed", lambda: False)
    for said in (("openvino", "float32"), ("auto", "int8")):
        with pytest.raises(
            MissingExtraError, match=r"OpenVINO, which is not installed: pip install 'spec2seq\[openvino\]'"
        ):
            EngineChoice.of(said[0], None, said[1])
    with pytest.raises(MissingExtraError, match=r"NNCF .* not installed: pip install 'spec2seq\[openvino\]'"):
        library.load_nncf()


def _network(scale: float = 0.4) -> Seq2Seq:
    torch.manual_seed(4)
    network = Seq2Seq(tiny_config())
    for parameter in network.parameters():
        parameter.data.normal_(0.0, scale)
    return network


@needs_openvino
def test_a_conversion_is_told_checked_and_noted_once(tmp_path: Path) -> None:
    from spec2seq.backends.openvino.loading import Loader

    told: list[str] = []
    for _ in range(2):
        Loader("bfloat16", 1, tmp_path, on_convert=lambda: told.append("converting")).verifier(_network())
    assert told == ["converting"]
    facts = json.loads(next(tmp_path.rglob("facts.json")).read_text())
    assert 0.9 < facts["likeness"]["agreement"] <= 1.0
    assert 0.0 < facts["likeness"]["relative_error"] < 0.1


@needs_openvino
@pytest.mark.skipif(not support.has_processor(), reason="needs a processor with AVX512-VNNI")
def test_steps_of_our_own_are_compiled_and_told_once(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="needs pip install 'spec2seq[openvino]'")
    from spec2seq.backends.openvino.loading import Loader

    network = Seq2Seq(replace(tiny_config(), d_model=64, decoder_heads=2, head_dim=32, decoder_ffn_dim=64))
    for parameter in network.parameters():
        parameter.data.normal_(0.0, 0.2)
    told: list[str] = []
    verifiers = [
        Loader("int8", 1, tmp_path, on_convert=lambda: told.append("converting")).verifier(network) for _ in range(2)
    ]
    assert told == ["converting"]
    graphs = set() if support.can_encode(network.config) else {"encoder", "cross"}
    assert all(verifier.engine.graphs.keys() == graphs for verifier in verifiers)
    assert verifiers[0].new_cache(1).num_slots == 0
    facts = json.loads(next(tmp_path.rglob("facts.json")).read_text())
    assert facts["steps are compiled"]
    assert facts["likeness"]["relative_error"] < 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"d_model": 96, "decoder_heads": 2, "head_dim": 48},
        {"decoder_ffn_dim": 96},
        {"d_model": 64, "decoder_heads": 8, "head_dim": 8},
        {"positions": "relative"},
        {"norm": "rms"},
        {"is_gated_ffn": True},
    ],
)
def test_other_models_have_no_steps_of_our_own(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "has_processor", lambda: True)
    fitting = replace(tiny_config(), d_model=64, decoder_heads=2, head_dim=32, decoder_ffn_dim=64)
    monkeypatch.setattr(support, "find_spec", lambda name: object())
    monkeypatch.setattr(support, "_can_keep_code", lambda: True)
    assert support.can_run(fitting)
    assert not support.can_run(replace(fitting, **change))
    monkeypatch.setattr(support, "find_spec", lambda name: None)
    assert not support.can_run(fitting)


def test_where_nothing_can_be_kept_there_are_no_steps_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(support, "import_module", refuse)
    support._can_keep_code.cache_clear()
    with pytest.warns(UserWarning, match="no locator available.*set NUMBA_CACHE_DIR"):
        assert not support._can_keep_code()
    support._can_keep_code.cache_clear()


@needs_openvino
def test_a_network_that_computes_nan_is_refused_and_not_kept(tmp_path: Path) -> None:
    from spec2seq.backends.openvino.loading import Loader

    network = _network()
    network.decoder.layers[1].ffn.output_weight.data[3, 3] = torch.nan
    with pytest.raises(UnsupportedModelError, match="converted to float32, this bart model computes something else"):
        Loader("float32", 1, tmp_path).verifier(network)
    drafter = tiny_drafter()
    drafter.copy_weight.data.fill_(torch.nan)
    with pytest.raises(UnsupportedModelError, match="converted to float32, this drafter computes something else"):
        Loader("float32", 1, tmp_path).draft_network(drafter)
    assert list(tmp_path.iterdir()) == []


@needs_openvino
def test_an_engine_of_another_network_is_noticed() -> None:
    from spec2seq.backends.openvino.engine import Engine, ThreadPlan
    from spec2seq.backends.openvino.sanity import check_verifier
    from spec2seq.backends.openvino.verifier import OpenVinoVerifier
    from spec2seq.backends.openvino.verifier_graphs import verifier_graphs

    network = _network()
    verifier = OpenVinoVerifier(network.config, Engine(verifier_graphs(network), {}, "int8", ThreadPlan(1, 1)))
    assert check_verifier(verifier, network).agreement == 1.0
    with pytest.raises(UnsupportedModelError, match=r"relative error .*, allowed 0.25\); use dtype='float32'"):
        check_verifier(verifier, _network(scale=0.3))


LET_GO_AND_INTERRUPT = """
import gc, signal, sys
from pathlib import Path
import torch
from spec2seq.backends.openvino.loading import Loader
from spec2seq.nn.seq2seq import Seq2Seq
from spec2seq.testing import tiny_config

def engine(seed):
    network = Seq2Seq(tiny_config())
    torch.manual_seed(seed)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.4)
    return Loader("float32", 1, Path(sys.argv[1])).verifier(network)

engines = [engine(0), engine(1)]
while engines:
    del engines[0]
    gc.collect()
rubbish = [bytearray(30_000) for _ in range(1000)]
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts processes in the background lets them ignore it
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


@needs_openvino
def test_an_interrupt_is_one_after_engines_were_let_go(tmp_path: Path) -> None:
    """With a Core for every program it was a segmentation fault, on processors with AMX."""
    command = [sys.executable, "-c", LET_GO_AND_INTERRUPT, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr


@needs_openvino
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_drafter_is_rounded_to_int8_where_that_can_be(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nncf", reason="needs pip install 'spec2seq[openvino]'")
    from spec2seq.backends.openvino.draft_network import OpenVinoDraftNetwork

    def precision() -> str:
        network = EngineChoice.of("openvino", None, dtype, 1).draft_network(tiny_drafter())
        assert isinstance(network, OpenVinoDraftNetwork)
        return network.engine.precision

    assert precision() == "int8"
    monkeypatch.setattr(engines, "has_nncf", lambda: False)
    assert precision() == dtype


@needs_openvino
def test_a_drafter_that_rounding_destroys_is_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nncf", reason="needs pip install 'spec2seq[openvino]'")
    from spec2seq.backends.openvino import sanity
    from spec2seq.backends.openvino.draft_network import OpenVinoDraftNetwork

    monkeypatch.setitem(sanity._LIMITS, "int8", 0.0)
    network = EngineChoice.of("openvino", None, "float32", 1).draft_network(tiny_drafter(max_positions=41))
    assert isinstance(network, OpenVinoDraftNetwork)
    assert network.engine.precision == "float32"


@needs_openvino
def test_a_process_may_end_before_all_is_compiled(tmp_path: Path) -> None:
    make_text_model("marian", tmp_path / "model")
    program = (
        "from spec2seq import Pipeline\n"
        f"pipeline = Pipeline.from_pretrained({str(tmp_path / 'model')!r}, backend='openvino')\n"
        "print(sorted(pipeline.verifier.engine._ahead))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['cross', 'encoder', 'step']\n", "")


@needs_openvino
def test_what_the_drafter_reads_is_compiled_ahead(tmp_path: Path) -> None:
    from spec2seq.backends.openvino.loading import Loader
    from spec2seq.backends.openvino.verifier_graphs import step_outputs

    engine = Loader("float32", 1, tmp_path).verifier(_network(), (0, 2)).engine
    assert engine._ahead["step"][0] == ("step", step_outputs((2, 0)), 1)
    assert step_outputs((2, 0)) == ("logits", "new", "states")


@needs_openvino
def test_nncf_is_loaded_without_its_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    nncf, seen = pytest.importorskip("nncf", reason="needs pip install 'spec2seq[openvino]'"), []

    def import_module(name: str) -> Any:
        seen.append(os.environ.get("NNCF_CI"))
        return nncf

    monkeypatch.setattr(library, "import_module", import_module)
    library.load_nncf()
    assert seen == ["1"]
    assert "NNCF_CI" not in os.environ


@needs_openvino
def test_the_command_line_says_that_it_converts_and_only_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEC2SEQ_CACHE", str(tmp_path / "cache"))  # another test may have converted the same weights
    make_text_model("marian", tmp_path / "model")
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    for backend in ("openvino", "openvino", "torch"):
        arguments = ["--input", str(tmp_path / "lines.txt"), "--backend", backend, "--num-beams", "1"]
        assert run(["generate", "--model", str(tmp_path / "model"), *arguments, "--max-new-tokens", "12"]) == 0
    told = capsys.readouterr()
    assert told.err.count("converting a model for OpenVINO (float32); this is done once and takes a while") == 1
    lines = told.out.splitlines()
    assert len(lines) == 3 * len(LINES)
    assert lines[: len(LINES)] == lines[len(LINES) : 2 * len(LINES)] == lines[2 * len(LINES) :]
