"""The bundled model under load, and requests that nobody would write by hand. Minutes long: run with -m slow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.serving_models import make_folder
from tests.serving_process import ServerProcess, serving
from tests.unit.test_repository import BUNDLED_MODEL, ROOT, load_script, needs_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

LINES = ROOT / "recipes" / "debian-en-it" / "test.tsv.gz"


@pytest.fixture(scope="module")
def load() -> Any:
    return load_script(ROOT / "benchmarks" / "serving_load.py")


@pytest.fixture(scope="module")
def texts(load: Any) -> Any:
    return load.make_texts(str(BUNDLED_MODEL), LINES, 48, 8)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with serving(BUNDLED_MODEL, "--threads", "1", "--timeout", "900") as server:
        yield server


@needs_model
def test_a_thousand_mixed_requests_from_32_clients(server: ServerProcess, load: Any, texts: Any) -> None:
    tally = asyncio.run(load.mixed(server.url, texts, 1000, 32))
    assert tally.wrong == []
    assert tally.num_server_errors == 0
    kinds = {kind: {status for name, status in tally.answers if name == kind} for kind, _ in tally.answers}
    assert kinds["blank"] == kinds["short"] == kinds["long"] == {200}
    assert kinds["invalid"] == {400}
    assert sum(tally.answers.values()) == 1000
    assert "Traceback" not in server.log()


@needs_model
def test_memory_stays_on_a_plateau(server: ServerProcess, load: Any, texts: Any) -> None:
    """Of 5000 short requests the last 2000 add less than 1 % to what the process holds, all of them less than 10 %: the
    engine may make itself a program for a size that has become frequent."""
    found = load.measure_memory(server.url, server.process.pid, texts.short, 5000)
    assert found[-1] < 1.01 * found[5], found
    assert found[-1] < 1.1 * found[0], found


def test_requests_made_from_the_document(tmp_path: Path) -> None:
    """schemathesis: whatever the document allows, and much that it does not, is answered as the document says."""
    schemathesis = pytest.importorskip("schemathesis", reason="needs pip install 'spec2seq[dev]'")
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi import checks

    limits = ["--max-output-tokens", "20", "--max-beams", "3", "--max-input-chars", "500", "--max-texts", "4"]
    with serving(make_folder(tmp_path), "--threads", "1", "--log-texts", *limits) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")

        @given(case=schema.as_strategy())
        @settings(max_examples=1500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        def check(case: Any) -> None:
            case.call_and_validate(
                checks=[
                    schemathesis.checks.not_a_server_error,
                    checks.status_code_conformance,
                    checks.content_type_conformance,
                    checks.response_schema_conformance,
                ]
            )

        check()
        assert "ERROR" not in server.log()
