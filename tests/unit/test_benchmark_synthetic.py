"""Random weights of a size: complete folders, outputs of one length from every system, costs and a projection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq import Pipeline
from spec2seq.cli.main import run
from spec2seq.evaluation.benchmark import sizes
from spec2seq.evaluation.benchmark.cost_model import CallCosts, project
from spec2seq.evaluation.benchmark.loading import EngineLoader
from spec2seq.evaluation.benchmark.records import of_kind, read_records, system_from_dict
from spec2seq.evaluation.benchmark.run import text_seconds
from spec2seq.evaluation.benchmark.sizes import TARGET_LENGTH, SyntheticSize
from spec2seq.evaluation.benchmark.systems import METHODS, Engine
from spec2seq.evaluation.benchmark.task import DecodingTask
from spec2seq.evaluation.synthetic_drafters import write_random_drafter
from spec2seq.evaluation.synthetic_models import random_sources, write_random_model
from spec2seq.tokenization import TargetStart
from spec2seq.weights import load_model
from spec2seq.weights.drafter_folder import save_drafter
from spec2seq.weights.fingerprints import VerifierFingerprint
from tests.text_models import make_text_model
from tests.tiny_drafters import tiny_blockwise_heads, tiny_drafter, tiny_feature_drafter

if TYPE_CHECKING:
    from pathlib import Path

TINY = {
    "base": SyntheticSize("marian", 60, 32, 2, 2, 48),
    "nllb-600m": SyntheticSize("m2m_100", 60, 32, 2, 2, 48, forced_first=55),
}


@pytest.mark.parametrize("name", ["base", "nllb-600m"])
def test_every_engine_gives_outputs_of_the_one_length(name: str, tmp_path: Path) -> None:
    size = TINY[name]
    write_random_model(size, tmp_path / "model")
    start = TargetStart(forced_first=size.forced_first)
    task = DecodingTask(12, is_length_fixed=True, start=start, num_draft_tokens=3)
    loader = EngineLoader(tmp_path / "model", "prompt_lookup", task, tmp_path)
    sources = random_sources(size, 2, 6)
    assert [len(source) for source in sources] == [6, 6]
    greedy = {}
    for engine in (
        Engine("spec2seq", "torch", "float32", 1),
        Engine("transformers", "transformers", "float32", 1),
        Engine("ctranslate2", "ctranslate2", "float32", 1),
    ):
        loaded = loader.load(engine)
        for method in METHODS[engine.maker]:
            outputs = loaded.run(method, sources[:1])
            assert [len(output) for output in outputs] == [12], method
            if size.forced_first is not None:
                assert outputs[0][0] == size.forced_first
        greedy[engine.maker] = loaded.run("greedy", sources)
    # transformers and CTranslate2 ban the end of the sequence; ours takes it for a word
    assert greedy["transformers"] == greedy["ctranslate2"]


@pytest.mark.parametrize("kind", ["spec", "feature", "blockwise"])
def test_a_drafter_in_the_width_of_another_model(kind: str, tmp_path: Path) -> None:
    make_text_model("marian", tmp_path / "small")
    small = load_model(tmp_path / "small")
    make: Any = {"feature": tiny_feature_drafter, "blockwise": tiny_blockwise_heads}.get(kind)
    network = make(small.network) if make else tiny_drafter()
    trained = VerifierFingerprint.of(tmp_path / "small", small.config)
    save_drafter(tmp_path / "trained", network, "small", trained, "")
    write_random_model(TINY["base"], tmp_path / "model")
    write_random_drafter(tmp_path / "trained", tmp_path / "model", tmp_path / "drafter")
    pipeline = Pipeline.from_pretrained(tmp_path / "model", tmp_path / "drafter", backend="torch")
    plain = Pipeline.from_pretrained(tmp_path / "model", None, backend="torch")
    sources = random_sources(TINY["base"], 2, 6)
    options: Any = {"num_beams": 1, "max_new_tokens": 8, "num_draft_tokens": 3}
    results = pipeline.generate_ids(sources, **options)
    assert [one.token_ids for one in results] == [one.token_ids for one in plain.generate_ids(sources, **options)]
    assert sum(one.stats.num_drafted for one in results) > 0


def test_costs_and_a_projection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sizes, "SIZES", TINY)
    monkeypatch.setattr("spec2seq.evaluation.benchmark.synthetic.SIZES", TINY)
    (tmp_path / "profile.json").write_text('{"survival": {"2": [0.8, 0.6], "4": [0.8, 0.6, 0.4, 0.2]}}')
    command = ["bench", "--synthetic", "base", "--profile", str(tmp_path / "profile.json"), "--lines", "2"]
    command += ["--engines", "torch-float32,ctranslate2-float32", "--threads", "1", "--rounds", "1"]
    command += ["--block-sizes", "2,4", "--out", str(tmp_path / "out"), "--no-memory"]
    assert run(command) == 0
    records = read_records(tmp_path / "out" / "results.jsonl")
    shown = {system_from_dict(record["system"]).contest for record in of_kind(records, "pass")}
    assert shown == {"spec2seq-greedy", "spec2seq-beam5", "ctranslate2-greedy", "ctranslate2-beam5"}
    assert {record["tokens"] for record in of_kind(records, "pass")} == {2 * TARGET_LENGTH}
    (costs,) = (CallCosts.from_dict(record) for record in of_kind(records, "costs"))
    (found,) = of_kind(records, "projection")
    expected = project(costs, {2: 2.4, 4: 3.0}, TARGET_LENGTH, text_seconds(records, 1))
    assert expected is not None
    assert found["text_seconds"] == pytest.approx(expected.text_seconds)
    assert found["speedups"] == pytest.approx(expected.speedups)
    assert found["speedups"].keys() == {"ctranslate2-greedy", "ctranslate2-beam5"}
    assert "A projection, not a measurement" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "| base |" in capsys.readouterr().out


def test_the_sizes_are_those_of_the_models() -> None:
    base, nllb = sizes.SIZES["base"], sizes.SIZES["nllb-600m"]
    # parameters of the layers, without biases and norms: 4 matrices per attention, 2 per feed-forward network
    for size, millions in ((base, 44), (nllb, 352)):
        attention, feed_forward = 4 * size.d_model**2, 2 * size.d_model * size.ffn_dim
        total = size.num_layers * (attention + feed_forward) + size.num_layers * (2 * attention + feed_forward)
        assert round(total / 1e6) == millions
    assert torch.tensor(random_sources(base, 3, 5)).shape == (3, 5)
