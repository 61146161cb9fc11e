"""Strangers: no access without the key or from other sites' pages, and no request body breaks the server."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import tacg
from tacg.cli.main import app as command_line
from tacg.engine.request import Decode
from tacg.errors import TacgError
from tacg.knobs import Knob
from tacg.policies import get_policy
from tacg.serve import app
from tacg.serve.guard import LOCAL, Access
from tacg.serve.limits import Limits
from tacg.serve.parse_request import NEUTRAL_CHAT, NEUTRAL_COMPLETION
from tacg.serve.run import bind
from tests.serve.conftest import Running, running, wait_until

EXAMPLES = int(os.environ.get("TACG_FUZZ", "40"))  # look longer: TACG_FUZZ=2000
POSTS = ["/v1/chat/completions", "/v1/completions", "/v1/decode", "/v1/replay"]
WORKS: dict[str, Any] = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]}, "/v1/replay": {}}
GETS = ["/v1/models", "/v1/models/tiny", "/v1/tacg/info", "/metrics", "/v1/nothing", "/nothing"]


@pytest.fixture(scope="module")
def locked(llm: tacg.LLM) -> Iterator[Running]:
    access = Access.bound_to("127.0.0.1", "sécret", origins=("https://good.example",))
    with running(llm, access=access) as made:
        yield made


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer", "Basic sécret", "Bearer sécre", "Bearer sécret2"])
def test_without_the_key_there_is_nothing(locked: Running, given: str | None) -> None:
    headers = {"authorization": given.encode()} if given else {}
    with locked.http() as http:
        for method, path in [("POST", each) for each in POSTS] + [("GET", each) for each in GETS]:
            answer = http.request(method, path, headers=headers, content=b"{" if method == "POST" else None)
            assert answer.status_code == 401, path
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert "www-authenticate" in answer.headers
        assert http.get("/health").status_code == 200
        right = {"authorization": "Bearer sécret".encode()}
        assert http.get("/v1/models", headers=right).status_code == 200


def test_with_the_key_there_is(llm: tacg.LLM) -> None:
    with running(llm, access=Access.bound_to("0.0.0.0", "secret")) as server:
        with server.openai(api_key="secret") as client:
            assert client.completions.create(model="tiny", prompt="a").choices[0].text
        with server.openai(api_key="Secret") as client, pytest.raises(openai.AuthenticationError, match="wrong"):
            client.completions.create(model="tiny", prompt="a")


def test_small_responses_are_sent_at_once(served: Running, http: httpx2.Client) -> None:
    assert http.get("/health").status_code == 200
    for connection in served.server.server_state.connections:
        there = connection.transport.get_extra_info("socket")
        assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "or each response takes 40 ms longer"
    with pytest.raises(TacgError, match="Cannot listen"):
        bind(*served.socket.getsockname())


def test_other_interfaces_need_a_key_or_a_word() -> None:
    for host in ("0.0.0.0", "192.168.0.1", "::", "example.org"):
        with pytest.raises(TacgError, match="--insecure"):
            Access.bound_to(host, None)
        assert Access.bound_to(host, None, insecure=True).hosts is None
    with pytest.raises(TacgError, match="empty"):
        Access.bound_to("127.0.0.1", "")
    assert Access.bound_to("127.0.0.1", None).hosts is not None
    assert Access.bound_to("0.0.0.0", "k", also=["proxy.example"]).hosts == {*LOCAL, "proxy.example"}
    told = CliRunner().invoke(command_line, ["serve", "--host", "0.0.0.0", "--port", "0"]).exception
    assert isinstance(told, TacgError)
    assert "--api-key" in str(told)


def test_pages_of_other_sites_get_nothing(http: httpx2.Client) -> None:
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        refused = http.get("/v1/models", headers={"host": host})
        assert refused.status_code == 403, host
    for host in ("localhost", "127.0.0.1:1", "[::1]:8000"):
        assert http.get("/v1/models", headers={"host": host}).status_code == 200
    body = {"model": "tiny", "prompt": "a"}
    for origin in ("https://evil.example", "null", "http://["):
        answer = http.post("/v1/completions", json=body, headers={"origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in http.options("/v1/completions", headers=preflight).headers
    mine = str(http.base_url).rstrip("/")
    assert http.post("/v1/completions", json=body, headers={"origin": mine}).status_code == 200
    plain = http.post("/v1/completions", content=json.dumps(body), headers={"content-type": "text/plain"})
    assert plain.status_code == 415, "what a page may send without asking is not understood"


def test_cors_is_for_those_who_were_named(locked: Running) -> None:
    asks = {"origin": "https://good.example", "access-control-request-method": "POST"}
    with locked.http() as http:
        preflight = http.options("/v1/completions", headers=asks)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "https://good.example"
        assert http.options("/v1/completions", headers=asks | {"origin": "https://evil.example"}).status_code == 401
        answer = http.get("/v1/models", headers={"origin": "https://good.example"})
        assert answer.status_code == 401, "being named does not replace the key"


def test_every_response_carries_the_headers(http: httpx2.Client) -> None:
    for answer in (http.get("/health"), http.get("/none"), http.post("/v1/completions", json={}), http.get("/")):
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_page_is_served_and_nothing_beside_it(
    llm: tacg.LLM, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path_factory.mktemp("site")
    (root / "page").mkdir()
    (root / "secret").write_text("no")
    (root / "page/index.html").write_text("<p>hello")
    (root / "page/page.js").write_text("1")
    monkeypatch.setattr(app, "PAGE", root / "page")
    with running(llm, access=Access.bound_to("127.0.0.1", "key")) as server, server.http() as http:
        assert http.get("/").text == "<p>hello"
        assert http.get("/").headers["content-type"].startswith("text/html")
        assert http.get("/page.js").headers["content-type"].startswith("text/javascript")
        for path in ("/../secret", "/%2e%2e/secret", "/page/../../secret", "/secret"):
            assert http.get(path).status_code == 401


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"model": "tiny", "model": "tiny"}', "invalid_json"),
        (b'{"temperature": NaN}', "invalid_json"),
        (b'{"temperature": 1e999}', "invalid_json"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"[]", None),
        (b"3", None),
    ],
)
def test_bodies_that_are_not_json(http: httpx2.Client, content: bytes, code: str | None) -> None:
    answer = http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_bodies_that_are_too_large_or_too_slow(llm: tacg.LLM) -> None:
    kind = {"content-type": "application/json"}
    with running(llm, Limits(body_bytes=1000, stall=0.3)) as server, server.http() as http:
        said = http.post("/v1/completions", content=b" " * 1001, headers=kind)
        assert (said.status_code, said.json()["error"]["code"]) == (413, "body_too_large")
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(server.socket.getsockname(), timeout=10) as connection:
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"258\r\n" + b" " * 600 + b"\r\n")
            connection.sendall(b"258\r\n" + b" " * 600 + b"\r\n")  # no end in sight
            assert b"413" in connection.recv(100)
        with socket.create_connection(server.socket.getsockname(), timeout=10) as connection:
            connection.sendall(head + b"Content-Length: 100\r\n\r\n{")
            assert b"408" in connection.recv(100)


def test_prompts_are_logged_only_when_asked(llm: tacg.LLM, caplog: pytest.LogCaptureFixture) -> None:
    words = "a private\nmatter"
    for wanted in (False, True):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "tacg"), caplog.at_level(logging.DEBUG, "uvicorn"):
            access = Access.bound_to("127.0.0.1", None, log_prompts=wanted)
            with running(llm, access=access) as server, server.http() as http:
                assert http.post("/v1/completions", json={"model": "tiny", "prompt": words}).status_code == 200
                assert http.post("/v1/decode", json={"prompt": words, words: 1}).status_code == 400
        told = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith(("tacg", "uvi")))
        assert "/v1/completions 200" in told
        assert (json.dumps(words) in told) is wanted
        assert "private\nmatter" not in told


def test_our_own_mistakes_have_the_shape_too(
    served: Running, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(document: Any) -> None:
        raise RuntimeError(f"private: {document}")

    monkeypatch.setattr(served.service.reader, "completion", fail)
    with caplog.at_level(logging.INFO, "tacg"):
        answer = http.post("/v1/completions", json={"prompt": "mine"})
        wait_until(lambda: any(" 500 " in record.getMessage() for record in caplog.records))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    told = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith(("tacg", "uvi")))
    assert "RuntimeError" in told
    assert answer.headers["x-request-id"] in told
    assert "private" not in told.replace('f"private: {document}"', "")


# -- any body at all -------------------------------------------------------------------------------------------------

LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-2, 40), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), st.sampled_from(["tiny", "tacg", "tacg+klass", "tacg+tacg", "confidence:llada/gsm8k", "user"]),
)  # fmt: skip
JSON = st.recursive(
    LEAF,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
KNOBS = sorted({*Decode().knobs(), *get_policy("tacg+klass").knobs(), *get_policy("schedule").knobs(), "suppress"})
NAMES = sorted({
    *KNOBS, *NEUTRAL_CHAT, *NEUTRAL_COMPLETION, "model", "messages", "prompt", "stream", "stream_options", "stop", "n",
    "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "policy", "deadline", "chat", "traces",
})  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": JSON}, optional={"name": JSON}
    ),
    max_size=2,
)
BODIES = st.one_of(
    st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=6)), JSON, max_size=4),
    st.fixed_dictionaries({"messages": MESSAGES}),
    JSON,
)


@pytest.fixture(scope="module")
def small(llm: tacg.LLM) -> Iterator[httpx2.Client]:
    with running(llm, Limits(gen_length=24, answers=4, body_bytes=4000)) as made, made.http() as http:
        yield http


def plausible(knob: Knob) -> st.SearchStrategy[Any]:
    """Values that a knob takes, far ones too."""
    if knob.choices:
        found: st.SearchStrategy[Any] = st.sampled_from(knob.choices)
    elif knob.kind is bool:
        found = st.booleans()
    else:
        low, high = knob.low or 0, 1e18 if knob.high is None else knob.high
        found = st.sampled_from([low, high, 1, 2, 7, 1e-30, 0.5, 0.99]).map(knob.kind)
    return found | st.none() if knob.optional else found


def few(values: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.lists(st.sampled_from(sorted(values)), max_size=4, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: values[name] for name in chosen}))


OPTIONS = {
    "n": st.integers(1, 4), "stop": st.sampled_from(["e", ["a", "bc"]]), "stream": st.booleans(),
    "max_tokens": st.integers(1, 24), "model": st.just("tiny"), "deadline": st.just(9),
}  # fmt: skip


@st.composite
def askable(draw: Any) -> dict[str, Any]:
    """A request that should be understood, or nearly."""
    policy = draw(st.sampled_from(["tacg", "tacg+klass", "confidence", "klass", "schedule", "tacg+schedule"]))
    ours = Decode().knobs() | get_policy(policy).knobs()
    knobs = {name: plausible(knob) for name, knob in ours.items() if name not in ("scan", "gen_length")}
    suppress = st.lists(st.integers(0, 101), max_size=4)
    return {"policy": policy, **draw(few(knobs | {"suppress": suppress})), **draw(few(OPTIONS))}


def post(http: httpx2.Client, path: str, content: bytes) -> httpx2.Response:
    """Every request gets a response of the right shape, and never an internal error."""
    answer = http.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert len(error["message"]) < 2500
    elif "event-stream" in answer.headers["content-type"]:
        assert "server_error" not in answer.text
    assert http.get("/health").status_code == 200
    return answer


@settings(max_examples=EXAMPLES)
@given(path=st.sampled_from(POSTS), body=BODIES, valid=st.booleans(), damage=st.none() | st.integers(0, 200))
def test_no_body_makes_the_server_stumble(
    small: httpx2.Client, path: str, body: Any, valid: bool, damage: int | None
) -> None:
    if valid and isinstance(body, dict):  # something that works, and one thing more
        body = {"model": "tiny", **WORKS.get(path, {"prompt": "hi"}), **body}
    post(small, path, json.dumps(body).encode()[:damage])


@settings(max_examples=EXAMPLES)
@given(path=st.sampled_from(POSTS[:3]), body=askable())
def test_no_knob_makes_the_server_stumble(small: httpx2.Client, path: str, body: dict[str, Any]) -> None:
    answer = post(small, path, json.dumps({"model": "tiny", **WORKS.get(path, {"prompt": "hi"}), **body}).encode())
    if answer.status_code == 400:
        blamed = answer.json()["error"]["param"]
        assert blamed in body or blamed == "gen_length", answer.text
