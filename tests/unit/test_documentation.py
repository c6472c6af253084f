"""The pages on transformers and on features: their examples run, and the tests they name exist."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from tests.unit.test_repository import BUNDLED_MODEL, ROOT, blocks, load_script, needs_model

FEATURES = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
HUGGING_FACE = (ROOT / "docs" / "huggingface.md").read_text(encoding="utf-8")


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_feature_names_a_test_that_exists() -> None:
    rows = [line.split("|") for line in FEATURES.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", row[2])
        assert len(named) == 1, row[1]
        file, name = named[0]
        assert name in functions(ROOT / "tests" / file), f"{file}::{name}"
        assert len(row) == 6, row[1]


def test_the_readme_leads_to_both_pages() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(docs/features.md)" in readme
    assert "(docs/huggingface.md)" in readme


@needs_model
def test_examples_on_the_page_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    pages = blocks(HUGGING_FACE, "python")
    assert len(pages) == 2
    for page in pages:
        exec(page, {})
    assert len(capsys.readouterr().out.splitlines()) == 2


@needs_model
def test_example_hugging_face(capsys: pytest.CaptureFixture[str]) -> None:
    load_script(ROOT / "examples" / "hugging_face.py").main()
    lines = capsys.readouterr().out.splitlines()
    assert [bool(re.fullmatch(r"\d+\.\d\d s", line)) for line in lines[:2]] == [True, True]
    assert lines[2] == "same"
    assert len(lines) == 3 + 5


@needs_model
def test_example_streaming(capsys: pytest.CaptureFixture[str]) -> None:
    from spec2seq import Pipeline

    load_script(ROOT / "examples" / "streaming.py").main()
    text = "This package contains the documentation. It also contains examples for developers."
    expected = Pipeline.from_pretrained(BUNDLED_MODEL, drafter=None).generate(text, num_beams=1)[0].text
    assert capsys.readouterr().out == expected + "\n"


def test_the_features_in_the_readme_are_those_with_tests() -> None:
    def table(page: str) -> dict[str, list[str]]:
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "| " in line]
        return {row[0]: row[1:] for row in rows if len(row) == 4}

    backed = table(FEATURES)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = table(readme.split("## What there is")[1].split("##")[0])
    assert len(told) > 10
    for name, (ours, *others) in told.items():
        entry, *expected = backed[name]
        assert entry.split(":")[0].split(" `")[0].startswith(ours)
        assert others == expected


def test_the_figures_in_the_readme_are_generated() -> None:
    """Every figure between the marks comes from the committed results."""
    spec = importlib.util.spec_from_file_location("write_readme", ROOT / "benchmarks" / "write_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert module.fill(readme, module.in_main_readme()) == readme
