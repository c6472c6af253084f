#!/usr/bin/env python3
"""A running service under load: is every answer right, how long does it take, what does company cost or save.

    spec2seq serve --model models/debian-en-it --threads 1 --timeout 600 &
    python benchmarks/serving_load.py --model models/debian-en-it --pid $! --out benchmarks/results/serving.jsonl

Parts: `mixed` sends blank, short, 2000-character, invalid and abandoned requests from many clients and compares every
answer with what the pipeline says to that text alone; `memory` sends short ones and watches the memory of the process;
`speed` compares one client at a time with many, and one list with as many requests. Ratios come from interleaved
repeats. Texts whose closest choice of a token was decided by less than a thousandth are left out: rounding decides
there, in a batch as much as alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import platform
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

MIN_MARGIN = 1e-3
PAIR = {"source": "en", "target": "it"}
LONG_CHARACTERS = 2000
# shares of the kinds of requests, in percent
MIX = {"blank": 10, "short": 55, "long": 8, "abandoned": 15, "invalid": 12}
INVALID: list[dict[str, Any]] = [
    {"q": {"a": 1}, **PAIR},
    {"q": None, **PAIR},
    {"q": "a", "source": "en"},
    {"q": "a", "source": "en", "target": "xx"},
    {"q": "a" * 30_000, **PAIR},
    {"q": [["a"]], **PAIR},
]


@dataclass
class Texts:
    """What to send, with what must come back."""

    short: list[str]
    long: list[str]
    outputs: dict[str, str]


@dataclass
class Tally:
    """What came back: answers by kind and status, those that were wrong, and the seconds that right ones took."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def book(self, kind: str, status: int, seconds: float) -> None:
        self.answers[kind, status] += 1
        self.seconds.setdefault(kind, []).append(seconds)

    @property
    def num_server_errors(self) -> int:
        return sum(count for (_, status), count in self.answers.items() if status >= 500)


def make_texts(model: str, tsv: Path, num_short: int, num_long: int) -> Texts:
    """Lines and long texts made of lines, with the pipeline's own outputs, one text at a time."""
    from spec2seq import Pipeline

    with gzip.open(tsv, "rt", encoding="utf-8") as stream:
        lines = [line.split("\t")[0] for line in stream]
    pipeline = Pipeline.from_pretrained(model, num_threads=1)
    texts = Texts([], [], {})

    def add(kind: list[str], text: str) -> None:
        (result,) = pipeline.generate(text, output_margin=True)
        if result.min_margin is None or result.min_margin > MIN_MARGIN:
            kind.append(text)
            texts.outputs[text] = result.text

    candidates = iter([line for line in lines if len(line) <= 90])
    while len(texts.short) < num_short:
        add(texts.short, next(candidates))
    separators = "\n", " "
    place = 0
    while len(texts.long) < num_long:
        count = next(n for n in range(1, len(lines)) if sum(map(len, lines[place : place + n])) + n > LONG_CHARACTERS)
        separator = separators[len(texts.long) % 2]
        add(texts.long, separator.join(lines[place : place + count])[:LONG_CHARACTERS].strip())
        place += count
    return texts


# ---------------------------------------------------------------- mixed requests


async def mixed(url: str, texts: Texts, num_requests: int, num_clients: int, seed: int = 0) -> Tally:
    """Send requests of all kinds from so many clients, each of them one after another."""
    dice = random.Random(seed)
    kinds = dice.choices(list(MIX), list(MIX.values()), k=num_requests)
    todo = list(enumerate(kinds))
    tally = Tally()

    async def client(number: int) -> None:
        own_dice = random.Random(f"{seed} {number}")
        async with httpx.AsyncClient(base_url=url, timeout=900) as http:
            while todo:
                index, kind = todo.pop()
                start = time.perf_counter()
                status = await _send(http, kind, index, own_dice, texts, tally)
                tally.book(kind, status, time.perf_counter() - start)

    await asyncio.gather(*(client(i) for i in range(num_clients)))
    return tally


async def _send(http: httpx.AsyncClient, kind: str, index: int, dice: random.Random, texts: Texts, tally: Tally) -> int:
    """One request. What comes back wrong goes into the tally. Returns the status."""
    if kind == "invalid":
        response = await http.post("/translate", json=dice.choice(INVALID))
        if response.status_code != 400:
            tally.wrong.append((kind, response.text))
        return response.status_code
    if kind == "abandoned":
        return await _abandon(http, dice.choice(texts.short + texts.long), dice.random() < 0.5)
    text = {"blank": "  \n", "short": dice.choice(texts.short), "long": dice.choice(texts.long)}[kind]
    expected = texts.outputs.get(text, text)
    status, found = await (_whole, _form, _listed, _streamed)[index % 4](http, text)
    if status == 200 and found != expected:
        tally.wrong.append((text, found))
    return status


async def _whole(http: httpx.AsyncClient, text: str) -> tuple[int, str]:
    response = await http.post("/translate", json={"q": text, **PAIR})
    return response.status_code, response.json().get("translatedText", response.text)


async def _form(http: httpx.AsyncClient, text: str) -> tuple[int, str]:
    response = await http.post("/translate", data={"q": text, **PAIR})
    return response.status_code, response.json().get("translatedText", response.text)


async def _listed(http: httpx.AsyncClient, text: str) -> tuple[int, str]:
    response = await http.post("/translate", json={"q": ["", text], **PAIR})
    found = response.json().get("translatedText", ["", response.text])
    return response.status_code, found[1]


async def _streamed(http: httpx.AsyncClient, text: str) -> tuple[int, str]:
    found = ""
    async with http.stream("POST", "/v1/completions", json={"prompt": text, "stream": True}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                data = json.loads(line[len("data: ") :])
                found += data["choices"][0]["text"] if "choices" in data else f"[{data}]"
    return response.status_code, found


async def _abandon(http: httpx.AsyncClient, text: str, is_stream: bool) -> int:
    """Go away in the middle: after the first part of a stream, or while waiting for the whole."""
    if is_stream:
        async with http.stream("POST", "/v1/completions", json={"prompt": text, "stream": True}) as response:
            async for _ in response.aiter_lines():
                break
        return response.status_code
    try:
        response = await http.post("/translate", json={"q": text, **PAIR}, timeout=httpx.Timeout(900, read=0.05))
    except httpx.ReadTimeout:
        return 0
    return response.status_code


# ---------------------------------------------------------------- memory and speed


async def short_requests(url: str, texts: list[str], num_requests: int, num_clients: int) -> float:
    """Seconds for so many requests of one short text each; the connections are there before."""
    todo = [texts[i % len(texts)] for i in range(num_requests)]

    async def client(http: httpx.AsyncClient) -> None:
        while todo:
            response = await http.post("/translate", json={"q": todo.pop(), **PAIR})
            response.raise_for_status()

    async with httpx.AsyncClient(base_url=url, timeout=900) as http:
        await asyncio.gather(*(http.get("/languages") for _ in range(num_clients)))
        start = time.perf_counter()
        await asyncio.gather(*(client(http) for _ in range(num_clients)))
        return time.perf_counter() - start


async def one_list(url: str, texts: list[str]) -> float:
    """Seconds for one request with all of the texts."""
    async with httpx.AsyncClient(base_url=url, timeout=900) as http:
        start = time.perf_counter()
        response = await http.post("/translate", json={"q": texts, **PAIR})
        response.raise_for_status()
        return time.perf_counter() - start


def memory_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_memory(url: str, pid: int, texts: list[str], num_requests: int) -> list[float]:
    """MiB after every tenth of the requests."""
    found = []
    for _ in range(10):
        asyncio.run(short_requests(url, texts, num_requests // 10, 32))
        found.append(memory_bytes(pid) / 2**20)
    return found


def measure_speed(url: str, texts: list[str], repeats: int) -> dict[str, Any]:
    """Seconds of every repeat, all ways by turns, for the same 16 texts in requests of one, and in a list."""
    texts = texts[:16]
    seconds: dict[str, list[float]] = {"one_at_a_time": [], "sixteen_clients": [], "list_of_16": []}
    for _ in range(repeats):
        seconds["one_at_a_time"].append(asyncio.run(short_requests(url, texts, 16, 1)))
        seconds["sixteen_clients"].append(asyncio.run(short_requests(url, texts, 16, 16)))
        seconds["list_of_16"].append(asyncio.run(one_list(url, texts)))
    alone = seconds["one_at_a_time"]
    return {
        "seconds": seconds,
        "speed_up_sixteen_clients": statistics.median(
            a / b for a, b in zip(alone, seconds["sixteen_clients"], strict=True)
        ),
        "share_list_of_16": statistics.median(b / a for a, b in zip(alone, seconds["list_of_16"], strict=True)),
    }


def quantiles(seconds: list[float]) -> dict[str, float]:
    """The median and the 95th percentile."""
    ordered = sorted(seconds)
    return {"p50": statistics.median(ordered), "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]}


def machine() -> dict[str, Any]:
    """Where it was measured."""
    import torch

    import spec2seq

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.processor())
    load = os.getloadavg()[0]
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": load,
        "torch": torch.__version__,
        "spec2seq": spec2seq.__version__,
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the running service")
    parser.add_argument("--pid", type=int, help="its process, for the part memory")
    parser.add_argument("--model", default="models/debian-en-it", help="the model that it serves")
    parser.add_argument("--tsv", type=Path, default=Path("recipes/debian-en-it/test.tsv.gz"), help="lines to send")
    parser.add_argument(
        "--parts", nargs="+", default=["mixed", "memory", "speed"], choices=["mixed", "memory", "speed"]
    )
    parser.add_argument("--requests", type=int, default=1000, help="of the part mixed (default: 1000)")
    parser.add_argument("--clients", type=int, default=32, help="of the part mixed (default: 32)")
    parser.add_argument("--short-requests", type=int, default=5000, help="of the part memory (default: 5000)")
    parser.add_argument("--repeats", type=int, default=7, help="of the part speed (default: 7)")
    parser.add_argument("--out", type=Path, help="JSONL file to append to")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    texts = make_texts(arguments.model, arguments.tsv, 48, 8)
    record: dict[str, Any] = {"model": arguments.model, "machine": machine()}
    if "mixed" in arguments.parts:
        tally = asyncio.run(mixed(arguments.url, texts, arguments.requests, arguments.clients))
        record["mixed"] = {
            "answers": {f"{kind} {status}": count for (kind, status), count in sorted(tally.answers.items())},
            "wrong": len(tally.wrong),
            "server_errors": tally.num_server_errors,
            "seconds": {kind: quantiles(seconds) for kind, seconds in tally.seconds.items()},
        }
    if "memory" in arguments.parts:
        if arguments.pid is None:
            raise SystemExit("--parts memory needs --pid, the process of the service")
        record["memory_mib"] = measure_memory(arguments.url, arguments.pid, texts.short, arguments.short_requests)
    if "speed" in arguments.parts:
        record["speed"] = measure_speed(arguments.url, texts.short, arguments.repeats)
    print(json.dumps(record, indent=1))
    if arguments.out:
        with arguments.out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
