"""Thousands of requests that no client would send, to every route: each is answered, and never with a 500."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacg
from tests.fuzz.damage import DAMAGE, edited, harmed, one

pytest.importorskip("starlette")

from tacg.serve.app import Service
from tacg.serve.guard import Access
from tacg.serve.limits import Limits
from tacg.serve.parse_request import Defaults

pytestmark = pytest.mark.usefixtures("_no_hang")
SMALL: dict[str, Any] = {"gen_length": 8, "block_length": 8}
LINES = [
    {"kind": "start", "model": "m", "policy": "tacg", "prompt": "", "tacg": "0", "gen_length": 2,
     "contrast": [0.3, 0.9], "settings": {}, "blocks": [[0, 2, 2]]},
    {"kind": "step", "step": 1, "block": 0, "names": ["kl"], "committed": [[0, 5, "base"]],
     "proposals": [[0, 5, 0.9, 0.1], [1, 6, 0.5, 0.2]], "pieces": {"5": "a", "6": "b"}},
    {"kind": "end", "text": "a", "tokens": [5], "steps": 1, "forwards": 1, "finish_reason": "length"},
]  # fmt: skip
BODIES: dict[str, Any] = {
    "/v1/completions": {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0, "n": 1, "stream": False,
                        "stop": ["x"], "seed": 1, "policy": "tacg", "k_extra": 1},
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8,
                             "stream": True, "logprobs": True, "stream_options": {"include_usage": True}},
    "/v1/decode": {"prompt": "Hello", "policy": "tacg", "gen_length": 8},
    "/v1/replay": {"traces": [LINES]},
}  # fmt: skip
KINDS = st.sampled_from([b"application/json"] * 8 + [b"text/plain", b"", b"application/json; charset=\xff"])


class Asked:
    """The application in this process, between its startup and its shutdown."""

    def __init__(self, llm: tacg.LLM) -> None:
        limits = Limits(rows=8, queue=64, answers=2, prompt_tokens=64, gen_length=16, body_bytes=1 << 17, deadline=60)
        self.service = Service(llm, limits, Access.bound_to("127.0.0.1", None), Defaults("tacg", SMALL))
        self.loop = asyncio.new_event_loop()

    def __repr__(self) -> str:
        return "…"

    def ask(self, method: str, path: str, body: bytes, kind: bytes) -> int:
        return self.loop.run_until_complete(asyncio.wait_for(self._ask(method, path, body, kind), 120))

    async def _ask(self, method: str, path: str, body: bytes, kind: bytes) -> int:
        headers = [(b"host", b"127.0.0.1"), (b"content-type", kind)]
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
                 "raw_path": path.encode(), "query_string": b"", "headers": headers, "scheme": "http", "root_path": "",
                 "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 80)}  # fmt: skip
        waiting: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        heard: list[dict[str, Any]] = []
        ended = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if waiting:
                return waiting.pop()
            await ended.wait()  # the client stays until it has its answer
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            heard.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                ended.set()

        await self.service.app(scope, receive, send)
        said = b"".join(each.get("body", b"") for each in heard if each["type"] == "http.response.body")
        assert b"Traceback" not in said
        assert ended.is_set(), "the answer has an end"
        return int(heard[0]["status"])


@pytest.fixture(scope="module")
def app(llm: tacg.LLM) -> Iterator[Asked]:
    made = Asked(llm)
    made.service.batcher.start()
    yield made
    made.service.batcher.stop()
    made.loop.close()


@pytest.mark.parametrize("path", BODIES)
def test_the_sound_ones_are_answered(app: Asked, path: str) -> None:
    assert app.ask("POST", path, one(BODIES[path]), b"application/json") == 200


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=500)
@given(how=DAMAGE, kind=KINDS)
def test_damaged_bodies(app: Asked, path: str, how: Any, kind: bytes) -> None:
    status = app.ask("POST", path, harmed(one(edited(BODIES[path], how[0])), how[1]), kind)
    assert status < 500 or status == 503


@settings(max_examples=300)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "X"]),
    path=st.one_of(
        st.sampled_from(["/", "/health", "/metrics", "/v1/models", "/v1/models/tiny", "/v1/tacg/info", *BODIES]),
        st.text(max_size=20).filter(lambda text: text.isprintable()).map(lambda text: "/" + text),
    ),
    body=st.binary(max_size=40),
)
def test_any_route(app: Asked, method: str, path: str, body: bytes) -> None:
    assert app.ask(method, path, body, b"application/json") < 500
