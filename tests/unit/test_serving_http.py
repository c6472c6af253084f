"""The HTTP interface: the shapes that clients expect, and what is refused in which words."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from spec2seq import GenerationOptions, Pipeline
from spec2seq.errors import OptionError
from spec2seq.serving.app import create_service
from spec2seq.serving.limits import Limits
from spec2seq.serving.page import Page
from spec2seq.serving.service import ServiceSettings
from tests.serving_clients import InProcess, events_of, running
from tests.serving_models import make_folder, poisoned
from tests.text_models import LINES, make_text_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMITS = Limits(max_input_chars=400, max_texts=5, max_pieces=60, max_output_tokens=40, max_beams=4, max_draft_tokens=8)
PAIR = {"source": "en", "target": "it"}
POISON = "3"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline.from_pretrained(make_folder(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def client(pipeline: Pipeline) -> Iterator[InProcess]:
    with running(pipeline, limits=LIMITS) as client:
        yield client


def output(pipeline: Pipeline, text: str, **options: Any) -> str:
    return pipeline.generate(text, **options)[0].text


# ---------------------------------------------------------------- translation


def test_a_text_gives_a_text_and_a_list_a_list(client: InProcess, pipeline: Pipeline) -> None:
    one = client.post("/translate", json={"q": LINES[0], **PAIR})
    many = client.post("/translate", json={"q": [LINES[0], "", LINES[1]], **PAIR})
    single = client.post("/translate", json={"q": [LINES[0]], **PAIR})
    assert one.json() == {"translatedText": output(pipeline, LINES[0])}
    assert many.json() == {"translatedText": [output(pipeline, LINES[0]), "", output(pipeline, LINES[1])]}
    assert single.json() == {"translatedText": [output(pipeline, LINES[0])]}
    assert one.headers["content-type"] == "application/json"


def test_forms_are_as_good_as_json(client: InProcess, pipeline: Pipeline) -> None:
    expected = {"translatedText": output(pipeline, LINES[0])}
    assert client.post("/translate", data={"q": LINES[0], **PAIR, "api_key": "x"}).json() == expected
    parts = {name: (None, value) for name, value in {"q": LINES[0], **PAIR}.items()}
    assert client.post("/translate", files=parts).json() == expected
    repeated = client.post("/translate", data={"q": [LINES[0], LINES[1]], **PAIR}).json()["translatedText"]
    assert repeated == [output(pipeline, LINES[0]), output(pipeline, LINES[1])]
    lines = client.post("/translate", data={"q": f"{LINES[0]}\r\n\r\n{LINES[1]}", **PAIR}).json()["translatedText"]
    assert lines == f"{output(pipeline, LINES[0])}\r\n\r\n{output(pipeline, LINES[1])}"


@pytest.mark.parametrize("text", ["The caf\u00e9 and the image.", "a & b = c + d % e", "\U0001f600"])
def test_forms_need_not_escape_their_utf_8(client: InProcess, text: str) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded"}
    escaped = client.post("/translate", data={"q": text, **PAIR}).json()
    assert escaped == client.post("/translate", json={"q": text, **PAIR}).json()
    raw = text.translate({ord(mark): f"%{ord(mark):02x}" for mark in "&=+%"})
    assert client.post("/translate", content=f"q={raw}&source=en&target=it".encode(), headers=kind).json() == escaped


def test_nothing_in_nothing_out(client: InProcess) -> None:
    assert client.post("/translate", json={"q": "", **PAIR}).json() == {"translatedText": ""}
    assert client.post("/translate", json={"q": [], **PAIR}).json() == {"translatedText": []}
    assert client.post("/translate", data={"q": " \n", **PAIR}).json() == {"translatedText": " \n"}


def test_the_only_source_language_need_not_be_named(client: InProcess) -> None:
    one = client.post("/translate", json={"q": LINES[0], "source": "auto", "target": "it"}).json()
    many = client.post("/translate", json={"q": [LINES[0], ""], "source": "auto", "target": "it"}).json()
    language = {"confidence": 100.0, "language": "en"}
    assert one["detectedLanguage"] == language
    assert many["detectedLanguage"] == [language, language]


def test_html_keeps_its_tags_as_mastodon_sends_it(client: InProcess, pipeline: Pipeline) -> None:
    text = (
        f'<p>{LINES[0]} <a href="https://a.example/@b" class="u-url mention">@<span>The tool</span></a></p>\n'
        f"<p>10 &lt; 25<br />{LINES[1]} &amp; more</p>"
    )
    body = {"q": [text, "no tags"], "source": "auto", "target": "it", "format": "html", "api_key": None}
    first, second = client.post("/translate", json=body).json()["translatedText"]
    translated = [output(pipeline, part) for part in (LINES[0], f"{LINES[1]} & more")]
    escaped = [part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for part in translated]
    assert first == (
        f'<p>{escaped[0]} <a href="https://a.example/@b" class="u-url mention">@<span>The tool</span></a></p>\n'
        f"<p>10 &lt; 25<br />{escaped[1]}</p>"
    )
    assert second == output(pipeline, "no tags")
    empty = client.post("/translate", json={"q": "<p></p>", **PAIR, "format": "html"})
    assert empty.json() == {"translatedText": "<p></p>"}


def test_alternatives_are_the_other_beams(client: InProcess, pipeline: Pipeline) -> None:
    found = client.post("/translate", json={"q": LINES[0], **PAIR, "alternatives": 2}).json()
    (expected,) = pipeline.generate(LINES[0], num_beams=3, num_return_sequences=3)
    assert found == {"translatedText": expected.text, "alternatives": [one.text for one in expected.alternatives]}
    listed = client.post("/translate", data={"q": [LINES[0], ""], **PAIR, "alternatives": "2"}).json()
    assert listed["alternatives"] == [found["alternatives"], []]
    html = client.post("/translate", json={"q": [LINES[0]], **PAIR, "alternatives": 2, "format": "html"}).json()
    assert html == {"translatedText": [output(pipeline, LINES[0])], "alternatives": [[]]}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"q": None}, "Invalid request: q is null, not a string or a list of strings"),
        ({"q": {"a": 1}}, "Invalid request: q is an object, not a string or a list of strings"),
        ({"q": 5}, "Invalid request: q is a number, not a string or a list of strings"),
        ({"q": True}, "Invalid request: q is a boolean, not a string or a list of strings"),
        ({"q": ["a", ["b"]]}, "Invalid request: q[1] is a list, not a string"),
        ({"q": ["a", None]}, "Invalid request: q[1] is null, not a string"),
        ({"q": "a" * 401}, "401 characters, and at most 400 (max_input_chars)"),
        ({"q": ["a" * 200, "b" * 201]}, "401 characters, and at most 400 (max_input_chars)"),
        ({"q": ["a"] * 6}, "6 texts, and at most 5 (max_texts)"),
        ({"q": ["a\n" * 30, "a. " * 30]}, "61 lines and sentences, and at most 60 (max_pieces)"),
        ({"q": "<b>a" * 61, "format": "html"}, "61 lines and sentences, and at most 60 (max_pieces)"),
        ({"q": "\ud800"}, r"Invalid request: q holds '\ud800' at character 0"),
        ({"q": ["a", "b\ud800"]}, r"Invalid request: q[1] holds '\ud800' at character 1"),
        (
            {"q": ["<p>a</p><p>b", "c<p>\ud800"], "format": "html"},
            r"Invalid request: q[1] holds '\ud800' at character 4",
        ),
        ({"source": ""}, "Invalid request: missing source parameter"),
        ({"source": ["en"]}, "Invalid request: source is a list, not a string"),
        ({"target": None}, "Invalid request: missing target parameter"),
        ({"source": "zz"}, "zz is not supported"),
        ({"source": "\ud800"}, r"\ud800 is not supported"),
        ({"target": "de"}, "de is not supported"),
        ({"target": "en"}, "en is not supported"),
        ({"format": "xml"}, "xml format is not supported; use text or html"),
        ({"format": 1}, "Invalid request: format is a number, not a string"),
        ({"alternatives": "many"}, "Invalid request: alternatives parameter is not a number of at least 0: 'many'"),
        ({"alternatives": -1}, "Invalid request: alternatives parameter is not a number of at least 0: -1"),
        ({"alternatives": 4}, "Invalid request: alternatives parameter must be <= 3 (max_beams - 1)"),
    ],
)
def test_what_is_wrong_is_named(client: InProcess, change: dict[str, Any], error: str) -> None:
    response = client.post(
        "/translate", content=json.dumps({"q": "a", **PAIR, **change}), headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert error in response.json()["error"]


def test_a_missing_field_is_named(client: InProcess) -> None:
    assert client.post("/translate", data=PAIR).json() == {"error": "Invalid request: missing q parameter"}
    assert (
        client.post("/translate", json={"q": "a", "target": "it"}).json()["error"].endswith("missing source parameter")
    )


@pytest.mark.parametrize(
    ("body", "kind", "status", "error"),
    [
        (b"{", "application/json", 400, "Invalid JSON format"),
        (b"", "application/json", 400, "Invalid JSON format"),
        (b"\xff", "application/json", 400, "Invalid JSON format"),
        (b"[" * 5000, "application/json", 400, "Invalid JSON format"),
        (b'["a"]', "application/json", 400, "the body is a list, not an object"),
        (b"null", "application/json", 400, "the body is null, not an object"),
        (b'{"q": 1e999}', "application/json", 400, "q is a number"),
        (
            b'{"q": "a", "source": "en", "q": "b"}',
            "application/json",
            400,
            "Invalid request: q is there more than once",
        ),
        (b"q=%E9&source=en&target=it", "application/x-www-form-urlencoded", 400, "Invalid form: its text is not UTF-8"),
        (
            b"q=\xe9&source=en&target=it",
            "application/x-www-form-urlencoded",
            400,
            "Invalid form: its text is not UTF-8",
        ),
        (b"x", "multipart/form-data; boundary=y", 400, "Invalid form"),
        (b"x", "multipart/form-data", 400, "Invalid form"),
        (b"a=b&" * 1200, "application/x-www-form-urlencoded", 400, "Invalid form"),
        (b"<q/>", "text/xml", 415, "content type text/xml is not supported"),
        (b"q=a", "", 415, "content type (none) is not supported"),
    ],
)
def test_bodies_that_nothing_can_be_made_of(client: InProcess, body: bytes, kind: str, status: int, error: str) -> None:
    response = client.post("/translate", content=body, headers={"content-type": kind})
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert error in response.json()["error"]


def test_files_in_forms_are_refused(client: InProcess) -> None:
    response = client.post("/translate", data=PAIR, files={"q": ("a.txt", b"text")})
    assert response.status_code == 400
    assert "files" in response.json()["error"].lower()


def test_large_bodies_are_not_read(client: InProcess) -> None:
    limit = LIMITS.max_body_bytes
    response = client.post("/translate", content=b" " * (limit + 1), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert f"{limit} bytes" in response.json()["error"]
    fits = json.dumps({"q": "\U0001f600" * 400, **PAIR}).encode()
    assert client.post("/translate", content=fits, headers={"content-type": "application/json"}).status_code == 200


def test_what_is_served_is_told(client: InProcess) -> None:
    assert client.get("/languages").json() == [{"code": "en", "name": "English", "targets": ["it"]}]
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] == 400
    assert settings["keyRequired"] is settings["filesTranslation"] is False
    assert settings["language"]["target"] == {"code": "it", "name": "Italian"}
    (model,) = client.get("/v1/models").json()["data"]
    assert {
        "id": "tiny-en-it",
        "drafter": "prompt_lookup",
        "max_draft_tokens": 8,
        "max_beams": 4,
    }.items() <= model.items()


# ---------------------------------------------------------------- completions


def test_completions(client: InProcess, pipeline: Pipeline) -> None:
    body = {"model": "tiny-en-it", "prompt": LINES[:2], "max_tokens": 9, "num_beams": 2, "n": 2}
    answer = client.post("/v1/completions", json=body).json()
    expected = pipeline.generate(LINES[:2], max_new_tokens=9, num_beams=2, num_return_sequences=2)
    texts = [text for result in expected for text in (result.text, result.alternatives[0].text)]
    assert [choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["object"] == "text_completion"
    assert 0 <= time.time() - answer["created"] < 60
    assert answer["usage"]["prompt_tokens"] == sum(map(len, pipeline.tokenizer.encode(LINES[:2])))
    assert answer["usage"]["completion_tokens"] == sum(result.stats.num_tokens for result in expected)
    assert "warnings" not in answer


def test_a_stream_of_completions(client: InProcess, pipeline: Pipeline) -> None:
    prompts = [f"{LINES[3]}\n{LINES[5]}", LINES[0]]
    response = client.post("/v1/completions", json={"prompt": prompts, "stream": True, "max_tokens": 20})
    assert response.headers["content-type"].startswith("text/event-stream")
    *parts, last, done = [data for _, data in events_of(response.text)]
    assert done == "[DONE]"
    assert len({part["id"] for part in [*parts, last]}) == 1
    for i in (0, 1):
        mine = [choice for part in parts for choice in part["choices"] if choice["index"] == i]
        assert "".join(choice["text"] for choice in mine) == output(pipeline, prompts[i], max_new_tokens=20)
        assert {choice["finish_reason"] for choice in mine} == {None}
    assert [choice["finish_reason"] for choice in last["choices"]] == ["stop", "stop"]
    assert last["stats"]["num_rounds"] > 0


def test_sampling_and_prefixes(client: InProcess, pipeline: Pipeline) -> None:
    def complete(**fields: Any) -> Any:
        return client.post("/v1/completions", json={"prompt": LINES[0], **fields}).json()

    warm = complete(temperature=0.9, seed=4, top_k=5)["choices"][0]["text"]
    assert warm == output(pipeline, LINES[0], do_sample=True, temperature=0.9, seed=4, top_k=5)
    assert complete(temperature=0)["choices"][0]["text"] == output(pipeline, LINES[0])
    assert complete(max_tokens=None, n=None)["choices"][0]["text"] == output(pipeline, LINES[0])
    begun = complete(target_prefix="un file", max_tokens=5)["choices"][0]["text"]
    assert begun == output(pipeline, LINES[0], target_prefix="un file", max_new_tokens=5)
    asked = complete(source_prefix="A tool. ")["choices"][0]["text"]
    assert asked == output(pipeline, "A tool. " + LINES[0])
    told = complete(do_sample=False, temperature=0.5)["warnings"]
    assert len(told) == 1
    assert "temperature=0.5" in told[0]


@pytest.mark.parametrize(
    ("fields", "status", "param", "error"),
    [
        ({"prompt": None}, 400, "prompt", "prompt is null"),
        ({"prompt": [1, 2]}, 400, "prompt", "prompt[0] is a number, not a string"),
        ({"prompt": "a" * 401}, 400, "prompt", "401 characters, and at most 400 (max_input_chars)"),
        ({"model": "/etc/passwd"}, 404, "model", "this service has the model 'tiny-en-it' and no other"),
        ({"stop": ["a"]}, 400, "stop", "stop is not a parameter here"),
        ({"bad_words_ids": [[1]]}, 400, "bad_words_ids", "is not a parameter here"),
        ({"output_logits": True}, 400, "output_logits", "is not a parameter here"),
        ({"max_tokens": 41}, 400, "max_tokens", "max_tokens=41 exceeds the 40 (max_output_tokens)"),
        ({"min_new_tokens": 41}, 400, "min_new_tokens", "max_output_tokens"),
        ({"max_tokens": -1}, 400, "max_tokens", "max_tokens=-1 is not allowed: it must be an integer of at least 1"),
        ({"max_new_tokens": 1e-9}, 400, "max_new_tokens", "it must be an integer of at least 1"),
        ({"n": 5, "do_sample": True}, 400, "n", "n=5 exceeds the 4 (max_beams)"),
        ({"num_beams": 5}, 400, "num_beams", "exceeds the 4 (max_beams)"),
        ({"num_draft_tokens": 9}, 400, "num_draft_tokens", "exceeds the 8 (max_draft_tokens)"),
        ({"top_beta": 26}, 400, "top_beta", "exceeds the 25 (max_top_beta)"),
        ({"top_k": 10**400}, 400, "top_k", "exceeds"),
        ({"temperature": 1e-9}, 400, "temperature", "use 0, or 0.01 to 100"),
        ({"length_penalty": -101, "num_beams": 2}, 400, "length_penalty", "use 0, or 0.01 to 100 above or below it"),
        ({"repetition_penalty": 0.001}, 400, "repetition_penalty", "use 0.01 to 100"),
        ({"top_p": 50}, 400, "top_p", "exceeds the 1 (the largest top_p)"),
        ({"seed": 2**63}, 400, "seed", f"exceeds the {2**63 - 1} (the largest seed)"),
        ({"length_penalty": -(10**400)}, 400, "length_penalty", "it must be a finite number"),
        ({"top_p": 1e-9}, 400, "top_p", "use 0, or 0.01 to 1"),
        ({"num_beams": -1000}, 400, "num_beams", "num_beams=-1000 is not allowed: it must be an integer of at least 1"),
        ({"do_sample": 1000}, 400, "do_sample", "do_sample=1000 is not allowed: it must be True or False"),
        ({"\ud800": 1}, 400, r"\ud800", r"\ud800 is not a parameter here"),
        ({"source_prefix": "a\ud800"}, 400, "source_prefix", r"source_prefix holds '\ud800' at character 1"),
        ({"target_prefix": "a\ud800"}, 400, "target_prefix", r"target_prefix holds '\ud800' at character 1"),
        ({"n": 2, "num_return_sequences": 2}, 400, "n", "n and num_return_sequences say the same"),
        ({"n": 2}, 400, None, "num_return_sequences=2 needs sampling or beam search"),
        ({"num_beams": "two"}, 400, "num_beams", "num_beams='two' is not allowed: it must be an integer"),
        ({"num_beams": True}, 400, "num_beams", "num_beams=True is not allowed"),
        ({"num_beams": [2]}, 400, "num_beams", "num_beams is a list, not an integer of at least 1"),
        ({"num_beams": 2, "stream": True}, 400, None, "streaming does not go with num_beams=2"),
        ({"stream": "yes"}, 400, "stream", "stream is a string, not true or false"),
        ({"source": "de"}, 400, "source", "de is not supported"),
        ({"long_input": "cut"}, 400, "long_input", "use one of split, truncate, error"),
        ({"target_prefix": "a" * 401}, 400, "target_prefix", "max_input_chars"),
        ({"source_prefix": "a" * 401}, 400, "source_prefix", "401 characters, and at most 400"),
        ({"source_prefix": "a" * 21, "prompt": "b\n" * 19}, 400, "source_prefix", "420 characters in front of all"),
        ({"prompt": "a\nb", "target_prefix": "c"}, 400, None, "decoded in 2 pieces"),
    ],
)
def test_refused_completions(
    client: InProcess, fields: dict[str, Any], status: int, param: str | None, error: str
) -> None:
    body = json.dumps({"prompt": "a", **fields})
    response = client.post("/v1/completions", content=body)
    assert response.status_code == status
    told = response.json()["error"]
    assert (told["type"], told["param"]) == ("invalid_request_error", param)
    assert error in told["message"]


def test_messages_stay_short(client: InProcess) -> None:
    for fields in ({"num_beams": "x" * 5000}, {"source_prefix": "x" * 400, "prompt": "a" * 100}):
        response = client.post("/v1/completions", json={"prompt": "a", **fields})
        assert response.status_code == 400
        assert len(response.json()["error"]["message"]) < 300


def test_completions_take_json_only(client: InProcess) -> None:
    response = client.post("/v1/completions", data={"prompt": "a"})
    assert response.json()["error"]["message"].startswith("Invalid JSON format")


# ---------------------------------------------------------------- traces


def trace(client: InProcess, **fields: Any) -> list[tuple[str, Any]]:
    response = client.post("/v1/trace", json=fields)
    assert response.status_code == 200, response.text
    return events_of(response.text)


def test_a_trace_tells_every_round_and_adds_up(client: InProcess, pipeline: Pipeline) -> None:
    text = f"{LINES[0]}\n\n{LINES[6]}"
    (start_name, start), *rounds, (end_name, end) = trace(client, text=text, num_draft_tokens=4)
    assert (start_name, end_name) == ("start", "end")
    assert {name for name, _ in rounds} == {"round"}
    assert start == {
        "pieces": [LINES[0], LINES[6]],
        "separators": ["", "\n\n", ""],
        "drafter": "prompt_lookup",
        "num_draft_tokens": 4,
        "is_exact": True,
    }
    outputs = ["", ""]
    origins = []
    for _, data in rounds:
        outputs[data["piece"]] += "".join(token["text"] for token in data["tokens"])
        origins += [token["origin"] for token in data["tokens"]]
    assert "\n\n".join(outputs) == end["text"] == output(pipeline, text)
    assert end["stats"]["num_tokens"] == len(origins)
    assert end["stats"]["num_rounds"] == len(rounds)
    assert end["stats"]["num_accepted"] == origins.count("accepted") > 0
    assert [data["ms"] for _, data in rounds] == sorted(data["ms"] for _, data in rounds)
    assert end["ms"] >= rounds[-1][1]["ms"] > 0


def test_plain_and_relaxed_traces(client: InProcess, pipeline: Pipeline) -> None:
    (_, start), *rounds, (_, end) = trace(client, text=LINES[0], drafter=False, num_draft_tokens=4, top_beta=1, tau=1.0)
    assert (start["drafter"], start["num_draft_tokens"]) == (None, 0)
    assert {len(data["tokens"]) for _, data in rounds} == {1}
    assert {token["origin"] for _, data in rounds for token in data["tokens"]} == {"bonus"}
    assert end["text"] == output(pipeline, LINES[0])
    relaxed = {"top_beta": 3, "tau": 5.0, "num_draft_tokens": 4}
    (_, start), *_, (_, end) = trace(client, text=LINES[0], **relaxed)
    assert start["is_exact"] is False
    assert end["text"] == output(pipeline, LINES[0], **relaxed)


def test_a_trace_of_nothing(client: InProcess) -> None:
    (_, start), (_, end) = trace(client, text=" ")
    assert start["pieces"] == []
    assert (end["text"], end["stats"]["num_tokens"], end["tokens_per_second"]) == (" ", 0, 0.0)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "text is missing, not a string"),
        ({"text": ["a"]}, "text is a list, not a string"),
        ({"text": "a" * 401}, "max_input_chars"),
        ({"text": "a", "num_draft_tokens": 9}, "max_draft_tokens"),
        ({"text": "a", "tau": "x"}, "tau='x' is not allowed"),
        ({"text": "a", "tau": -1}, "tau=-1 is not allowed"),
        ({"text": "a", "num_draft_tokens": "some"}, "num_draft_tokens='some' is not allowed"),
        ({"text": "a", "num_beams": 2}, "num_beams is not a parameter here"),
        ({"text": "a", "drafter": "/etc"}, "drafter is a string, not true or false"),
        ({"text": "a", "tau": 2.0}, "tau=2.0 without top_beta says nothing"),
        ({"text": "a", "target": "xx"}, "xx is not supported"),
    ],
)
def test_refused_traces(client: InProcess, fields: dict[str, Any], error: str) -> None:
    response = client.post("/v1/trace", json=fields)
    assert (response.status_code, list(response.json())) == (400, ["error"])
    assert error in response.json()["error"]


# ---------------------------------------------------------------- limits of the service


def test_a_full_queue_refuses_and_a_late_output_is_given_up(pipeline: Pipeline) -> None:
    with running(pipeline, limits=Limits(max_queue=1, timeout=0.3)) as client:
        answers: list[Any] = []
        waiting = threading.Thread(target=lambda: answers.append(client.post("/translate", json={"q": "a", **PAIR})))
        with pipeline.turn(1):  # the model is busy elsewhere
            waiting.start()
            while not client.service.engine.num_waiting:
                time.sleep(0.01)
            full = client.post("/v1/completions", json={"prompt": "b"})
            time.sleep(0.4)
        waiting.join()
        assert full.status_code == 429
        assert full.headers["retry-after"] == "1"
        assert full.json()["error"]["code"] == "rate_limit_exceeded"
        assert "max_queue" in full.json()["error"]["message"]
        assert answers[0].status_code == 503
        assert "0.3 s (timeout)" in answers[0].json()["error"]
        assert client.post("/translate", json={"q": LINES[0], **PAIR}).status_code in (200, 503)
        figures = client.get("/metrics").text
        assert 'spec2seq_jobs_total{outcome="late"} ' in figures


def test_a_service_that_shuts_down_finishes_what_it_has_and_takes_no_more(pipeline: Pipeline) -> None:
    with running(pipeline) as client:
        answers: list[Any] = []
        running_one = threading.Thread(
            target=lambda: answers.append(client.post("/translate", json={"q": LINES[0], **PAIR}))
        )
        assert client.get("/ready").json() == {"status": "ok"}
        with pipeline.turn(1):
            running_one.start()
            while not client.service.engine.num_waiting:
                time.sleep(0.01)
            client.service.engine.refuse_new()
            refused = client.post("/translate", json={"q": "b", **PAIR})
            assert client.get("/ready").status_code == 503
            assert client.get("/health").json() == {"status": "shutting down"}
        running_one.join()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert answers[0].json() == {"translatedText": output(pipeline, LINES[0])}


def test_a_broken_thread_is_told_by_health(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unforeseen(BaseException):
        """Nothing that the engine expects."""

    def fail(*_: object) -> None:
        raise Unforeseen

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with running(pipeline) as client:
        monkeypatch.setattr(client.service.engine._scheduler, "step", fail)
        response = client.post("/translate", json={"q": LINES[0], **PAIR})
        assert response.status_code == 500
        assert "must be started again" in response.json()["error"]
        client.service.engine._thread.join(10)
        assert (client.get("/health").status_code, client.get("/health").json()) == (503, {"status": "broken"})
        assert client.post("/translate", json={"q": "a", **PAIR}).status_code == 503


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_nothing_of_the_inside_comes_out_or_into_the_log(
    pipeline: Pipeline, how: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="spec2seq")
    text = f"Top secret {POISON}"
    with running(poisoned(pipeline, POISON, how)) as client:
        whole = client.post("/translate", json={"q": text, **PAIR})
        stream = client.post("/v1/completions", json={"prompt": text, "stream": True})
        watched = client.post("/v1/trace", json={"text": text})
        assert client.post("/translate", json={"q": LINES[0], **PAIR}).status_code == 200
    assert whole.status_code == 500
    assert list(whole.json()) == ["error"]
    (_, failure), done = events_of(stream.text)
    assert failure["error"]["type"] == "server_error"
    assert done == ("", "[DONE]")
    assert [name for name, _ in events_of(watched.text)] == ["start", "error"]
    for answer in (whole.text, stream.text, watched.text.split("event: error")[1]):
        assert "secret" not in answer
        assert "Traceback" not in answer
        assert ".py" not in answer
    assert "secret" not in caplog.text
    assert "POST /translate 500" in caplog.text
    assert ("RuntimeError" in caplog.text) is (how == "raises")


def test_an_unforeseen_error_is_a_500_without_details(
    client: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise KeyError("secret")

    monkeypatch.setattr(client.service.languages, "listing", fail)
    response = client.get("/languages")
    assert response.status_code == 500
    assert response.json() == {"error": "internal error; the log of the service says where"}
    monkeypatch.setattr("spec2seq.serving.completions_api.read_completion", lambda *_: fail())
    shaped = client.post("/v1/completions", json={"prompt": "a"})
    assert (shaped.status_code, shaped.json()["error"]["type"]) == (500, "server_error")
    assert shaped.json()["error"]["message"] == response.json()["error"]
    assert "KeyError at " in caplog.text
    assert "secret" not in caplog.text


def test_texts_are_logged_when_asked_for(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="spec2seq")
    for is_asked in (False, True):
        with running(pipeline, ServiceSettings("m", has_texts_in_log=is_asked)) as client:
            client.post("/translate", json={"q": "a private\nword", **PAIR})
        assert (r'["a private\nword"]' in caplog.text) is is_asked


def test_other_origins_are_kept_out_unless_they_are_named(client: InProcess, pipeline: Pipeline) -> None:
    origin = {"origin": "https://page.example"}
    assert "access-control-allow-origin" not in client.get("/languages", headers=origin).headers
    with running(pipeline, ServiceSettings("m", allowed_origins=("https://page.example",))) as open_client:
        assert open_client.get("/languages", headers=origin).headers["access-control-allow-origin"] == origin["origin"]
        other = open_client.get("/languages", headers={"origin": "https://else.example"}).headers
        assert "access-control-allow-origin" not in other
        asking = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
        assert open_client.send("OPTIONS", "/translate", headers=asking).status_code == 200


def test_unknown_routes_and_methods(client: InProcess) -> None:
    assert (client.get("/nothing/here").status_code, client.get("/nothing/here").json()) == (
        404,
        {"error": "Not Found"},
    )
    wrong = client.get("/translate")
    assert (wrong.status_code, wrong.headers["allow"], list(wrong.json())) == (405, "POST", ["error"])
    assert client.get("/v1/completions/x").json()["error"] == {
        "message": "Not Found",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    assert client.get("/../../etc/passwd").status_code == 404


def test_figures(pipeline: Pipeline) -> None:
    # with a fixed length of drafts the rounds do not depend on the clock
    with running(pipeline, options=GenerationOptions(num_draft_tokens=4)) as client:
        client.post("/translate", json={"q": [LINES[0], f"{LINES[1]}\n{LINES[2]}", ""], **PAIR})
        client.post("/translate", json={"q": 1, **PAIR})
        client.send("BREW", "/some/path/of/a/user")
        response = client.get("/metrics")
        results = pipeline.generate([LINES[0], f"{LINES[1]}\n{LINES[2]}"], num_draft_tokens=4)
    assert response.headers["content-type"].startswith("text/plain")
    figures = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    stats = [result.stats for result in results]
    assert float(figures["spec2seq_tokens_total"]) == sum(one.num_tokens for one in stats)
    assert float(figures["spec2seq_rounds_total"]) == sum(one.num_rounds for one in stats)
    assert float(figures["spec2seq_drafted_tokens_total"]) == sum(one.num_drafted for one in stats)
    accepted = sum(one.accepted_per_position[0] for one in stats if one.accepted_per_position)
    assert float(figures['spec2seq_accepted_tokens_total{position="1"}']) == accepted
    assert float(figures["spec2seq_tokens_per_round_count"]) == 2
    assert float(figures['spec2seq_http_requests_total{method="POST",route="/translate",status="200"}']) == 1
    assert float(figures['spec2seq_http_requests_total{method="POST",route="/translate",status="400"}']) == 1
    assert float(figures['spec2seq_http_requests_total{method="(other)",route="(other)",status="404"}']) == 1
    assert float(figures["spec2seq_waiting"]) == float(figures["spec2seq_running"]) == 0
    assert float(figures['spec2seq_decoding_seconds_total{stage="verify"}']) > 0
    assert "/some/path" not in response.text


def test_a_client_that_goes_away_frees_its_rows(pipeline: Pipeline) -> None:
    with running(pipeline, options=GenerationOptions(max_new_tokens=100, min_new_tokens=100)) as client:

        async def leave_early(path: str, body: dict[str, Any]) -> None:
            """Send a request and go away as soon as it is being worked on."""
            messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

            async def receive() -> dict[str, Any]:
                if messages:
                    return messages.pop()
                while not client.service.engine.num_running:
                    await asyncio.sleep(0.001)
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                pass

            scope = {
                "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
                "headers": [(b"content-type", b"application/json")], "asgi": {"version": "3.0", "spec_version": "2.3"},
                "scheme": "http", "http_version": "1.1", "server": None, "client": None, "root_path": "",
            }  # fmt: skip
            await client.app(scope, receive, send)

        bodies = [
            ("/translate", {"q": [LINES[0]] * 64, **PAIR}),
            ("/v1/completions", {"prompt": [LINES[0]] * 64, "stream": True}),
            ("/v1/trace", {"text": "\n".join(LINES * 20)}),
        ]
        for path, body in bodies:
            asyncio.run_coroutine_threadsafe(leave_early(path, body), client.loop).result(30)
            start = time.monotonic()
            while client.service.engine.num_running:
                assert time.monotonic() - start < 10
                time.sleep(0.01)
        figures = client.get("/metrics").text
        assert 'spec2seq_jobs_total{outcome="cancelled"} 3.0' in figures
        assert client.post("/translate", json={"q": "a", **PAIR}).status_code == 200


def test_slow_bodies_are_given_up(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec2seq.serving.app.BODY_SECONDS", 0.05)

    async def trickle() -> Any:
        yield b'{"q": "a"'
        await asyncio.sleep(5)
        yield b"}"

    with running(pipeline) as client:
        response = client.post("/translate", content=trickle(), headers={"content-type": "application/json"})
    assert response.status_code == 408
    assert "0.05 s" in response.json()["error"]


def test_bodies_that_trickle_are_given_up_too(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spec2seq.serving.app.BODY_SECONDS", 0.2)

    async def trickle() -> Any:
        yield b'{"q": "a", "source": "en", "target": "it"'
        for _ in range(100):
            await asyncio.sleep(0.05)
            yield b" "
        yield b"}"

    with running(pipeline) as client:
        response = client.post("/translate", content=trickle(), headers={"content-type": "application/json"})
    assert response.status_code == 408


def test_bodies_that_are_said_to_be_too_large_are_not_waited_for(client: InProcess) -> None:
    async def wait() -> Any:
        await asyncio.sleep(5)
        yield b"{}"

    headers = {"content-type": "application/json", "content-length": str(10**30)}
    start = time.monotonic()
    response = client.post("/translate", content=wait(), headers=headers)
    assert (response.status_code, time.monotonic() - start < 4) == (413, True)


def test_a_client_that_leaves_while_it_sends_is_no_failure(client: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/translate",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    incoming = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(incoming)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run_coroutine_threadsafe(client.app(scope, receive, send), client.loop).result(10)
    assert sent[0]["status"] == 499
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# ---------------------------------------------------------------- the service as a whole


def test_the_document_describes_every_route(client: InProcess) -> None:
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) >= {"/translate", "/languages", "/v1/completions", "/v1/trace", "/health", "/metrics"}
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(document["components"]["schemas"])
    assert {"TraceStart", "TraceRound", "TraceEnd"} <= set(document["components"]["schemas"])
    options = document["components"]["schemas"]["CompletionRequest"]["properties"]
    assert options["num_beams"]["maximum"] == 4
    drafted = [{"type": "integer", "maximum": 8, "minimum": 0}, {"const": "auto"}]
    assert options["num_draft_tokens"]["anyOf"] == drafted
    assert options["early_stopping"]["anyOf"] == [{"type": "boolean"}, {"const": "never"}]
    assert "bad_words_ids" not in options
    kinds = document["paths"]["/translate"]["post"]["requestBody"]["content"]
    assert set(kinds) == {"application/json", "application/x-www-form-urlencoded", "multipart/form-data"}


def test_defaults_of_the_service_give_way_to_the_request(pipeline: Pipeline) -> None:
    with running(pipeline, options=GenerationOptions(top_beta=3, tau=2.0)) as client:
        (_, relaxed), *_ = trace(client, text=LINES[0], tau=1.0)
        (_, exact), *_ = trace(client, text=LINES[0], top_beta=1)
        (_, plain), *_ = trace(client, text=LINES[0], drafter=False)
    assert (relaxed["is_exact"], exact["is_exact"], plain["is_exact"]) == (False, True, True)
    with running(pipeline, options=GenerationOptions(max_new_tokens=5, num_beams=3)) as client:
        plain = client.post("/translate", json={"q": LINES[0], **PAIR}).json()["translatedText"]
        said = client.post("/v1/completions", json={"prompt": LINES[0], "num_beams": 1}).json()["choices"][0]["text"]
    assert plain == output(pipeline, LINES[0], max_new_tokens=5, num_beams=3)
    assert said == output(pipeline, LINES[0], max_new_tokens=5)


def test_a_model_that_names_no_languages_is_told_them(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.tokenizer._tokenizer, "source_lang", None)
    with running(pipeline) as client:
        assert client.get("/languages").json() == []
        assert client.get("/frontend/settings").json()["language"] is None
        refused = client.post("/translate", json={"q": "a", **PAIR})
        assert (refused.status_code, "--source-lang" in refused.json()["error"]) == (400, True)
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        assert client.post("/v1/completions", json={"prompt": "a", "target": "it"}).status_code == 400
    with running(pipeline, ServiceSettings("m", source_lang="de", target_lang="fr")) as client:
        assert client.get("/languages").json() == [{"code": "de", "name": "German", "targets": ["fr"]}]
        assert client.post("/translate", json={"q": "a", "source": "de", "target": "fr"}).status_code == 200
    with pytest.raises(OptionError, match="name both languages"):
        create_service(pipeline, ServiceSettings("m", source_lang="de"), Limits(), GenerationOptions())


def test_many_languages(tmp_path: Path) -> None:
    make_text_model("nllb", tmp_path / "nllb", generation={"max_new_tokens": 12})
    many = Pipeline.from_pretrained(tmp_path / "nllb")
    with running(many) as client:
        for target, code in (("it", "ita_Latn"), ("de", "deu_Latn")):
            expected = output(many, LINES[0], source_lang="eng_Latn", target_lang=code)
            body = {"q": LINES[0], "source": "en", "target": target}
            assert client.post("/translate", json=body).json() == {"translatedText": expected}
            completion = {"prompt": LINES[0], "source": "eng_Latn", "target": code}
            assert client.post("/v1/completions", json=completion).json()["choices"][0]["text"] == expected
            (_, start), (_, first), *_ = trace(client, text=LINES[0], source="en", target=target)
            assert start["pieces"] == [LINES[0]]
            assert first["tokens"][0]["origin"] == "forced"
            assert first["round"] == 0
        assert client.post("/translate", json={"q": "a", "source": "auto", "target": "it"}).status_code == 400
        assert client.post("/v1/trace", json={"text": "a", "source": "en"}).status_code == 400


def test_limits_must_be_above_zero() -> None:
    with pytest.raises(OptionError, match="--max-queue 0 is not allowed"):
        Limits(max_queue=0)


def test_the_page_may_load_nothing_from_elsewhere(client: InProcess, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<title>here</title>", encoding="utf-8")
    client.app.mount("/copy", Page(directory=tmp_path, html=True))
    client.app.router.routes.insert(0, client.app.router.routes.pop())
    response = client.get("/copy/")
    assert response.text == "<title>here</title>"
    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
