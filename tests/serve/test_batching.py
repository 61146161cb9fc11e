"""Requests under load: no request is affected by another's answer, failure, slowness or disconnection."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import torch

import tacg
from tacg.serve.limits import Limits
from tests.serve.conftest import Running, running, wait_until

POISON = "POISON"


class Faulty:
    """The tiny model, but for rows whose prompt holds a word: their logits are NaN, or the whole call raises.

    `slow` makes every call take that many seconds longer.
    """

    def __init__(self, llm: tacg.LLM, *, raises: bool = False, slow: float = 0.0) -> None:
        self.model, self.spec, self.device = llm.model, llm.model.spec, llm.model.device
        self.poison = torch.tensor(llm.tokenizer.encode(POISON))
        self.raises, self.slow, self.calls, self.rows = raises, slow, 0, 0

    def __call__(self, tokens: Any, spans: Any, select: Any) -> Any:
        self.calls, self.rows = self.calls + 1, len(spans)
        time.sleep(self.slow)
        logits = self.model(tokens, spans, select)
        start = 0
        for span in spans:
            row = tokens[start : start + len(span)]
            if (row.unfold(0, len(self.poison), 1) == self.poison).all(dim=1).any():
                if self.raises:
                    raise RuntimeError("this model does not like poison")
                logits[(select >= start) & (select < start + len(span))] = torch.nan
            start += len(span)
        return logits


def faulty(llm: tacg.LLM, **how: Any) -> tacg.LLM:
    return tacg.LLM(Faulty(llm, **how), llm.tokenizer)  # type: ignore[arg-type]


def requests(count: int) -> list[dict[str, Any]]:
    """Requests of many kinds and lengths."""
    rng = random.Random(0)
    made = []
    for number in range(count):
        policy = rng.choice(["tacg", "confidence", "tacg+klass", "schedule"])
        settings = {"gen_length": rng.randrange(4, 40), "block_length": rng.choice([4, 8, 32]), "seed": number}
        settings |= {"temperature": rng.choice([0.0, 0.8])}
        made.append({"prompt": "x" * rng.randrange(1, 60) + str(number), "policy": policy, "settings": settings})
    return made


def ask(server: Running, request: dict[str, Any], *, stream: bool = False) -> tuple[str, Any]:
    body = {"policy": request["policy"], **request["settings"]}
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    answer = server.client.completions.create(
        model="tiny", prompt=request["prompt"], extra_body=body, stream=stream, **options
    )
    if not stream:
        return answer.choices[0].text, answer.usage.model_dump()
    chunks = list(answer)
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    return text, chunks[-1].usage.model_dump()


def test_answers_do_not_depend_on_neighbours(llm: tacg.LLM) -> None:
    many = requests(24)
    with running(llm, Limits(rows=6, queue=64)) as server, ThreadPoolExecutor(12) as pool:
        jobs = [pool.submit(ask, server, each, stream=number % 2 == 0) for number, each in enumerate(many)]
        for job, each in zip(jobs, many, strict=True):
            alone = llm.generate(each["prompt"], each["policy"], chat=False, **each["settings"])
            text, used = job.result()
            assert text == alone.text
            assert (used["steps"], used["forwards"]) == (alone.steps, alone.forwards)
            assert used["completion_tokens"] == len(alone.tokens)


def test_a_full_queue_says_when_to_come_back(llm: tacg.LLM) -> None:
    with running(faulty(llm, slow=0.02), Limits(rows=1, queue=1)) as server, ThreadPoolExecutor(2) as pool:
        long = {"prompt": "a", "policy": "schedule", "settings": {"gen_length": 60, "early_stop": False}}
        jobs = [pool.submit(ask, server, long) for _ in range(2)]
        wait_until(lambda: server.rows == 2)
        with pytest.raises(openai.RateLimitError) as caught:
            ask(server, long)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert jobs[0].result()[0] == jobs[1].result()[0]


def test_late_is_said_clearly(llm: tacg.LLM) -> None:
    with running(faulty(llm, slow=0.02), Limits(rows=1)) as server:
        late = {"prompt": "a", "policy": "schedule", "settings": {"gen_length": 100, "early_stop": False}}
        late["settings"] |= {"deadline": 0.2}
        with pytest.raises(openai.InternalServerError, match=r"within 0\.2 s") as caught:
            ask(server, late)
        assert caught.value.status_code == 504
        with pytest.raises(openai.APIError, match=r"within 0\.2 s"):
            ask(server, late, stream=True)
        wait_until(lambda: server.rows == 0)


@pytest.mark.parametrize("raises", [False, True])
def test_a_row_that_fails_fails_alone(llm: tacg.LLM, raises: bool) -> None:
    """NaN logits end a row; a model that raises breaks a whole step, and each row is then tried by itself."""
    healthy = requests(6)
    with running(faulty(llm, raises=raises)) as server, ThreadPoolExecutor(8) as pool:
        settings = {"gen_length": 16}
        bad = [{"prompt": f"{POISON} {number}", "policy": "tacg", "settings": settings} for number in range(2)]
        jobs = [pool.submit(ask, server, each, stream=number % 2 == 0) for number, each in enumerate(healthy)]
        for number, each in enumerate(bad):
            with pytest.raises(openai.APIError, match="could not be decoded") as caught:
                ask(server, each, stream=number == 1)
            assert caught.value.code == "decode_failed"
        for job, each in zip(jobs, healthy, strict=True):
            alone = llm.generate(each["prompt"], each["policy"], chat=False, **each["settings"])
            assert job.result()[0] == alone.text
        assert ask(server, healthy[0])[0], "and life goes on"
        wait_until(lambda: server.rows == 0)


def knock(server: Running, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A client that has asked, and may leave."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    connection = socket.create_connection(server.socket.getsockname(), timeout=10)
    connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_who_disconnects_costs_no_more_forwards(llm: tacg.LLM, stream: bool) -> None:
    """Two hundred clients connect, half of those that wait disconnect, then all the others."""
    slow = faulty(llm, slow=0.01)
    model: Any = slow.model
    body = {"model": "tiny", "prompt": "a", "gen_length": 500, "early_stop": False, "policy": "schedule"}
    with running(slow, Limits(rows=8, queue=200)) as server:
        crowd = [knock(server, body | {"stream": stream}) for _ in range(200)]
        wait_until(lambda: server.rows == 200)
        if stream:
            assert b"200 OK" in crowd[0].recv(1000)
        for each in crowd[100:]:
            each.close()
        wait_until(lambda: server.rows == 100)
        for each in crowd[:100]:
            each.close()
        wait_until(lambda: server.rows == 0)
        calls = model.calls
        time.sleep(0.1)
        assert model.calls <= calls + 1
        with server.http() as http:
            wait_until(lambda: 'status="499"} 200' in http.get("/metrics").text)
        assert ask(server, requests(1)[0])[0]


def test_slow_readers_hold_up_nobody(llm: tacg.LLM) -> None:
    with running(llm, Limits(rows=4, stall=0.5)) as server:
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # the kernel would take it all in
        body = {"prompt": "a", "gen_length": 200, "observe": "sequence", "early_stop": False}
        with knock(server, body, "/v1/decode"):
            wait_until(lambda: server.rows == 1)
            for each in requests(4):
                assert ask(server, each)[0] is not None
            with server.http() as http:
                wait_until(lambda: 'endpoint="/v1/decode",status="499"' in http.get("/metrics").text, 20)
                assert server.rows == 0


def started(*words: str) -> tuple[subprocess.Popen[str], str]:
    """`tacg serve` in a process of its own."""
    command = [
        sys.executable,
        "-c",
        "from tacg.cli.main import run; run()",
        "serve",
        "-m",
        "tiny",
        "--port",
        "0",
        "--json",
        *words,
    ]
    there = os.environ | {"PYTHONPATH": str(Path(tacg.__file__).parents[1])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=there)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["address"]


@pytest.mark.parametrize("grace", [30, 0])
def test_sigterm_leaves_nobody_without_an_answer(llm: tacg.LLM, grace: float) -> None:
    body = {"policy": "schedule", "gen_length": 160, "early_stop": False}
    alone = llm.generate([f"number {number}" for number in range(6)], chat=False, **body)
    process, url = started("--grace", str(grace), "--max-rows", "4")
    ended: list[str] = []

    def visit(number: int) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
            prompt = f"number {number}"
            try:
                answer = client.completions.create(model="tiny", prompt=prompt, extra_body=body)
                ended.append("whole" if answer.choices[0].text == alone[number].text else "wrong")
            except openai.APIStatusError as error:
                ended.append(str(error.code))

    visitors = [threading.Thread(target=visit, args=(number,)) for number in range(6)]
    try:
        for visitor in visitors:
            visitor.start()
        with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
            busy = re.compile(r"tacg_rows_running [1-9]")
            with httpx2.Client(base_url=url, trust_env=False) as http:
                wait_until(lambda: busy.search(http.get("/metrics").text), 20)
                process.send_signal(signal.SIGTERM)
                if grace:
                    wait_until(lambda: http.get("/health").status_code == 503)
                    with pytest.raises(openai.InternalServerError, match="shutting down") as caught:
                        client.completions.create(model="tiny", prompt="more")
                    assert caught.value.status_code == 503
        for visitor in visitors:
            visitor.join(timeout=60)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        _, errors = process.communicate()
    assert len(ended) == 6
    assert set(ended) <= {"whole", "shutting_down"}
    assert ("whole" if grace else "shutting_down") in ended
    assert "number 3" not in errors, "prompts are not logged"
    assert "Traceback" not in errors
