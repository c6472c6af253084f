"""Whole benchmarks on a tiny model, with a clock that ticks once per look: figures can be told beforehand."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spec2seq import Pipeline
from spec2seq.cli.main import run
from spec2seq.errors import Spec2SeqError, UnsupportedModelError
from spec2seq.evaluation.benchmark import choice, systems
from spec2seq.evaluation.benchmark.agreement import Agreement
from spec2seq.evaluation.benchmark.engines import LoadedSystem
from spec2seq.evaluation.benchmark.lines import BenchmarkLines
from spec2seq.evaluation.benchmark.loading import EngineLoader
from spec2seq.evaluation.benchmark.memory import peak_memory
from spec2seq.evaluation.benchmark.records import of_kind, read_records, system_from_dict
from spec2seq.evaluation.benchmark.run import BenchmarkOrder, run_benchmark
from spec2seq.evaluation.benchmark.settings import BenchmarkSettings
from spec2seq.evaluation.benchmark.systems import METHODS, Engine, System
from spec2seq.evaluation.benchmark.task import DecodingTask
from spec2seq.evaluation.peers import TransformersPeer
from spec2seq.tokenization import TextTokenizer
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec2seq.evaluation.benchmark.records import Record

MAX_NEW_TOKENS = 10
ENGINES = ("torch-float32", "transformers-float32", "ctranslate2-float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "marian"
    make_text_model("marian", made)
    return made


class Ticks:
    """One second passes between two looks at this clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def settings(**changes: Any) -> BenchmarkSettings:
    values: dict[str, Any] = {"num_rounds": 2, "threads": (1,), "engines": ENGINES, "measures_memory": False}
    values |= {"num_probe_texts": 2, "num_agreement_texts": 3, "num_cost_texts": 2, "block_sizes": (2, 4)}
    return BenchmarkSettings(**{**values, **changes})


def bench(folder: Path, out: Path, tell: Callable[[str], None] = lambda message: None, **changes: Any) -> list[Record]:
    order = BenchmarkOrder(str(folder), "prompt_lookup", settings(**changes), max_new_tokens=MAX_NEW_TOKENS)
    lines = BenchmarkLines(LINES[:4], LINES[4:], "lines")
    return run_benchmark(order, lines, out, tell, Ticks())


def greedy(folder: Path) -> list[list[int]]:
    pipeline = Pipeline.from_pretrained(folder, drafter=None, backend="torch")
    return [one.token_ids for one in pipeline.generate(LINES[:4], num_beams=1, max_new_tokens=MAX_NEW_TOKENS)]


@pytest.fixture(scope="module")
def whole_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], Path, list[str]]:
    """Records, folder and messages of a run with everything but memory."""
    out = tmp_path_factory.mktemp("bench") / "out"
    told: list[str] = []
    return bench(folder, out, told.append), out, told


def test_every_system_gets_the_same_timed_region(whole_run: tuple[list[Record], Path, list[str]]) -> None:
    records, _, _ = whole_run
    passes = list(of_kind(records, "pass"))
    contests = {system_from_dict(record["system"]).contest for record in passes}
    assert contests == set(systems.CONTESTS)
    assert len(passes) == len(contests) * (1 + 2)
    reference = next(of_kind(records, "reference"))
    # two looks at the clock per call, one call per text
    assert {record["seconds"] for record in passes} == {float(reference["texts"])}
    firsts = [next(record["system"] for record in passes if record["round"] == turn) for turn in (1, 2)]
    assert firsts[0] != firsts[1]


def test_exact_methods_give_the_reference_outputs(
    whole_run: tuple[list[Record], Path, list[str]], folder: Path
) -> None:
    records, _, _ = whole_run
    reference = next(of_kind(records, "reference"))
    kept = [output for i, output in enumerate(greedy(folder)) if i not in reference["left_out_in_circles"]]
    assert reference["tokens"] == sum(map(len, kept))
    identical = {
        system_from_dict(record["system"]).contest: record["identical"] for record in of_kind(records, "outputs")
    }
    for contest in ("spec2seq-greedy", "spec2seq-exact", "spec2seq-auto", "transformers-greedy"):
        assert identical[contest] == len(kept) > 0, contest
    shares = {record["engine"]: record["share"] for record in of_kind(records, "agreement")}
    assert shares == {"torch-float32": 1.0, "transformers-float32": 1.0, "ctranslate2-float32": 1.0}


def test_blocks_costs_and_profile(whole_run: tuple[list[Record], Path, list[str]]) -> None:
    records, out, _ = whole_run
    blocks = {record["num_draft_tokens"]: record for record in of_kind(records, "blocks")}
    assert list(blocks) == [0, 2, 4]
    assert blocks[0]["tokens_per_round"] == 1.0
    assert blocks[0]["tokens"] == blocks[2]["tokens"] == blocks[4]["tokens"]
    for size in (2, 4):
        kept = sum(blocks[size]["survival"]) * blocks[size]["rounds"]
        assert blocks[size]["rounds"] <= blocks[size]["tokens"] <= blocks[size]["rounds"] + round(kept)
    (costs,) = of_kind(records, "costs")
    # one look before and one after every call
    assert costs["verify"] == {0: 1.0, 2: 1.0, 4: 1.0}
    assert costs["draft"] == {2: 2.0, 4: 2.0}
    checks = {record["num_draft_tokens"]: record for record in of_kind(records, "cost_model")}
    assert list(checks) == [2, 4]
    assert all(check["share"] == check["measured_speedup"] / check["predicted_speedup"] for check in checks.values())
    assert (out / "profile.json").exists()


def test_tables_and_plots_are_there(whole_run: tuple[list[Record], Path, list[str]]) -> None:
    records, out, told = whole_run
    assert read_records(out / "results.jsonl") == [*map(as_json, records)]
    page = (out / "report.md").read_text(encoding="utf-8")
    assert "| ctranslate2 beam5 | float32 | 1 |" in page
    assert "BLEU" in page
    assert {path.name for path in out.glob("*.png")} == {
        "speed_and_quality.png",
        "time_split.png",
        "tokens_per_round.png",
    }
    assert any("min left" in message for message in told)


def as_json(record: Record) -> Record:
    """With strings as keys and lists for tuples, as JSON has them."""
    import json

    loaded: Record = json.loads(json.dumps(record))
    return loaded


def test_nothing_but_decoding_happens_in_the_timed_region(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    sources = Pipeline.from_pretrained(folder, drafter=None).tokenizer.encode(LINES[:2])
    loader = EngineLoader(folder, "prompt_lookup", DecodingTask(MAX_NEW_TOKENS), tmp_path)
    chosen = [
        Engine("spec2seq", "torch", "float32", 1),
        Engine("transformers", "transformers", "float32", 1),
        Engine("ctranslate2", "ctranslate2", "float32", 1),
    ]
    loaded = [(engine, loader.load(engine)) for engine in chosen]

    def forbidden(*arguments: object, **settings: object) -> None:
        raise AssertionError(f"not in the timed region: {arguments}")

    for owner, name in (
        (builtins, "print"),
        (TextTokenizer, "encode"),
        (TextTokenizer, "decode"),
        (Pipeline, "from_pretrained"),
        (transformers.AutoModelForSeq2SeqLM, "from_pretrained"),
        (transformers.AutoTokenizer, "from_pretrained"),
    ):
        monkeypatch.setattr(owner, name, forbidden)
    for engine, one in loaded:
        for method in METHODS[engine.maker]:
            outputs = LoadedSystem(System(method, engine), one).run(sources[:1])
            assert [0 < len(output) <= MAX_NEW_TOKENS for output in outputs] == [True]


def test_an_interrupted_run_keeps_its_results(folder: Path, tmp_path: Path) -> None:
    def interrupt(message: str) -> None:
        if message.startswith("round 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench(folder, tmp_path / "out", interrupt, contests=("spec2seq-greedy", "spec2seq-exact"))
    records = read_records(tmp_path / "out" / "results.jsonl")
    assert [record["round"] for record in of_kind(records, "pass")] == [0, 0, 1, 1, 2]
    assert "| spec2seq exact | torch float32 | 1 |" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def test_batches_and_all_engines(folder: Path, tmp_path: Path) -> None:
    contests = ("spec2seq-greedy", "transformers-assisted", "ctranslate2-greedy")
    changes: dict[str, Any] = {"contests": contests, "batch_sizes": (1, 3), "is_full": True, "num_rounds": 1}
    records = bench(folder, tmp_path / "out", engines=(*ENGINES, "ctranslate2-int8"), **changes)
    passes = [record for record in of_kind(records, "pass") if record["round"]]
    counts = [
        sum(system_from_dict(record["system"]).contest == contest and record["batch_size"] == size for record in passes)
        for contest in contests
        for size in (1, 3)
    ]
    assert counts == [1, 1, 1, 0, 2, 2]  # transformers drafts for one text at a time
    assert "speed_by_batch.png" in {path.name for path in (tmp_path / "out").iterdir()}
    assert list(of_kind(records, "choice")) == []


def test_our_engine_on_openvino(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="needs pip install 'spec2seq[openvino]'")
    changes: dict[str, Any] = {"contests": ("spec2seq-greedy", "spec2seq-exact"), "engines": ("openvino-float32",)}
    records = bench(folder, tmp_path / "out", num_rounds=1, block_sizes=(2,), **changes)
    (outcome,) = of_kind(records, "agreement")
    assert (outcome["engine"], outcome["share"], outcome["competes"]) == ("openvino-float32", 1.0, True)
    kept = next(of_kind(records, "reference"))["texts"]
    assert [record["identical"] for record in of_kind(records, "outputs")] == [kept, kept]
    (costs,) = of_kind(records, "costs")
    assert costs["verify"] == {0: 1.0, 2: 1.0}


def test_an_engine_that_says_something_else_does_not_compete(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(setup: Any, engine: Any, outputs: Any) -> Agreement:
        is_odd = engine.pipeline.verifier.dtype.itemsize == 2
        return Agreement(100, 98 if is_odd else 100)

    monkeypatch.setattr(choice, "measure_agreement", half)
    changes: dict[str, Any] = {"contests": ("spec2seq-greedy",), "engines": ("torch-float32", "torch-bfloat16")}
    records = bench(folder, tmp_path / "out", **changes)
    found = {record["engine"]: record["competes"] for record in of_kind(records, "agreement")}
    assert found == {"torch-float32": True, "torch-bfloat16": False}
    (chosen,) = of_kind(records, "choice")
    assert [candidate["dtype"] for candidate in chosen["candidates"]] == ["float32"]


def test_peers_that_cannot_take_part_are_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = systems.find_spec
    monkeypatch.setattr(systems, "find_spec", lambda name: None if name == "ctranslate2" else find_spec(name))
    changes: dict[str, Any] = {"contests": ("spec2seq-greedy", "ctranslate2"), "num_rounds": 1}
    records = bench(folder, tmp_path / "out", **changes)
    assert list(of_kind(records, "skipped")) == [
        {
            "record": "skipped",
            "engine": "ctranslate2",
            "reason": "ctranslate2 is not installed: pip install 'spec2seq[bench]'",
        }
    ]
    assert {record["system"]["maker"] for record in of_kind(records, "pass")} == {"spec2seq"}


def test_nothing_to_compare_is_an_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = systems.find_spec
    monkeypatch.setattr(systems, "find_spec", lambda name: None if name == "ctranslate2" else find_spec(name))
    with pytest.raises(Spec2SeqError, match=r"can be compared here \(ctranslate2: .*pip install"):
        bench(folder, tmp_path / "out", contests=("ctranslate2",))


def test_a_peer_that_fails_is_left_out(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: Path, output: Path) -> None:
        raise UnsupportedModelError("no such conversion")

    monkeypatch.setattr("spec2seq.evaluation.benchmark.loading.convert", broken)
    records = bench(folder, tmp_path / "out", contests=("spec2seq-greedy", "ctranslate2"), num_rounds=1)
    assert [record["reason"] for record in of_kind(records, "skipped")] == ["no such conversion"]


@pytest.mark.parametrize("is_full", [False, True], ids=["probe", "warm-up"])
def test_a_method_in_which_a_peer_fails_is_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    from transformers import MarianMTModel

    generate = MarianMTModel.generate

    def refuse(self: Any, *arguments: Any, **options: Any) -> Any:
        if "prompt_lookup_num_tokens" in options:
            raise ValueError("this model cannot be assisted")
        return generate(self, *arguments, **options)

    monkeypatch.setattr(MarianMTModel, "generate", refuse)
    changes: dict[str, Any] = {"contests": ("transformers-greedy", "transformers-assisted"), "is_full": is_full}
    records = bench(folder, tmp_path / "out", num_rounds=1, **changes)
    assert [(record["engine"], record["reason"]) for record in of_kind(records, "skipped")] == [
        (
            "transformers-assisted, float32, 1 thread, batch size 1",
            "transformers failed: ValueError: this model cannot be assisted",
        )
    ]
    passes = [system_from_dict(record["system"]).contest for record in of_kind(records, "pass")]
    assert set(passes) == {"transformers-greedy"}


def test_our_own_mistake_beside_a_peers_call_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(self: Any, sources: Any) -> Any:
        raise ValueError("ours")

    monkeypatch.setattr(TransformersPeer, "_padded", mistaken)
    with pytest.raises(ValueError, match="ours"):
        bench(folder, tmp_path / "out", contests=("transformers-greedy",), num_rounds=1)


def test_memory_is_that_of_a_process_of_its_own(folder: Path, tmp_path: Path) -> None:
    loader = EngineLoader(folder, "prompt_lookup", DecodingTask(MAX_NEW_TOKENS), tmp_path)
    ballast = bytearray(2**30)
    peak = peak_memory(loader, System("exact", Engine("spec2seq", "torch", "float32", 1)), [[[5, 6, 0]]])
    assert 2**26 < peak < len(ballast)


def test_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text("\n".join(LINES[:3]) + "\n", encoding="utf-8")
    (tmp_path / "references.txt").write_text("\n".join(LINES[3:6]) + "\n", encoding="utf-8")
    command = ["bench", str(folder), "--input", str(tmp_path / "in.txt"), "--lines", "2", "--rounds", "1"]
    command += ["--references", str(tmp_path / "references.txt"), "--engines", "torch-float32", "--threads", "1"]
    command += ["--systems", "spec2seq-greedy,spec2seq-exact", "--block-sizes", "3", "--no-memory"]
    command += ["--max-new-tokens", "8", "--out", str(tmp_path / "out")]
    assert run(command) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("| system | engine |")
    assert f"results: {tmp_path / 'out'}" in captured.err
    (record,) = of_kind(read_records(tmp_path / "out" / "results.jsonl"), "run")
    assert record["texts"] == 2
    assert record["command"].startswith(f"spec2seq bench {folder} --input ")
    assert " --no-memory" in record["command"]
    assert run(command) == 2
    assert "holds the results of another run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems", "spec2seq-greeedy", "--max-new-tokens", "8"], "'spec2seq-greeedy' does not exist"),
        (["--batch-sizes", "0"], "--batch-sizes '0' is not allowed"),
        (["--threads", "one"], "--threads 'one' is not allowed"),
        (["--profile", "x.json"], "says nothing without --synthetic"),
        (["--synthetic", "base", "--input", "x.txt"], "--synthetic makes its own"),
        (["--input", "missing.txt"], "there is no such file"),
        ([], "name a file with --input"),
    ],
)
def test_wrong_calls(
    arguments: list[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("a line\n", encoding="utf-8")
    model = [] if "--synthetic" in arguments else [str(folder)]
    lines = ["--input", str(tmp_path / "in.txt")] if "--systems" in arguments else []
    assert run(["bench", *model, *lines, *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_help_loads_no_torch() -> None:
    import subprocess
    import sys

    script = "import sys; from spec2seq.cli.main import run; code = run(['bench', '--help']); "
    script += "sys.exit(code or 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "--synthetic" in shown
