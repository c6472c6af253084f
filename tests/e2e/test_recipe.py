"""The recipe from nothing: every command, on little data."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.text_models import LINES, make_text_model

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "debian-en-it"
SCRIPTS = sorted(path for path in RECIPE.glob("*.py") if path.read_text(encoding="utf-8").startswith("#!"))


def call(*arguments: object, processes: int = 1) -> subprocess.CompletedProcess[str]:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes) if processes > 1 else ()
    return subprocess.run(
        [sys.executable, *map(str, (*torchrun, *arguments))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def write_titles(file: Path) -> None:
    """The titles among the committed lines."""
    lines = gzip.decompress((RECIPE / "test.tsv.gz").read_bytes()).decode().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "\tsynopsis\t" in line), encoding="utf-8")


def test_a_mistake_is_told_in_a_line(tmp_path: Path) -> None:
    done = call(RECIPE / "build_corpus.py", "--tsv", tmp_path / "none.tsv", "-o", tmp_path / "corpus")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("build_corpus.py: error: ")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_explains_itself(script: Path) -> None:
    done = call(script, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ")
    assert os.access(script, os.X_OK)


@pytest.mark.slow
def test_the_whole_recipe(tmp_path: Path) -> None:
    write_titles(tmp_path / "titles.tsv")
    command = (RECIPE / "run.py", tmp_path / "work", "--smoke", "--processes", 1, "--tsv", tmp_path / "titles.tsv")
    done = call(*command)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    records = [json.loads(line) for line in (tmp_path / "work" / "results" / "figures.jsonl").read_text().splitlines()]
    systems = {record["system"]: record for record in records if record["record"] == "system"}
    assert list(systems) == [
        *("greedy", "beam 5", "exact", "relaxed (3, 1.0)", "relaxed (5, 3.0)", "drafter alone", "feature"),
        *("blockwise, k = 3", "blockwise, k = 6", "small_model", "prompt_lookup"),
    ]
    exact = [name for name in systems if name not in ("beam 5", "drafter alone") and "relaxed" not in name]
    assert {name: systems[name]["num_different"] for name in exact} == dict.fromkeys(exact, 0)
    assert systems["greedy"]["tokens_per_round"] == 1.0
    assert all(systems[name]["tokens_per_round"] >= 1.0 for name in exact)
    slots = [(record["drafter"], record["slots"]) for record in records if record["record"] == "slots"]
    assert len(slots) == 6
    assert (tmp_path / "work" / "results" / "tokens_per_round.png").read_bytes().startswith(b"\x89PNG")
    again = call(*command)  # nothing is left to be done
    assert again.returncode == 0
    assert again.stdout.count("is complete") >= 4
    assert "step 1" not in again.stdout + again.stderr
    refused = call(*(part for part in command if part != "--smoke"))
    assert refused.returncode == 2
    assert "holds a smoke run" in refused.stderr


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    write_titles(tmp_path / "titles.tsv")
    assert call(RECIPE / "build_corpus.py", "--tsv", tmp_path / "titles.tsv", "-o", tmp_path / "corpus").returncode == 0
    tokenizer = (RECIPE / "train_tokenizer.py", tmp_path / "corpus" / "train.tsv.gz", "--pieces", 300)
    assert call(*tokenizer, "-o", tmp_path / "tokenizer").returncode == 0
    train = (
        *(RECIPE / "train_verifier.py", "--corpus", tmp_path / "corpus", "--tokenizer", tmp_path / "tokenizer"),
        *("--width", 16, "--layers", 1, "--fp32", "--eval-steps", 3, "--save-steps", 3, "--batch-tokens", 200),
    )
    for folder, steps in (("whole", (6,)), ("parts", (3, 6))):
        for limit in steps:
            done = call(*train, "-o", tmp_path / folder, "--max-steps", limit, processes=2)
            assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("eval_nll") == 1  # told by one process
    whole, parts = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    alone = call(*train, "-o", tmp_path / "alone", "--max-steps", 6)
    assert alone.returncode == 0
    other = load_file(tmp_path / "alone" / "model" / "model.safetensors")
    assert any(not torch.equal(whole[name], other[name]) for name in whole)


@pytest.mark.slow
def test_ablations_by_two_processes_each(tmp_path: Path) -> None:
    make_text_model("marian", tmp_path / "model", generation={"max_length": 13})
    (tmp_path / "lines.txt").write_text("".join(f"{one} {two}\n" for one in LINES for two in LINES), encoding="utf-8")
    (tmp_path / "test.tsv").write_text("".join(f"{line}\t{line}\n" for line in LINES), encoding="utf-8")
    source = ("--source", tmp_path / "lines.txt", "-o", tmp_path / "pairs")
    verb = Path(sys.executable).with_name("spec2seq")
    assert call(verb, "distill", tmp_path / "model", *source).returncode == 0
    inputs = ("--model", tmp_path / "model", "--data", tmp_path / "pairs", "--test", tmp_path / "test.tsv")
    command = (RECIPE / "ablate.py", *inputs, "--steps", 2, "-o", tmp_path / "ablations")
    done = call(*command)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    records = [json.loads(line) for line in (tmp_path / "ablations" / "ablations.jsonl").read_text().splitlines()]
    assert len(records) == 10
    assert all(one["draft_cost"] > 0 and one["exact"]["tokens_per_round"] >= 1 for one in records[2:])
    assert (tmp_path / "ablations" / "survival.png").read_bytes().startswith(b"\x89PNG")
    again = call(*command)
    assert again.returncode == 0
    assert again.stdout.count("is complete") == 8
