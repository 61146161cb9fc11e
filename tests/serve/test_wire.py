"""No request freezes the server: whatever is sent, however slowly, other requests are answered meanwhile."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

import tacg
from tacg.serve import app, replay, rows
from tacg.serve.limits import Limits
from tacg.serve.wire import READ
from tacg.trace import read_trace, record
from tacg.trace.player import player_page
from tests.serve.conftest import Running, running, wait_until

JSON = {"content-type": "application/json"}
HEAD = "Host: localhost\r\nContent-Type: application/json\r\n"
POSTS = ["/v1/chat/completions", "/v1/completions", "/v1/decode", "/v1/replay"]


@contextlib.contextmanager
def sent(server: Running, *parts: bytes) -> Iterator[socket.socket]:
    """A connection on which these bytes were sent, as far as they were taken."""
    with socket.create_connection(server.socket.getsockname(), timeout=10) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        yield connection


def rest(connection: socket.socket) -> bytes:
    """Everything received until the server closes; a connection that stays open is an error."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(1 << 16):
            found += more
    return found


def post(path: str, *lines: str) -> bytes:
    return (f"POST {path} HTTP/1.1\r\n{HEAD}" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


@pytest.mark.parametrize("path", POSTS)
def test_bodies_are_understood_beside_the_event_loop(
    served: Running, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    reading, answered = threading.Event(), threading.Event()

    def slowly(body: bytes) -> Any:
        reading.set()
        assert answered.wait(10)
        return {}

    for module in (app, replay):
        monkeypatch.setattr(module, "parse_json", slowly)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(http.post, path, content=b"{}", headers=JSON)
        assert reading.wait(10)
        with served.http(timeout=5) as other:
            assert other.get("/health").status_code == 200
        answered.set()
        assert job.result().status_code == 400


@pytest.mark.parametrize("begun", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: local"])
def test_who_never_asks_keeps_nobody_out(llm: tacg.LLM, begun: bytes) -> None:
    with running(llm, Limits(connections=20)) as server, contextlib.ExitStack() as crowd:
        for _ in range(30):
            crowd.enter_context(sent(server, begun))
        with server.http() as http:
            assert http.get("/health").status_code == 200
            body = {"model": "tiny", "prompt": "a"}
            assert http.post("/v1/completions", json=body).status_code == 200
        assert len(server.server.server_state.connections) < 20


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_heads_have_a_deadline(llm: tacg.LLM, before: bytes) -> None:
    """The same limit holds for the second request on a connection."""
    with running(llm, Limits(head=0.3)) as server, sent(server, before, b"GET /health HT") as slow:
        assert b"200 OK" in rest(slow) if before else not rest(slow)
        wait_until(lambda: not server.server.server_state.connections)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_two_lengths_are_refused(served: Running, version: str) -> None:
    """Otherwise a proxy that believes the other length takes the rest for the next client's request."""
    lengths = "Transfer-Encoding: chunked\r\n" + ("Content-Length: 5\r\n" if version == "1.1" else "")
    head = f"POST /v1/completions HTTP/{version}\r\n{HEAD}{lengths}\r\n".encode()
    with sent(served, head, b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"ambiguous_length" in answer
    assert answer.count(b"HTTP/1.1") == 1 or b'"status": "ok"' not in answer


@pytest.mark.parametrize("path", [*POSTS, "/health", "/", "/metrics", "/v1/models", "/nothing"])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_no_route_takes_more_than_the_limit(llm: tacg.LLM, small: Running, method: str, path: str) -> None:
    head = f"{method} {path} HTTP/1.1\r\n{HEAD}"
    with sent(small, f"{head}Content-Length: 1000001\r\n\r\n".encode()) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    with sent(small, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode(), *[chunk] * 400) as connection:
        rest(connection)  # ends: the server closes it, rather than read for ever


@pytest.fixture(scope="module")
def small(llm: tacg.LLM) -> Iterator[Running]:
    with running(llm, Limits(body_bytes=1000, replay_bytes=1000)) as made:
        yield made


def test_all_bodies_together_are_bounded_and_small_ones_get_through(llm: tacg.LLM) -> None:
    limits = Limits(flight_bytes=20_000, connections=20, body_bytes=9000)
    begun = post("/v1/decode", "Content-Length: 9000") + b" " * 8999
    with running(llm, limits) as server, server.http() as http, sent(server, begun), sent(server, begun):
        wait_until(lambda: server.service.intake._held == 2 * 8999)
        large = http.post("/v1/decode", content=b" " * 4000, headers=JSON)
        assert (large.status_code, large.json()["error"]["code"]) == (503, "too_many_bytes")
        assert int(large.headers["retry-after"]) >= 1
        many = json.dumps({"model": "tiny", "prompt": "a"}).encode()
        assert http.post("/v1/completions", content=many, headers=JSON).status_code == 200
    assert server.service.intake._held == 0


@pytest.mark.parametrize("chunk", [b"1\r\n \r\n", b"1;" + b"x" * 9000 + b"\r\n \r\n"])
def test_a_body_that_is_mostly_framing_is_refused(served: Running, http: httpx2.Client, chunk: bytes) -> None:
    many = chunk * (400_000 // len(chunk))
    with sent(served, post("/v1/completions", "Transfer-Encoding: chunked"), many) as connection:
        assert b"200 OK" not in (answer := rest(connection))
        assert not answer or answer.startswith(b"HTTP/1.1 400")
    assert http.get("/health").status_code == 200
    one = b"".join(b"%x\r\n%s\r\n" % (len(word), word) for word in (b'{"prompt": "a",', b' "gen_length": 1}', b""))
    with sent(served, post("/v1/decode", "Transfer-Encoding: chunked", "Connection: close"), one) as connection:
        assert rest(connection).startswith(b"HTTP/1.1 200"), "a few small ones are as good as any"
    for each in served.server.server_state.connections:
        assert len(each.get_buffer(-1)) == READ  # type: ignore[union-attr]


def test_noise_after_a_request_is_no_fault_of_ours(served: Running, caplog: pytest.LogCaptureFixture) -> None:
    content = json.dumps({"model": "tiny", "prompt": "a", "stream": True, "gen_length": 200}).encode()
    asked = post("/v1/completions", f"Content-Length: {len(content)}") + content
    broken = post("/v1/completions", "Transfer-Encoding: chunked") + b"5\r\n{    \r\nzz\r\n"
    with caplog.at_level(logging.INFO):
        for noise in (asked + b"\x00\xff no HTTP\r\n\r\n", broken, asked + broken):
            with sent(served, noise) as connection:
                rest(connection)
        with sent(served, post("/health", "Transfer-Encoding: chunked") + b"1\r\n \r\n") as connection:
            assert b"405" in connection.recv(1000)  # answered already
            connection.sendall(b"no chunk\r\n")
            rest(connection)
        wait_until(lambda: not served.rows)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR or each.exc_info]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_no_depth_makes_the_server_stumble(http: httpx2.Client, path: str, opening: str) -> None:
    """Nested as deeply as can be parsed, but perhaps not traversed."""
    closing = "]" if opening == "[" else "}"
    for depth in range(900, 1000, 6):
        deep = opening * depth + "1" + closing * depth
        for name in ("steps", "prompt", "messages", "suppress", "stop", "logit_bias"):
            http_status(http, path, f'{{"model": "tiny", "{name}": {deep}, "x": 1}}')
        http_status(http, path, f'{{"traces": [[{{"kind": "start", "x": {deep}}}]]}}')


def http_status(http: httpx2.Client, path: str, body: str) -> None:
    assert http.post(path, content=body.encode(), headers=JSON).status_code < 500, body[:60]


# -- replays ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace(llm: tacg.LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "one.jsonl"
    for _ in record(llm, "hello", "tacg", path, settings={"gen_length": 96, "block_length": 96, "early_stop": False}):
        pass
    return path


def test_large_replays_are_made_elsewhere(http: httpx2.Client, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    body = json.dumps({"traces": [lines, lines]})
    assert len(body) > replay.SMALL
    here: list[int] = []
    monkeypatch.setattr(replay, "page_of", lambda content: here.append(len(content)) or b"")
    answer = http.post("/v1/replay", content=body, headers=JSON)
    assert (answer.status_code, here) == (200, [])
    assert answer.text == player_page([read_trace(trace)] * 2)
    wrong = http.post("/v1/replay", json={"traces": [[{"kind": "step", "x": " " * replay.SMALL}]]})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "traces"
    assert '"start"' in wrong.json()["error"]["message"]


@pytest.mark.parametrize(("program", "status"), [("import os; os.abort()", 500), ("import time; time.sleep(60)", 504)])
def test_a_replay_that_fails_fails_alone(
    llm: tacg.LLM, monkeypatch: pytest.MonkeyPatch, program: str, status: int
) -> None:
    monkeypatch.setattr(replay.Replayer, "command", (sys.executable, "-c", program))
    with running(llm, Limits(deadline=1 if status == 504 else 60)) as server, server.http() as http:
        answer = http.post("/v1/replay", content=b" " * (replay.SMALL + 1), headers=JSON)
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == "server_error"
        assert http.get("/health").status_code == 200


# -- what takes long on the way ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(server: Running) -> Iterator[None]:
    """Slow work must not run in the event loop: none of these may be called in its thread."""
    found = [each for each in threading.enumerate() if each is server.thread]
    decode, ours = server.service.llm.tokenizer.decode, threading.get_ident

    def watched(*given: Any, **more: Any) -> str:
        assert ours() not in {each.ident for each in found}, "in the event loop"
        return decode(*given, **more)

    server.service.llm.tokenizer.decode = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        del server.service.llm.tokenizer.decode


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_found_beside_the_event_loop(served: Running, stream: bool) -> None:
    """Offsets are found by decoding repeatedly: seconds for 16 answers of 1,024 tokens."""
    body = {"model": "tiny", "prompt": "a", "logprobs": 0, "n": 4, "temperature": 1, "stream": stream}
    with answering(served), served.http() as http:
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert "text_offset" in answer.text
    assert "internal_error" not in answer.text


def test_steps_are_written_beside_the_event_loop(served: Running) -> None:
    with answering(served), served.http() as http:
        answer = http.post("/v1/decode", json={"prompt": "a"})
    assert '"kind": "end"' in answer.text


def test_long_texts_are_not_even_encoded(served: Running, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.service.llm.tokenizer, "encode", lambda text: pytest.fail("encoded"))
    for path, body in (
        ("/v1/completions", {"prompt": "word " * 100_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 50_000}] * 2}),
    ):
        answer = http.post(path, json={"model": "tiny", **body})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_encoding_lets_others_work(llm: tacg.LLM) -> None:
    """A text is encoded without holding the interpreter: a thread beside it gets on."""
    turns, done = 0, threading.Event()

    def work() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    beside = threading.Thread(target=work)
    beside.start()
    wait_until(lambda: turns)
    before = turns
    llm.encode("word and " * 30_000, False)
    gained = turns - before
    done.set()
    beside.join()
    assert gained > 3


def test_what_a_client_leaves_unread_is_bounded(llm: tacg.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BACKLOG", 5000)
    body = {"prompt": "a", "gen_length": 300, "block_length": 300, "policy": "schedule", "early_stop": False}
    with running(llm, Limits(stall=60)) as server:
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        content = json.dumps(body).encode()
        with sent(server, post("/v1/decode", f"Content-Length: {len(content)}", "Connection: close"), content) as slow:
            wait_until(lambda: server.rows == 1)
            wait_until(lambda: server.rows == 0, 30)  # long before `stall`, and without a byte read
            assert b"slow_reader" in rest(slow)
