"""The requests of a soak test's clients, the expected answers, and a plain HTTP client that can misbehave."""

from __future__ import annotations

import asyncio
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tacg.tasks import get_task, task_names
from tacg.trace import read_trace, record
from tacg.trace.player import player_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacg.llm import LLM

POLICIES = ("tacg", "tacg+klass", "klass", "confidence", "schedule")
LENGTHS = (8, 24, 48)
EACH = 3  # requests of each kind per policy
BROKEN = (b"{", b"[]", b'{"model": 1}', b"[" * 5000, b"\xff", b'{"a": 1, "a": 2}', b'{"stream": NaN}', b"")


class Gone(Exception):  # noqa: N818 - the server's connection ended early; that is no error of ours
    """The server closed the connection before the answer was complete."""


@dataclass(frozen=True)
class ClientRequest:
    """A request, its expected status, and the expected result of `answer` for the response."""

    method: str
    path: str
    body: bytes
    status: int
    wanted: Any = None

    def streamed(self) -> ClientRequest:
        """The same request with a streamed response."""
        return replace(self, body=json.dumps(json.loads(self.body) | {"stream": True}).encode())

    @property
    def good(self) -> bool:
        """Whether it is a valid request."""
        return self.status == 200

    @property
    def streams(self) -> bool:
        """Whether the response is streamed."""
        return b'"stream": true' in self.body or self.path == "/v1/decode"

    def content(self) -> bytes:
        """The bytes that are sent."""
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n".encode() + self.body

    def answer(self, text: str) -> Any:
        """The texts of an answer, one per choice; for a replay, the page itself."""
        if self.path == "/v1/replay":
            return text
        if not self.streams:
            return [each["message"]["content"] if "message" in each else each["text"] for each in _choices(text)]
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        if self.path == "/v1/decode":
            return [json.loads(events[-1]).get("text")]
        if events[-1] != "[DONE]":
            return None  # an error, or incomplete
        found: dict[int, str] = {}
        for choice in (choice for event in events[:-1] for choice in _choices(event)):
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            found[choice["index"]] = found.get(choice["index"], "") + piece
        return [found[index] for index in sorted(found)]


def _choices(text: str) -> list[dict[str, Any]]:
    return list(json.loads(text).get("choices", []))


@dataclass(frozen=True)
class Got:
    """A response."""

    status: int
    text: str


class ClientConnection:
    """A connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 16)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    async def send(self, content: bytes) -> None:
        """Send bytes."""
        self._writer.write(content)
        await self._writer.drain()

    async def some(self) -> bytes:
        """The first bytes that arrive."""
        return await self._reader.read(200)

    async def ask(self, ask: ClientRequest, pause: float = 0.0) -> Got:
        """Send a request and read the response, with a pause after every small read."""
        await self.send(ask.content())
        found = b""
        while more := await self._reader.read(2048 if pause else 1 << 16):
            found += more
            await asyncio.sleep(pause)
        head, _, body = found.partition(b"\r\n\r\n")
        if not head:
            raise Gone
        lines = head.decode().lower().split("\r\n")
        if "transfer-encoding: chunked" in lines:
            body = b"".join(_unchunked(body))
        return Got(int(lines[0].split()[1]), body.decode())


def _unchunked(body: bytes) -> Iterator[bytes]:
    """The contents of the chunks; raises if the last one is missing."""
    place = 0
    while True:
        end = body.find(b"\r\n", place)
        if end < 0:
            raise Gone
        size = int(body[place:end], 16)
        if not size:
            return
        yield body[end + 2 : end + 2 + size]
        place = end + 2 + size + 2


# -- the requests ----------------------------------------------------------------------------------------------------


def workload(llm: LLM, each: int = EACH, seed: int = 0) -> list[ClientRequest]:
    """Requests of every kind, each with the answer that is decoded without a server; and invalid bodies."""
    prompts = [list(get_task(name).problems("dev", len(POLICIES) * each, seed=seed)) for name in task_names()]
    made: list[ClientRequest] = []
    for number in range(len(POLICIES) * each):
        policy = POLICIES[number % len(POLICIES)]
        settings: dict[str, Any] = {"gen_length": LENGTHS[number % 3], "block_length": 16, "seed": seed + number}
        settings |= {"temperature": 0.8} if number % 4 == 3 else {}
        texts = [problems[number].prompt for problems in prompts]
        asked = [
            *_completions(llm, texts[number % len(texts)], policy, settings),
            _chat(llm, texts[-1], policy, settings),
            _batch(llm, texts[:2], policy, settings),
        ]
        made += [*asked, *(each.streamed() for each in asked), _decode(llm, texts[0], policy, settings)]
    made.append(_replay(llm))
    posts = ("/v1/chat/completions", "/v1/completions", "/v1/decode", "/v1/replay")
    return made + [ClientRequest("POST", path, body, 400) for path in posts for body in BROKEN]


def _post(path: str, wanted: Any, **body: Any) -> ClientRequest:
    return ClientRequest("POST", path, json.dumps(body).encode(), 200, wanted)


def _completions(llm: LLM, prompt: str, policy: str, settings: dict[str, Any]) -> list[ClientRequest]:
    """One answer, and the same cut short by a stop string, if it has a letter to stop at."""
    text = llm.generate(prompt, policy, chat=False, **settings).text
    body = {"model": llm.model.spec.name, "prompt": prompt, "policy": policy, **settings}
    made = [_post("/v1/completions", [text], **body)]
    if len(text) > 4:
        stop = text[len(text) // 2]
        made.append(_post("/v1/completions", [text[: text.find(stop)]], **body, stop=stop))
    return made


def _chat(llm: LLM, prompt: str, policy: str, settings: dict[str, Any]) -> ClientRequest:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": llm.model.spec.name, "policy": policy, **settings}
    return _post("/v1/chat/completions", [llm.generate(messages, policy, **settings).text], messages=messages, **body)


def _batch(llm: LLM, prompts: list[str], policy: str, settings: dict[str, Any]) -> ClientRequest:
    """Several prompts with two answers each."""
    seeds = (settings["seed"], settings["seed"] + 1)
    every = [(prompt, settings | {"seed": seed}) for prompt in prompts for seed in seeds]
    texts = [llm.generate(prompt, policy, chat=False, **each).text for prompt, each in every]
    body = {"model": llm.model.spec.name, "prompt": prompts, "n": 2, "policy": policy, **settings}
    return _post("/v1/completions", texts, **body)


def _decode(llm: LLM, prompt: str, policy: str, settings: dict[str, Any]) -> ClientRequest:
    text = llm.generate(prompt, policy, chat=False, **settings).text
    return _post("/v1/decode", [text], prompt=prompt, chat=False, policy=policy, **settings)


def _replay(llm: LLM) -> ClientRequest:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.jsonl"
        for _ in record(llm, "Hello", "tacg", path, settings={"gen_length": 48, "block_length": 16}):
            pass
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return _post("/v1/replay", player_page([read_trace(path)] * 2), traces=[lines, lines])
