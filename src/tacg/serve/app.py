"""The routes: OpenAI's API, a stream of every step, replays, and pages for operators."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import mimetypes
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from tacg.engine.events import Started, Step
from tacg.serve.batcher import Batcher
from tacg.serve.body import Intake, parse_json
from tacg.serve.guard import FAULT, Access, Guard, json_response, refused_response
from tacg.serve.info import describe
from tacg.serve.job import Done
from tacg.serve.limits import Limits
from tacg.serve.metrics import CONTENT_TYPE, Metrics
from tacg.serve.openai import Chat, Completion, Shape, usage
from tacg.serve.parse_request import Defaults, Reader
from tacg.serve.problems import SEEDS, Example
from tacg.serve.refusal import Refusal, bad
from tacg.serve.replay import Replayer
from tacg.serve.rows import GoneError, Rows, unless_gone
from tacg.serve.transcript import Piece
from tacg.trace.player import SHARED
from tacg.trace.recorder import Lines

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from tacg.llm import LLM
    from tacg.serve.parse_request import Ask
    from tacg.types import Output

PAGE = Path(__file__).parent / "page"
CLOSED = 499  # logged when the client closed the connection; never sent


class Service:
    """A served model: what all routes share. `app` is the whole application, including its guard."""

    def __init__(
        self, llm: LLM, limits: Limits | None = None, access: Access | None = None, defaults: Defaults | None = None
    ) -> None:
        self.llm, self.limits, self.defaults = llm, limits or Limits(), defaults or Defaults()
        self.metrics = Metrics()
        self.batcher = Batcher(llm, self.limits, self.metrics)
        self.reader = Reader(llm, self.defaults, self.limits)
        self.intake, self.replayer = Intake(self.limits), Replayer(self.limits.deadline)
        self.created = int(time.time())
        self._facts: dict[str, Any] | None = None
        files = page_files()
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completion, methods=["POST"]),
            Route("/v1/decode", self.decode, methods=["POST"]),
            Route("/v1/replay", self.replay, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.one_model),
            Route("/v1/tacg/info", self.info),
            Route("/v1/tacg/example/{task}", self.example),
            Route("/health", self.health),
            Route("/metrics", self.prometheus),
            *(Route(path, functools.partial(_file, file)) for path, file in files.items()),
        ]
        handlers: dict[Any, Any] = {Refusal: _refused, GoneError: _gone, HTTPException: _no_such, Exception: _fault}
        inner = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        inner.router.redirect_slashes = False
        public = {"/health", "/", *files}
        self.app = Guard(inner, access or Access(), self.limits, self.metrics, public, {route.path for route in routes})

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.batcher.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.batcher.stop)

    # -- OpenAI's API ------------------------------------------------------------------------------------------------

    async def chat(self, request: Request) -> Response:
        """The next turn of a conversation."""
        return await self._answer(request, self.reader.chat, Chat(self.llm))

    async def completion(self, request: Request) -> Response:
        """The text after a prompt."""
        return await self._answer(request, self.reader.completion, Completion(self.llm))

    async def _answer(self, request: Request, read: Callable[[Any], Ask], shape: Shape) -> Response:
        ask = await self._read(request, read)
        note = request.scope["tacg.note"]
        if not ask.stream:
            return json_response(await unless_gone(request.receive, self._whole(ask, shape, note)))
        lines = self._chunks(ask, shape, note)
        first = await unless_gone(request.receive, anext(lines))  # errors before the first chunk are plain responses
        return EventStream(first, lines, self.limits.stall)

    async def _whole(self, ask: Ask, shape: Shape, note: dict[str, Any]) -> dict[str, Any]:
        """The response as one document."""
        answers: dict[int, Answer] = {}
        with Rows(self.batcher, ask) as rows:
            async for index, told in rows.events():
                answers.setdefault(index, Answer()).hear(told)
        ordered = [answers[index] for index in sorted(answers)]
        choices = await asyncio.to_thread(_choices, ordered, shape, logprobs=ask.logprobs)
        return shape.response(choices, _cost(ask, ordered, note))

    async def _chunks(self, ask: Ask, shape: Shape, note: dict[str, Any]) -> AsyncGenerator[str, None]:
        """The response chunk by chunk, as it is decoded."""
        answers: dict[int, Answer] = {}
        empty = {"usage": None} if ask.include_usage else {}
        with Rows(self.batcher, ask) as rows:
            async for index, told in rows.events():
                answer = answers.setdefault(index, Answer())
                if ask.logprobs:  # slow: found by decoding repeatedly
                    choices = await asyncio.to_thread(answer.chunk, index, told, shape, logprobs=True)
                else:
                    choices = answer.chunk(index, told, shape, logprobs=False)
                answer.hear(told)
                for choice in choices:
                    yield json.dumps(shape.part([choice]) | empty)
        cost = _cost(ask, list(answers.values()), note)
        if ask.include_usage:
            yield json.dumps(shape.part([], cost))
        yield "[DONE]"

    async def models(self, request: Request) -> Response:
        """The list of models, which has one entry."""
        return json_response({"object": "list", "data": [self._model()]})

    async def one_model(self, request: Request) -> Response:
        """One model by name."""
        if request.path_params["name"] != self.llm.model.spec.name:
            told = f"This server has {self.llm.model.spec.name!r} only."
            raise Refusal(404, told, param="model", code="model_not_found")
        return json_response(self._model())

    def _model(self) -> dict[str, Any]:
        name = self.llm.model.spec.name
        return {"id": name, "object": "model", "created": self.created, "owned_by": "tacg"}

    # -- our own API -------------------------------------------------------------------------------------------------

    async def decode(self, request: Request) -> Response:
        """A decode, step by step: the lines of a trace."""
        ask = await self._read(request, self.reader.decode)
        lines = self._trace(ask, request.scope["tacg.note"])
        first = await unless_gone(request.receive, anext(lines))
        return EventStream(first, lines, self.limits.stall)

    async def _trace(self, ask: Ask, note: dict[str, Any]) -> AsyncGenerator[str, None]:
        lines = Lines(self.llm, ask.shown, ask.policy, ask.decode)
        begun = False
        with Rows(self.batcher, ask.probed(lines.probe), trace=True) as rows:
            async for _, told in rows.events():
                if isinstance(told, Started) and not begun:
                    begun = True
                    yield json.dumps(lines.start(told))
                elif isinstance(told, Step):
                    yield await asyncio.to_thread(_line, lines, told)
                elif isinstance(told, Done):
                    _cost(ask, [Answer(output=told.output)], note)
                    grade = await asyncio.to_thread(_graded, ask, told.output)
                    yield json.dumps(lines.end(told.output, grade))

    async def replay(self, request: Request) -> Response:
        """One or two traces as a standalone page that plays them."""
        async with self.intake.body(request) as body:
            page = await unless_gone(request.receive, self.replayer.page(body))
        headers = {
            "content-disposition": 'attachment; filename="tacg-replay.html"',
            "content-security-policy": "sandbox; default-src 'none'",
        }
        return Response(page, 200, headers, "text/html")

    async def info(self, request: Request) -> Response:
        """The choices that the page offers."""
        if self._facts is None:
            self._facts = await asyncio.to_thread(describe, self.llm, self.defaults, self.limits)
        return json_response(self._facts)

    async def example(self, request: Request) -> Response:
        """A problem of a task, chosen by `?seed=`."""
        seed = request.query_params.get("seed", "0")
        if not (seed.isascii() and seed.isdigit() and int(seed[:12]) < SEEDS):
            raise bad(f"`seed` must be a whole number in [0, {SEEDS}).", "seed")
        example = Example(request.path_params["task"], int(seed))
        return json_response(await asyncio.to_thread(example.document, self.llm))

    async def health(self, request: Request) -> Response:
        """Whether the server accepts requests."""
        if self.batcher.draining or not self.batcher.alive:
            return json_response({"status": "draining" if self.batcher.alive else "stopped"}, 503)
        return json_response({"status": "ok"})

    async def prometheus(self, request: Request) -> Response:
        """Metrics for operators."""
        gauges = {
            "tacg_rows_running": self.batcher.running, "tacg_rows_waiting": self.batcher.waiting,
            "tacg_rows_limit": self.limits.rows, "tacg_queue_limit": self.limits.queue,
            "tacg_draining": self.batcher.draining,
        }  # fmt: skip
        return Response(self.metrics.text(gauges), media_type=CONTENT_TYPE)

    async def _read(self, request: Request, read: Callable[[Any], Ask]) -> Ask:
        """Parse a request in a thread, so that JSON and long texts do not delay other clients' chunks."""
        if self.batcher.draining:
            self.batcher.submit([])  # raises the refusal
        async with self.intake.body(request) as body:
            ask = await asyncio.to_thread(_understood, body, read)
        note = request.scope["tacg.note"]
        note |= {"rows": len(ask.prompts) * ask.n, "prompt_tokens": sum(map(len, ask.prompts)), "prompt": ask.shown}
        return ask


@dataclass
class Answer:
    """What is known of one row's answer so far."""

    text: str = ""
    tokens: list[tuple[int, float]] = field(default_factory=list)
    reason: str = ""
    output: Output | None = None
    begun: bool = False

    def hear(self, told: Any) -> None:
        """Add an event."""
        if isinstance(told, Started):  # possibly a restart; then nothing of it was shown
            self.text, self.tokens = "", []
        elif isinstance(told, Piece):
            self.text += told.text
            self.tokens += told.tokens
        elif isinstance(told, Done):
            self.output, self.reason = told.output, told.reason
        self.begun = True

    def chunk(self, index: int, told: Any, shape: Shape, *, logprobs: bool) -> list[dict[str, Any]]:
        """The choices of the chunks that report this event to the client."""
        if isinstance(told, Started):
            return [] if self.begun else shape.opening(index) or [shape.delta(index, "", None)]
        if isinstance(told, Piece):
            found = shape.logprobs(told.tokens, [token for token, _ in self.tokens]) if logprobs else None
            return [shape.delta(index, told.text, found)]
        return [shape.last(index, told.reason)] if isinstance(told, Done) else []


class EventStream(Response):
    """Server-sent events. The stream ends when the client is gone or does not read for `stall` seconds."""

    media_type = "text/event-stream"

    def __init__(self, first: str, lines: AsyncGenerator[str, None], stall: float) -> None:
        self.status_code, self.background = 200, None
        self._first, self._lines, self._stall = first, lines, stall
        self.init_headers({"x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream."""
        try:
            await unless_gone(receive, self._write(send, scope["tacg.note"]))
        except (GoneError, TimeoutError):
            scope["tacg.note"]["status"] = CLOSED
        finally:
            await self._lines.aclose()

    async def _write(self, send: Send, note: dict[str, Any]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._event(send, self._first)
        try:
            async for line in self._lines:
                await self._event(send, line)
        except Refusal as refused:  # too late for a status code; clients raise when they see an `error`
            note["code"] = refused.code
            await self._event(send, json.dumps(refused.document()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _event(self, send: Send, line: str) -> None:
        async with asyncio.timeout(self._stall):
            await send({"type": "http.response.body", "body": f"data: {line}\n\n".encode(), "more_body": True})


def page_files() -> dict[str, Path]:
    """The page's files by URL path; index.html is the root."""
    found = {f"/{file.relative_to(PAGE).as_posix()}": file for file in PAGE.rglob("*") if file.is_file()}
    found |= {f"/{file.name}": file for file in SHARED}
    return ({"/": found["/index.html"]} if "/index.html" in found else {}) | found


async def _file(file: Path, request: Request) -> Response:
    kind = "text/javascript" if file.suffix in (".js", ".mjs") else mimetypes.guess_type(file.name)[0]
    return Response(file.read_bytes(), 200, {"cache-control": "no-cache"}, kind or "application/octet-stream")


def _understood(body: bytearray, read: Callable[[Any], Ask]) -> Ask:
    try:
        return read(parse_json(body))
    except RecursionError:  # parseable, but too deeply nested to be quoted in a message
        raise bad("The body is nested too deeply.", code="invalid_json") from None


def _choices(answers: list[Answer], shape: Shape, *, logprobs: bool) -> list[dict[str, Any]]:
    return [
        shape.choice(index, answer.text, answer.reason, shape.logprobs(answer.tokens, ()) if logprobs else None)
        for index, answer in enumerate(answers)
    ]


def _graded(ask: Ask, output: Output) -> dict[str, Any] | None:
    """The grade of an answer to a known problem. A program is not graded if the client wrote parts of it."""
    if ask.problem is None or (ask.canvas and ask.problem.task == "pocket-code"):
        return None
    return ask.problem.grade(output.text)


def _line(lines: Lines, step: Step) -> str:
    return json.dumps(lines.step(step))


def _cost(ask: Ask, answers: list[Answer], note: dict[str, Any]) -> dict[str, Any]:
    """The usage of a request; also noted for the log."""
    outputs = [answer.output for answer in answers if answer.output is not None]
    found = usage(outputs, sum(map(len, ask.prompts)))
    note |= {name: found[name] for name in ("completion_tokens", "forwards")}
    return found


async def _refused(request: Request, refused: Refusal) -> Response:
    request.scope["tacg.note"]["code"] = refused.code  # not the message or field, which quote the client
    return refused_response(refused)


async def _gone(request: Request, _: GoneError) -> Response:
    request.scope["tacg.note"]["status"] = CLOSED
    return Response(status_code=CLOSED)


async def _fault(request: Request, _: Exception) -> Response:
    """An internal error; the guard logs it."""
    return refused_response(FAULT)


async def _no_such(request: Request, error: HTTPException) -> Response:
    """Unknown path, or a method that the path does not support."""
    told = f"{request.method} {request.url.path[:64]} is not a route of this server."
    code = "method_not_allowed" if error.status_code == 405 else "not_found"
    return refused_response(Refusal(error.status_code, told, code=code, headers=error.headers or {}))
