"""A pair in fairseq's format, converted, must give the outputs that plain functions over its weights gave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spec2seq import Pipeline
from spec2seq.cli.main import run
from spec2seq.evaluation.release_rules import ReleaseOutput, ReleaseRules, accepted_counts, decode_as_released
from spec2seq.types import Emission
from spec2seq.weights.fairseq import FairseqSources, convert_fairseq

PAIR = Path(__file__).parents[1] / "fixtures" / "fairseq_pair"
SETTINGS = [(5, 1, 0.0), (5, 3, 1.0), (8, 5, 3.0)]
MAX_LENGTH = 20  # of the fixture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "pair"
    convert_fairseq(FairseqSources(PAIR / "verifier.pt", PAIR / "drafter.pt", PAIR, None), folder, is_tokenised=True)
    return folder


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return Pipeline.from_pretrained(folder, folder / "drafter")


def lines(name: str) -> list[str]:
    return (PAIR / name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("num_rows", [1, 8])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.filterwarnings("ignore:num_draft_tokens=8 is more than")
def test_outputs_and_counts_are_those_of_the_release(
    pipeline: Pipeline, setting: tuple[int, int, float], num_rows: int
) -> None:
    k, top_beta, tau = setting
    name = f"spec_b{top_beta}_t{tau}_k{k}"
    sources = pipeline.tokenizer.encode(lines("inputs.txt"))
    outputs = decode_as_released(pipeline, sources, ReleaseRules(k, top_beta, tau, MAX_LENGTH), num_rows)
    assert [pipeline.tokenizer.decode(output.token_ids) for output in outputs] == lines(f"{name}.txt")
    gained = [[int(count) for count in line.split()] for line in lines(f"{name}.gained.txt")]
    assert [output.gained for output in outputs] == gained
    assert accepted_counts(outputs) == (sum(map(sum, gained)), sum(map(len, gained)))


@pytest.mark.parametrize("num_draft_tokens", [0, 5])
def test_greedy_is_the_releases_with_and_without_a_drafter(pipeline: Pipeline, num_draft_tokens: int) -> None:
    sources = pipeline.tokenizer.encode(lines("inputs.txt"))
    outputs = decode_as_released(pipeline, sources, ReleaseRules(num_draft_tokens, max_length=MAX_LENGTH), 4)
    assert [pipeline.tokenizer.decode(output.token_ids) for output in outputs] == lines("greedy.txt")
    if not num_draft_tokens:
        assert {count for output in outputs for count in output.gained} == {0, 1}


def test_the_ordinary_pipeline_accepts_as_many_tokens(pipeline: Pipeline) -> None:
    texts = [
        text for text, output in zip(lines("inputs.txt"), lines("greedy.txt"), strict=True) if output.count(" ") < 8
    ]
    results = pipeline.generate(texts, num_draft_tokens=5)
    assert [result.text for result in results] == [o for o in lines("greedy.txt") if o.count(" ") < 8]
    assert sum(result.stats.num_accepted for result in results) > 50


def test_the_command_line_converts_and_reproduces(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder, output = tmp_path / "pair", tmp_path / "out.txt"
    files = ["--verifier", str(PAIR / "verifier.pt"), "--drafter", str(PAIR / "drafter.pt"), "--dict", str(PAIR)]
    assert run(["convert", "fairseq", *files, "-o", str(folder)]) == 0
    said = capfd.readouterr().out
    assert (
        said == f"model: {folder}\ndrafter: {folder / 'drafter'}\ninput: dictionary tokens with spaces between them\n"
    )
    common = ["--model", str(folder), "--input", str(PAIR / "inputs.txt"), "-o", str(output)]
    assert run(["reproduce", *common, "--top-beta", "3", "--tau", "1", "--max-length", "20", "--rows", "8"]) == 0
    assert output.read_text(encoding="utf-8").splitlines() == lines("spec_b3_t1.0_k5.txt")
    assert capfd.readouterr().err == "mean accepted tokens: 1.837 (281 tokens in 153 rounds)\n"
    assert run(["generate", *common, "--drafter", str(folder / "drafter"), "--max-new-tokens", "20"]) == 0
    assert output.read_text(encoding="utf-8").splitlines() == lines("greedy.txt")


def test_help_of_convert_loads_no_torch() -> None:
    code = (
        "import sys; from spec2seq.cli.main import run; run(['convert', 'fairseq', '--help']); "
        "run(['reproduce', '--help']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "--bpe-codes" in done.stdout
    assert "--top-beta" in done.stdout


@pytest.mark.parametrize(
    ("rounds", "token_ids", "gained"),
    [
        ([[7, 8, 2]], [7, 8], [2]),  # the end does not count
        ([[7, 8], [2]], [7, 8], [2, 0]),
        ([[7, 8, 9], [10, 11]], [7, 8, 9, 10], [3, 1]),  # cut at the limit of 4
        ([[7, 8, 9, 10], [11]], [7, 8, 9, 10], [4, 0]),  # full, but only the next token shows it
        ([[7, 8, 9, 10], [2]], [7, 8, 9, 10], [4, 0]),
        ([[7, 8, 9, 10, 2]], [7, 8, 9, 10], [4]),
        ([[7, 8, 9, 10, 11, 2]], [7, 8, 9, 10], [4]),  # an end behind the limit
    ],
)
def test_rounds_are_counted_as_the_release_counts(
    rounds: list[list[int]], token_ids: list[int], gained: list[int]
) -> None:
    output = ReleaseOutput()
    done = [output.add(Emission(0, tokens, [], 1), (2,), max_length=4) for tokens in rounds]
    assert done == [False] * (len(rounds) - 1) + [True]
    assert (output.token_ids, output.gained) == (token_ids, gained)
