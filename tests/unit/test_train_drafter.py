"""From a text to a drafter folder that a pipeline takes, by the two commands."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from spec2seq import Pipeline
from spec2seq.cli.main import run
from spec2seq.errors import OptionError
from spec2seq.training.advice import training_advice
from spec2seq.training.settings import TrainingSettings
from spec2seq.training.shapes import SpecShape
from spec2seq.training.shards import read_pairs
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from pathlib import Path

TRAINING = ["--block-size", "5", "--steps", "4", "--eval-steps", "2", "--save-steps", "2", "--batch-tokens", "400"]


def words(text: str) -> str:
    """Without the breaks between words, wherever lines are wrapped."""
    return " ".join(text.split())


def make_pairs(model: Path, folder: Path, num_lines: int = 40) -> Path:
    source = folder.with_suffix(".txt")
    lines = [f"{LINES[i % 8]} {LINES[i // 8]}" for i in range(num_lines)]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert run(["distill", str(model), "--source", str(source), "-o", str(folder), "--max-new-tokens", "12"]) == 0
    return folder


@pytest.fixture(scope="module", params=["marian", "t5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / str(request.param)
    make_text_model(str(request.param), folder)
    return folder


@pytest.fixture(scope="module")
def pairs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs(model, tmp_path_factory.mktemp("data") / "pairs")


SIZES = {
    "spec": "spec, 2 encoder and 2 decoder layers, width 16, blocks of 5 tokens",
    "feature": "feature, 1 decoder layer, width 16, blocks of 5 tokens",
    "blockwise": "blockwise, heads with 16 units each, blocks of 5 tokens",
}


@pytest.mark.parametrize("kind", SIZES)
def test_from_text_to_a_drafter(
    kind: str, model: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "drafter"
    command = ["train-drafter", str(model), "--data", str(pairs), "-o", str(folder), "--kind", kind, *TRAINING]
    assert run(command) == 0
    error = capsys.readouterr().err
    assert "step 2: 1." in error
    assert "step 4: 1." in error
    assert "4 slots: 1." in error
    assert "5 slots: 1." in error
    # one of ten is held out, and what runs in circles is left out
    num_pairs = sum(i % 10 != 9 and not pair.is_degenerate for i, pair in enumerate(read_pairs(pairs)))
    assert f"warning: only {num_pairs} pairs to train on" in error
    card = words((folder / "README.md").read_text(encoding="utf-8"))
    assert SIZES[kind] in card
    assert f"{num_pairs} outputs of the verifier for - {pairs.with_suffix('.txt')}, SHA-256 " in card
    assert "(greedy search)" in card
    assert "mean of the last 2 checkpoints" in card
    assert f"| label_smoothing | {0.1 if kind == 'spec' else 0.0} |" in card
    drafting = Pipeline.from_pretrained(model, folder)
    plain = Pipeline.from_pretrained(model, None)
    options: Any = {"num_beams": 1, "max_new_tokens": 12}
    results = drafting.generate(LINES, **options)
    assert [result.token_ids for result in results] == [result.token_ids for result in plain.generate(LINES, **options)]
    assert sum(result.stats.num_drafted for result in results) > 0

    weights = (folder / "model.safetensors").read_bytes()
    assert run(command) == 0  # there is nothing left to do
    assert (folder / "model.safetensors").read_bytes() == weights
    capsys.readouterr()
    assert run([*command, "--seed", "1"]) == 2
    assert "holds another training (settings differ)" in capsys.readouterr().err


def test_pairs_may_come_from_several_distillations(model: Path, pairs: Path, tmp_path: Path) -> None:
    few = make_pairs(model, tmp_path / "few", 19)
    command = ["train-drafter", str(model), "--data", str(pairs), "--data", str(few), "-o", str(tmp_path / "out")]
    assert run([*command, *TRAINING]) == 0
    both = [*read_pairs(pairs), *read_pairs(few)]
    num_pairs = sum(i % 10 != 9 and not pair.is_degenerate for i, pair in enumerate(both))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"- Data: {num_pairs} outputs of the verifier for\n" in card
    assert [f"  - {folder.with_suffix('.txt')}, SHA-256 " in card for folder in (pairs, few)] == [True, True]


def test_pairs_of_another_model_are_refused(
    model: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_text_model(model.name, tmp_path / "other", seed=11)
    command = ["train-drafter", str(tmp_path / "other"), "--data", str(pairs), "-o", str(tmp_path / "out"), *TRAINING]
    assert run(command) == 2
    assert "which is another model (weights differ)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_wrong_calls(model: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = make_pairs(model, tmp_path / "few", 19)
    base = ["train-drafter", str(model), "-o", str(tmp_path / "out")]
    wrong = {
        "has no manifest.json": ["--data", str(tmp_path)],
        "holds 19 pairs, but training needs 20 at least": ["--data", str(few)],
        "encoder_layers=3 exceeds the 2": ["--data", str(pairs), "--kind", "spec", "--encoder-layers", "3"],
        "encoder_layers=3 has no place in a drafter of kind feature": ["--data", str(pairs), "--encoder-layers", "3"],
        "steps=0 is not allowed": ["--data", str(pairs), "--steps", "0"],
        "dropout=1.0 is not allowed": ["--data", str(pairs), "--dropout", "1"],
    }
    capsys.readouterr()
    for message, arguments in wrong.items():
        assert run([*base, *arguments]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_help_loads_no_torch() -> None:
    script = "import sys; from spec2seq.cli.main import run; code = run(['train-drafter', '--help']); "
    script += "sys.exit(code or 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "--slot-weights" in shown


def looks(*values: float) -> list[dict[str, float]]:
    """Ten looks at the held-out pairs, with losses between them."""
    return [
        entry
        for i, value in enumerate(values, start=1)
        for entry in ({"step": 10 * i - 5, "loss": 1.0}, {"step": 10 * i, "eval_tokens_per_round": value})
    ]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (looks(1, 2, 3, 4, 4, 4, 4, 4, 4.01, 4.02), []),
        (looks(1, 2, 3, 3, 3, 3, 3, 3.0, 3.1, 3.2), ["still rose from 3.00 to 3.20"]),
        (looks(1, 2, 3, 4, 4, 4, 4, 4, 3, 3), ["fell from 4.00 to 3.00"]),
        (looks(1.5), []),
        ([], []),
    ],
)
def test_advice_on_the_length(history: list[dict[str, float]], expected: list[str]) -> None:
    advice = training_advice(history, 20_000, 1)
    assert [part in line for part, line in zip(expected, advice, strict=True)] == [True] * len(expected)


def test_advice_on_the_data() -> None:
    advice = training_advice([], 500, 5)
    assert ["num_beams=5" in advice[0], "only 500 pairs" in advice[1]] == [True, True]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: SpecShape(decoder_layers=0), "decoder_layers=0"),
        (lambda: TrainingSettings(learning_rate=0.0), "learning_rate=0.0"),
        (lambda: TrainingSettings(warmup_steps=-1), "warmup_steps=-1"),
    ],
)
def test_settings_that_cannot_be(make: Any, word: str) -> None:
    with pytest.raises(OptionError, match=f"{word} is not allowed"):
        make()
