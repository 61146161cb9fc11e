"""The server under load on this machine's loopback: latency, tokens per second, and whether every answer is right.

engine  the same requests given directly to the engine, in one batch of as many rows as the server has, in the same run
alone   each request decoded alone: the server's answer must be identical
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from tacg.engine.loop import Engine
from tacg.engine.request import Request, resolve
from tacg.errors import TacgError
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table
from tacg.tasks import get_task, task_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tacg.llm import LLM
    from tacg.records.rows import ResultRow

ROWS = 32  # of the server, and of the engine it is compared with
LENGTHS = (16, 32, 64, 96)  # positions to generate, in turn


@dataclass(frozen=True)
class ClientAnswer:
    """A client's result: a status, a text, the number of tokens, and the seconds it took."""

    status: int
    text: str
    tokens: int
    seconds: float


def measure(llm: LLM, model: str, clients: Sequence[int], requests: int, policy: str = "tacg") -> Iterator[ResultRow]:
    """One row per number of clients: each client sends its next request as soon as it has an answer."""
    asked = workload(llm, requests)
    made = [_request(prompt, policy, length) for prompt, length in asked]
    expected = [llm.text(Engine(llm.model, 1).generate([each])[0].tokens) for each in made]
    Engine(llm.model, ROWS).generate(made[:ROWS])  # warm-up
    began = time.perf_counter()
    outputs = Engine(llm.model, ROWS).generate(made)
    offline = sum(len(output.tokens) for output in outputs) / (time.perf_counter() - began)
    bodies = [
        {"model": llm.model.spec.name, "prompt": list(prompt), "max_tokens": length, "policy": policy}
        for prompt, length in asked
    ]
    for count in clients:
        with served(model) as url:
            asyncio.run(_load(url, bodies[:ROWS], ROWS))  # warm-up
            began = time.perf_counter()
            answers = asyncio.run(_load(url, bodies, count))
            seconds = time.perf_counter() - began
        right = sum(answer.text == text for answer, text in zip(answers, expected, strict=True))
        tokens = sum(answer.tokens for answer in answers)
        p50, p95 = np.quantile([answer.seconds for answer in answers], [0.5, 0.95])
        yield {
            "bench": "serve", "model": model, "policy": policy, "clients": count, "requests": requests, "rows": ROWS,
            "answered": sum(answer.status == 200 for answer in answers), "right": right, "tokens": tokens,
            "latency_p50": float(p50), "latency_p95": float(p95), "tokens_per_second": tokens / seconds,
            "requests_per_second": requests / seconds, "baseline": f"engine, {ROWS} rows",
            "share_of_engine": tokens / seconds / offline, **surroundings(),
        }  # fmt: skip


def workload(llm: LLM, count: int) -> list[tuple[tuple[int, ...], int]]:
    """Prompts of all pocket tasks in turn, as ids, each with a length to generate."""
    tasks = task_names()
    each = -(-count // len(tasks))
    found = [[tuple(llm.encode(problem.prompt)) for problem in get_task(name).problems("dev", each)] for name in tasks]
    prompts = itertools.chain.from_iterable(zip(*found, strict=True))
    return list(zip(itertools.islice(prompts, count), itertools.cycle(LENGTHS), strict=False))


def _request(prompt: tuple[int, ...], policy: str, length: int) -> Request:
    return Request(prompt, *resolve(policy, {"gen_length": length}))


@contextlib.contextmanager
def served(model: str) -> Iterator[str]:
    """Run `tacg serve` in its own process; yields its address."""
    process, url = start(model)
    with process:
        try:
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def start(model: str, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    """The server process, on this machine's loopback, and its address."""
    words = [sys.executable, "-m", "tacg", "serve", "--model", model, "--max-rows", str(ROWS), "--json"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise TacgError(f"`tacg serve --model {model}` did not start; try it by itself to see why.")
    return process, json.loads(line)["address"]


async def _load(url: str, bodies: Sequence[dict[str, Any]], clients: int) -> list[ClientAnswer]:
    """The answers to all requests, in order."""
    where = urlsplit(url)
    answers: dict[int, ClientAnswer] = {}
    left = iter(enumerate(bodies))

    async def client() -> None:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        for number, body in left:  # shared: an idle client takes the next request
            answers[number] = await _ask(reader, writer, where.netloc, body)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return [answers[number] for number in range(len(bodies))]


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, body: dict[str, Any]
) -> ClientAnswer:
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    began = time.perf_counter()
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    top = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(line for line in top.split("\r\n") if line.startswith("content-length:"))
    document = json.loads(await reader.readexactly(int(length.split(":")[1])))
    seconds = time.perf_counter() - began
    if "error" in document:
        return ClientAnswer(int(top.split()[1]), "", 0, seconds)
    return ClientAnswer(200, document["choices"][0]["text"], document["usage"]["completion_tokens"], seconds)


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """Load, latency and throughput."""
    columns = ("clients", "requests", "answered", "right", "p50 s", "p95 s", "tokens/s", "of the engine")
    lines = [
        (
            str(row["clients"]), str(row["requests"]), str(row["answered"]), str(row["right"]),
            f"{row['latency_p50']:.3f}", f"{row['latency_p95']:.3f}", f"{row['tokens_per_second']:.0f}",
            f"{100 * row['share_of_engine']:.0f} %",
        )
        for row in rows
    ]  # fmt: skip
    return [Table("The server under load", columns, tuple(lines))]
