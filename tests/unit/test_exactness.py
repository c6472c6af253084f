"""The comparison of speculative with plain search finds what differs and weighs it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spec2seq import Pipeline
from spec2seq.cli.main import run
from spec2seq.evaluation.exactness import compare_with_plain
from spec2seq.pipelines.plans import TextOptions
from spec2seq.types import Hypothesis
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "marian"
    make_text_model("marian", made)
    return made


def break_speculation(monkeypatch: pytest.MonkeyPatch, line: int, position: int, token: int | None) -> None:
    """Let speculative search (not plain search) put `token` at a place, or end there."""
    decode = Pipeline.decode

    def broken(self: Pipeline, pieces: Any, resolved: Any, take: Any, batch_tokens: int = 4000) -> None:
        def take_broken(index: int, outcome: Any) -> None:
            if index == line and resolved.num_draft_tokens != 0:
                ids = list(outcome.hypotheses[0].token_ids)
                ids[position:] = [] if token is None else [token, *ids[position + 1 :]]
                outcome = replace(outcome, hypotheses=[Hypothesis(ids)])
            take(index, outcome)

        decode(self, pieces, resolved, take_broken, batch_tokens)

    monkeypatch.setattr(Pipeline, "decode", broken)


def reference_margin(folder: Path, text: str, generated: list[int]) -> float:
    """Distance of transformers' two best logits after these tokens, pad banned as the checkpoint says."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    source = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        logits = model(**source, decoder_input_ids=torch.tensor([[start, *generated]])).logits[0, -1]
    logits[pad] = float("-inf")
    best = logits.topk(2).values
    return float(best[0] - best[1])


def test_identical_outputs(folder: Path) -> None:
    pipeline = Pipeline.from_pretrained(folder)
    options = pipeline.options(num_beams=1, max_new_tokens=10)
    report = compare_with_plain(pipeline, ["", *LINES], options, TextOptions())
    assert (report.num_lines, report.num_identical, report.differences, report.mistakes) == (9, 9, [], [])
    assert report.stats.num_tokens > report.stats.num_rounds > 0


@pytest.mark.parametrize("token", [5, None])
def test_a_difference_is_placed_and_weighed(folder: Path, monkeypatch: pytest.MonkeyPatch, token: int | None) -> None:
    pipeline = Pipeline.from_pretrained(folder)
    options = pipeline.options(num_beams=1, max_new_tokens=10)
    plain = pipeline.generate(LINES[2], num_beams=1, max_new_tokens=10)[0].token_ids
    assert plain[3] != token
    break_speculation(monkeypatch, 2, 3, token)
    report = compare_with_plain(pipeline, LINES[:4], options, TextOptions())
    (difference,) = report.differences
    assert (difference.line, difference.position) == (2, 3)
    assert (difference.plain, difference.speculative) == (plain[3], token)
    assert difference.margin == pytest.approx(reference_margin(folder, LINES[2], plain[:3]), rel=1e-3)
    assert report.num_identical == 3
    assert report.mistakes == [difference]
    tolerant = compare_with_plain(pipeline, LINES[:4], options, TextOptions(), tolerance=difference.margin + 1)
    assert tolerant.mistakes == []


def test_the_command_line_fails_on_a_mistake(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(LINES[:4]))
    break_speculation(monkeypatch, 1, 2, 5)
    arguments = ["exactness", "--model", str(folder), "--input", str(tmp_path / "in.txt"), "--max-new-tokens", "10"]
    assert run(arguments) == 1
    output = capsys.readouterr().out
    assert output.startswith("4 lines, 3 identical, 1 near ties or mistakes;")
    assert "line 2: differs from token 3 on, plain " in output
    assert "speculative 5, margin " in output
    assert "not exact: 1 differences have a margin above 0.0001" in output
    assert run([*arguments, "--tolerance", "100"]) == 0
    assert "exact up to near ties: every margin is at most 100" in capsys.readouterr().out
