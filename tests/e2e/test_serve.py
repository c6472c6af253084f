"""A server as its clients meet it: a process, a socket, real client libraries, and a signal at the end."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from spec2seq import Pipeline
from spec2seq.cli.main import run
from tests.serving_models import make_folder
from tests.serving_process import ServerProcess, serving
from tests.text_models import LINES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = {"max_new_tokens": 100, "min_new_tokens": 100}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Pipeline:
    return Pipeline.from_pretrained(folder)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with serving(folder, "--threads", "1", "--max-input-chars", "2000") as server:
        yield server


def test_the_client_of_libretranslate(server: ServerProcess, pipeline: Pipeline) -> None:
    client = LibreTranslateAPI(server.url)
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["it"]}]
    for line in (*LINES[:3], "", "È già là: 日本 & 10 < 25?"):
        assert client.translate(line, "en", "it", timeout=60) == pipeline.generate(line)[0].text
    assert client.translate(LINES[0], "auto", "it") == pipeline.generate(LINES[0])[0].text
    with pytest.raises(HTTPError) as caught:
        client.translate("a", "en", "fr")
    assert (caught.value.code, json.load(caught.value)) == (400, {"error": "fr is not supported"})


def test_a_stream_comes_in_parts(server: ServerProcess, pipeline: Pipeline) -> None:
    body = {"prompt": LINES[3], "stream": True, "num_draft_tokens": 0, **LONG}
    arrivals, text = [], ""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: {"):
                arrivals.append(time.monotonic())
                text += json.loads(line[6:])["choices"][0]["text"]
    assert text == pipeline.generate(LINES[3], **LONG)[0].text
    assert arrivals[-1] - arrivals[0] > 0.02, "not all at once at the end"


def test_a_client_that_hangs_up_stops_the_work(server: ServerProcess) -> None:
    body = {"prompt": "\n".join(LINES * 3), "stream": True, **LONG}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}/v1/completions",
            json={"prompt": [LINES[0]] * 30, **LONG},
            timeout=httpx.Timeout(60, read=0.02),
        )
    for _ in range(200):
        figures = httpx.get(f"{server.url}/metrics", timeout=60).text
        if "spec2seq_running 0.0" in figures and "spec2seq_waiting 0.0" in figures:
            break
        time.sleep(0.05)
    assert "spec2seq_running 0.0" in figures
    assert 'spec2seq_jobs_total{outcome="cancelled"} 2.0' in figures


def test_limits_hold_on_the_wire(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        too_long = client.post("/translate", json={"q": "a" * 2001, "source": "en", "target": "it"})
        assert (too_long.status_code, "2000 (max_input_chars)" in too_long.json()["error"]) == (400, True)
        too_large = client.post("/translate", content=b"x" * 200_000, headers={"content-type": "application/json"})
        assert too_large.status_code == 413
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/ready").status_code == 200
        assert "server" not in client.get("/languages").headers


def test_a_signal_under_load_finishes_what_runs_and_refuses_what_is_new(folder: Path, pipeline: Pipeline) -> None:
    lines = [line for line in LINES for _ in range(5)]
    expected = {line: pipeline.generate(line, **LONG)[0].text for line in LINES}

    async def load(server: ServerProcess) -> list[Any]:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            bodies = [{"prompt": line, "stream": i % 2 == 0, **LONG} for i, line in enumerate(lines)]
            requests = [asyncio.create_task(client.post("/v1/completions", json=body)) for body in bodies]
            while "spec2seq_waiting 0.0" not in (figures := (await client.get("/metrics")).text) or (
                "spec2seq_running 0.0" in figures
            ):
                await asyncio.sleep(0.02)
            server.terminate()
            while "Shutting down" not in server.log():
                await asyncio.sleep(0.01)
            with pytest.raises(httpx.TransportError):
                await httpx.AsyncClient(timeout=5).get(f"{server.url}/ready")
            return list(await asyncio.gather(*requests))

    with serving(folder, "--threads", "1") as server:
        answers = asyncio.run(load(server))
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log()
    for i, (line, answer) in enumerate(zip(lines, answers, strict=True)):
        assert answer.status_code == 200
        if i % 2:
            text = answer.json()["choices"][0]["text"]
        else:
            data = [json.loads(row[6:]) for row in answer.text.splitlines() if row.startswith("data: {")]
            text = "".join(part["choices"][0]["text"] for part in data)
        assert text == expected[line]


def test_an_address_that_is_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", "--model", str(folder), "--port", str(port)]) == 2
    assert f"--port {port}: Address already in use; use another port, or 0" in capsys.readouterr().err


def test_an_address_that_another_process_took_meanwhile(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        monkeypatch.setattr("spec2seq.serving.server._warm_up", lambda *_: other.listen())
        assert run(["serve", "--model", str(folder), "--port", str(port)]) == 2
    assert f"--port {port}: Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("path", [".", "./", "../tiny-en-it"])
def test_a_model_is_called_as_its_folder(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.chdir(folder)
    monkeypatch.setattr(
        "spec2seq.serving.server.run_server", lambda _, settings, *__: names.append(settings.model_name)
    )
    assert run(["serve", "--model", path]) == 0
    assert names == ["tiny-en-it"]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--host", "nowhere.invalid"], "use an address of this machine"),
        (["--host", "192.0.2.1"], "use an address of this machine"),
        (["--max-top-beta", "0"], "--max-top-beta 0 is not allowed"),
        (["--host", ""], "--host ''"),
        (["--host", "a..b"], "--host 'a..b' --port 0: no address can be called so; use an address of this machine"),
        (["--host", "a" * 70], "use an address of this machine"),
        (["--allow-origin", "https://page.example/"], "--allow-origin 'https://page.example/' is not an origin"),
        (["--allow-origin", "page.example"], "use one like https://page.example"),
        (["--source-prefix", "a\udcff"], r"source_prefix holds '\udcff' at character 1"),
        (["--max-queue", "0"], "--max-queue 0 is not allowed"),
        (["--timeout", "-1"], "--timeout -1.0 is not allowed"),
        (["--source-lang", "en"], "name both languages"),
        (["--num-beams", "3", "--top-beta", "3"], "top_beta=3 relaxes greedy search"),
        (["--model", "nowhere/at-all-x"], "nowhere/at-all-x"),
        (["--drafter", "promt_lookup"], "did you mean 'prompt_lookup'"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    folder: Path, flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--model", str(folder), "--port", "0", *flags]) in (1, 2)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("spec2seq: error:")]
    assert error in line


def test_help_loads_neither_torch_nor_the_web_stack() -> None:
    code = (
        "import sys; from spec2seq.cli.main import run; run(['serve', '--help']); "
        "print('loaded:', [name for name in ('torch', 'fastapi', 'uvicorn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: []\n")
    assert "--max-batch-tokens" in done.stdout


def test_what_is_not_installed_is_named_with_the_remedy(folder: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from spec2seq.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", "--model", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'spec2seq[serve]'" in done.stderr
