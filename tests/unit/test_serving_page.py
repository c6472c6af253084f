"""The files of the page: served with their types and headers, complete, and in need of nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spec2seq import Pipeline
from spec2seq.serving.app import STATIC
from tests.serving_clients import InProcess, running
from tests.serving_models import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
TYPES = {
    ".html": ("text/html",),
    ".css": ("text/css",),
    ".js": ("text/javascript", "application/javascript"),
    ".svg": ("image/svg+xml",),
}
# Names of XML dialects, which nothing loads.
NAMESPACES = ("http://www.w3.org/2000/svg",)


class Markup(HTMLParser):
    """What a page refers to, which ids it has, and what a strict policy would not run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.inline: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.links += [values[name] for name in ("href", "src") if name in values]
        self.ids += [values["id"]] if "id" in values else []
        for name in ("for", "aria-labelledby", "aria-describedby"):
            self.references += values.get(name, "").split()
        self.inline += [name for name in values if name == "style" or name.startswith("on")]
        self.inline += [tag] if tag == "style" or (tag == "script" and "src" not in values) else []


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    pipeline = Pipeline.from_pretrained(make_folder(tmp_path_factory.mktemp("models")))
    with running(pipeline) as client:
        yield client


@pytest.fixture(scope="module")
def markup() -> Markup:
    return Markup((STATIC / "index.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_served_with_its_type_and_a_strict_policy(client: InProcess, path: Path) -> None:
    response = client.get("/" + path.relative_to(STATIC).as_posix())
    assert response.status_code == 200
    assert response.content == path.read_bytes()
    assert response.headers["content-type"].split(";")[0] in TYPES[path.suffix]
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"


def test_the_page_is_at_the_root_and_shadows_no_endpoint(client: InProcess) -> None:
    assert client.get("/").text == (STATIC / "index.html").read_text(encoding="utf-8")
    assert client.get("/languages").json()[0]["code"] == "en"
    assert client.get("/translate").status_code == client.post("/", json={}).status_code == 405
    assert client.get("/no-such-file.js").status_code == 404
    assert client.get("/%2e%2e/app.py").status_code == 404


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_loaded_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [url for url in re.findall(r"\w+://[^\s\"'<>)]+", text) if url not in NAMESPACES] == []
    assert re.findall(r"[\"'(]//\w|@import|url\((?!#)", text) == []


def test_the_page_refers_to_what_exists(client: InProcess, markup: Markup) -> None:
    assert not [link for link in markup.links if link.startswith("#") and link[1:] not in markup.ids]
    links = [link for link in markup.links if not link.startswith("#")]
    assert {link: client.get("/" + link).status_code for link in links} == dict.fromkeys(links, 200)
    assert set(markup.references) <= set(markup.ids)
    assert len(set(markup.ids)) == len(markup.ids)


def test_nothing_is_inline(markup: Markup) -> None:
    assert markup.inline == []


def test_scripts_import_what_exists_and_all_are_needed() -> None:
    scripts = {path.name: path.read_text(encoding="utf-8") for path in FILES if path.suffix == ".js"}
    imports = {
        name: re.findall(r'^(?:import|\}) .*?from "\./([\w-]+\.js)";$', text, re.M) for name, text in scripts.items()
    }
    needed, waiting = set(), ["app.js"]
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += [other for other in imports[name] if other not in needed]
    assert needed == set(scripts)


def test_scripts_import_only_names_that_are_exported() -> None:
    scripts = {path.name: path.read_text(encoding="utf-8") for path in FILES if path.suffix == ".js"}
    for name, text in scripts.items():
        for names, other in re.findall(r'^import \{ ([^}]+) \} from "\./([\w-]+\.js)";$', text, re.M):
            exported = set(re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", scripts[other], re.M))
            wanted = {word.strip() for word in names.split(",")}
            assert wanted <= exported, (name, other)
            assert all(len(re.findall(rf"\b{word}\b", text)) > 1 for word in wanted), name


def test_scripts_find_only_ids_that_the_page_has(markup: Markup) -> None:
    for path in FILES:
        if path.suffix == ".js":
            text = path.read_text(encoding="utf-8")
            asked = re.findall(r'find\("#?([\w-]+)"\)', text)
            assert set(asked) <= set(markup.ids), path.name
