"""What the repository promises outside the package: pages, examples, commands, sizes."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

import spec2seq
from spec2seq.cli.main import app, run

ROOT = Path(__file__).parents[2]
BUNDLED_MODEL = ROOT / "models" / "debian-en-it"
README = (ROOT / "README.md").read_text(encoding="utf-8")

needs_model = pytest.mark.skipif(not BUNDLED_MODEL.exists(), reason="the bundled model is not in this checkout")


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def blocks(page: str, language: str) -> list[str]:
    """Fenced blocks of a page; "" finds those without a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def shell_commands(page: str, program: str) -> list[str]:
    lines = [line for block in blocks(page, "") for line in block.splitlines()]
    return [line for line in lines if line.split()[:1] == [program]]


def test_options_page_is_up_to_date() -> None:
    script = load_script(ROOT / "docs" / "write_options.py")
    assert script.PAGE.read_text(encoding="utf-8") == script.render(), "run `make docs`"


def is_there(page: Path, link: str) -> bool:
    """Whether a page's relative link leads to a file, and to a heading of it where it names one."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not anchor:
        return target.exists()
    headings = (
        re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE) if target.exists() else []
    )
    return anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_pages_refer_to_what_exists() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        text = page.read_text(encoding="utf-8")
        links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("http")]
        assert [link for link in links if not is_there(page, link)] == [], page.name


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    pages = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)$", pages, flags=re.MULTILINE))
    assert {first or second for first, second in named} <= targets
    assert {"demo", "check", "test", "format"} <= targets


def test_version_has_a_changelog_entry() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert spec2seq.__version__ == version
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[0] == version


def test_files_stay_small_and_are_named_for_what_they_hold() -> None:
    files = list((ROOT / "src").rglob("*.py"))
    assert len(files) > 30
    assert [path.name for path in files if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []
    assert [path.name for path in files if path.stem in {"utils", "helpers", "misc", "common"}] == []


def test_examples_are_short() -> None:
    examples = list((ROOT / "examples").glob("*.py"))
    assert len(examples) == 5
    assert [path.name for path in examples if len(path.read_text().splitlines()) > 40] == []


@needs_model
def test_example_translate(capsys: pytest.CaptureFixture[str]) -> None:
    load_script(ROOT / "examples" / "translate.py").main()
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d+", "N", line[line.index("  (") :]) for line in lines] == ["  (N tokens, N rounds)"] * 2


@needs_model
def test_example_same_output(capsys: pytest.CaptureFixture[str]) -> None:
    load_script(ROOT / "examples" / "same_output.py").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["same"] * 5


@needs_model
def test_example_own_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    load_script(ROOT / "examples" / "own_drafter.py").main()
    plain = spec2seq.Pipeline.from_pretrained(BUNDLED_MODEL, drafter=None)
    assert capsys.readouterr().out == plain.generate("a very very long text")[0].text + "\n"


@needs_model
@pytest.mark.filterwarnings("ignore:drafter unused")
def test_readme_python_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for block in blocks(README, "python"):
        exec(block, names)
    printed = capsys.readouterr().out.splitlines()
    assert [bool(re.fullmatch(r".+ \d+\.\d+", line)) for line in printed] == [True, True]


# `serve` goes on until it is stopped: e2e/test_serve.py
ENDING_COMMANDS = [line for line in shell_commands(README, "spec2seq") if line.split()[1] != "serve"]


@needs_model
@pytest.mark.parametrize("command", ENDING_COMMANDS)
def test_readme_commands_run(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert run(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out.strip()


def test_pages_show_every_verb() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    commands = [line for page in pages for line in shell_commands(page.read_text(encoding="utf-8"), "spec2seq")]
    verbs = {command.split()[1] for command in commands}
    assert verbs == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group has them


def test_a_first_result_within_twenty_lines() -> None:
    lines = README.splitlines()
    assert "make demo" in lines[lines.index("## First result") :][:20]
