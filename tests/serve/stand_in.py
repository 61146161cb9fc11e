"""A server for tests of the page: real decodes of a scripted storyteller, handed out line by line as ours does."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import tacg
from tacg.engine.request import Decode
from tacg.knobs import Knob
from tacg.models.base import ModelSpec, Span
from tacg.trace import Trace, record
from tacg.trace.player import SHARED, player_page

MASK, EOS, GO = 1, 0, 2
STORY = (
    "At first there are 18 apples. After Monday, plus 2, there are 20 apples.\nTuesday: plus 5 is 25.\n"
    "Wednesday: plus 2 is 27. After Thursday, plus 5, there are 32 apples.\n"
    "On Friday he buys 4, which makes 36. The answer is 36."
)
PROMPT = (
    "Tom has 18 apples. On Monday he wins 2 in a game. On Tuesday he finds 5 more. On Wednesday he gets 2 from Max. "
    "On Thursday he wins 5 in a game. On Friday he buys 4 more. How many apples does Tom have now?"
)
POLICIES = ("tacg", "confidence", "klass", "schedule", "tacg+klass")
CSP = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Words:
    """A tokenizer of whole words, each with the space before it."""

    chat_template = None

    def __init__(self) -> None:
        self.vocabulary = ["<eos>", "<mask>", "<go>", *dict.fromkeys(self.split(STORY))]

    def split(self, text: str) -> list[str]:
        return re.findall(r" ?\w+| ?[^\w\s]|\s", text)

    def encode(self, text: str) -> list[int]:
        return [GO]  # the storyteller tells its story whatever it is asked

    def decode(self, ids: Any) -> str:
        return "".join(self.vocabulary[each] for each in ids if each > GO)


class Storyteller:
    """Knows the story, and is the surer of a word the more of its neighbours are written."""

    def __init__(self, words: Words) -> None:
        self.spec = ModelSpec("storyteller", "scripted", len(words.vocabulary), MASK, (EOS,), (MASK, GO), 4096)
        self.device = torch.device("cpu")
        self.story = torch.tensor([words.vocabulary.index(each) for each in words.split(STORY)])

    def __call__(self, tokens: Tensor, spans: list[Span], select: Tensor) -> Tensor:
        return torch.cat([self._row(row) for row in torch.split(tokens, [len(span) for span in spans])])[select]

    def _row(self, row: Tensor) -> Tensor:
        place = torch.arange(len(row))
        near = torch.exp(-(place[:, None] - place).abs() / 3.0)
        known = (near @ (row != MASK).float()) / near.sum(dim=1)
        steady, fleeting = torch.Generator().manual_seed(3), torch.Generator().manual_seed(int((row == MASK).sum()))
        logits = torch.randn(len(row), self.spec.vocab_size, generator=steady) * 1.3
        logits += torch.randn(len(row), self.spec.vocab_size, generator=fleeting) * 0.7
        told = torch.full((len(row),), EOS)
        told[1 : 1 + len(self.story)] = self.story[: len(row) - 1]
        logits[place, told] += 3.5 + 8.0 * known
        logits[:, [MASK, GO]] = -30.0
        return logits


def storyteller() -> tacg.LLM:
    words = Words()
    return tacg.LLM(Storyteller(words), words)  # type: ignore[arg-type]


def lines_of(llm: tacg.LLM, prompt: str, policy: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.jsonl"
        for event in record(llm, prompt, policy, path, settings=settings):
            del event
        return [json.loads(line) for line in path.read_text().splitlines()]


def info() -> dict[str, Any]:
    def facts(knobs: dict[str, Knob]) -> list[dict[str, Any]]:
        names = ("name", "default", "meaning", "symbol", "low", "high")
        return [
            {name: getattr(knob, name) for name in names} | {"type": knob.kind.__name__, "choices": list(knob.choices)}
            for knob in knobs.values()
        ]

    examples = [
        {"title": "apples", "prompt": PROMPT, "settings": {"gen_length": 96, "block_length": 32}},
        {"title": "short", "prompt": "Say something short.", "settings": {"gen_length": 24, "block_length": 12}},
    ]
    made = {name: tacg.get_policy(name) for name in POLICIES}
    about = {name: str(type(policy).__doc__).partition("\n")[0] for name, policy in made.items()}
    policies = [{"name": name, "about": about[name], "knobs": facts(made[name].knobs())} for name in POLICIES]
    return {
        "model": "storyteller", "policies": policies, "decode": facts(Decode().knobs()), "examples": examples,
        "limits": {"gen_length": 512}, "defaults": {"policy": "tacg", "settings": {}},
    }  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Prompts with these words misbehave: `slow`, `break` (an error event in the middle), `cut` (no end)."""

    llm = storyteller()
    key = ""
    asked: list[dict[str, Any]]
    gone: threading.Event

    def do_GET(self) -> None:
        if self.path == "/v1/tacg/info":
            self._refuse(401, "Wrong key.") if self._locked() else self._json(200, info())
            return
        file = SHARED.joinpath("index.html" if self.path == "/" else self.path[1:])
        if "/" in self.path[1:] or not file.is_file():
            self._refuse(404, "Nothing here.")
            return
        self._send(200, KINDS[Path(str(file)).suffix], file.read_bytes())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._locked():
            self._refuse(401, "Wrong key.")
        elif self.path == "/v1/replay":
            traces = [
                Trace(each[0], tuple(x for x in each if x["kind"] == "step"), _end(each)) for each in body["traces"]
            ]
            self._send(200, "text/html", player_page(traces).encode())
        else:
            self._decode(body)

    def _decode(self, body: dict[str, Any]) -> None:
        self.asked.append(dict(body))
        prompt, policy = body.pop("prompt"), body.pop("policy")
        try:
            lines = lines_of(self.llm, prompt, policy, body)
        except tacg.TacgError as error:
            self._refuse(400, str(error))
            return
        self._head(200, "text/event-stream")
        try:
            for number, line in enumerate(lines):
                if number == 5 and "break" in prompt:
                    self._event({"error": {"message": "The row failed: NaN logits."}}, "event: error\n")
                    return
                if number == 5 and "cut" in prompt:
                    return
                self._event(line)
                time.sleep(0.3 if "slow" in prompt else 0.002)
        except OSError:
            self.gone.set()

    def _event(self, line: dict[str, Any], name: str = "") -> None:
        self.wfile.write(f": keep alive\n\n{name}data: {json.dumps(line)}\n\n".encode())
        self.wfile.flush()

    def _locked(self) -> bool:
        return bool(self.key) and self.headers.get("Authorization") != f"Bearer {self.key}"

    def _refuse(self, status: int, message: str) -> None:
        self._json(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _json(self, status: int, document: Any) -> None:
        self._send(status, "application/json", json.dumps(document).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self._head(status, kind)
        self.wfile.write(body)

    def _head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", CSP)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


def _end(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    return lines[-1] if lines[-1]["kind"] == "end" else None


@contextlib.contextmanager
def serving(key: str = "") -> Iterator[tuple[str, type[Handler]]]:
    """The address, and the handler that remembers what was asked."""
    handler = type("Handler", (Handler,), {"key": key, "asked": [], "gone": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
