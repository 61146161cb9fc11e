"""The sandbox's judge: the process that holds the tests and the expected results, and never runs the answer.

Only the standard library and the neighbouring modules are used: see `child.py`.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import sys
from typing import Any

from tacg.sandbox.wire import brief_error, pack, receive, send, unpack


class AnswerProxy:
    """In the judge: a name defined by the answer. Calling it calls the worker."""

    def __init__(self, path: str, inbox: int, outbox: int, most: int) -> None:
        self._path, self._inbox, self._outbox, self._most = path, inbox, outbox, most

    def __getattr__(self, name: str) -> AnswerProxy:
        return AnswerProxy(f"{self._path}.{name}", self._inbox, self._outbox, self._most)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Send the arguments, wait for the value."""
        send(self._outbox, {"function": self._path, "args": pack(args), "named": pack(named)})
        return understand(receive(self._inbox, self._most))


def understand(reply: Any) -> Any:
    """The value of a reply, or raise its error as the built-in type, so that a test may expect it."""
    if "error" not in reply:
        return unpack(reply["value"])
    raise _error(reply["error"], f"the answer raises {reply['error'][0]}: {reply['text']}")


def _error(kinds: list[str], text: str) -> Exception:
    for name in kinds:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(TypeError):  # a few need more arguments; their base classes do not
                return kind(text)
    return RuntimeError(text)


def judge(job: dict[str, Any], inbox: int, outbox: int, most: int) -> dict[str, Any]:
    """Run each test; reports which pass and why the first one failed.

    A test's names are its own, the setup's, built-in ones, modules of the standard library (unless the job disables
    this), and otherwise the answer's.
    """
    send(outbox, job["answer"])
    passed = [False] * len(job["tests"])
    try:
        understand(receive(inbox, most))
        space: dict[str, Any] = {"__name__": "tests"}
        exec(job["setup"], space)
        for name in sorted(_names([job["setup"], *job["tests"]]) | {*job["functions"]}):
            if name in job["functions"] or not (name in space or hasattr(builtins, name)):
                stdlib = job["modules"] and name not in job["functions"] and name in sys.stdlib_module_names
                space[name] = importlib.import_module(name) if stdlib else AnswerProxy(name, inbox, outbox, most)
    except BaseException as error:  # a setup may raise anything, and no error may count as a pass
        return {"passed": passed, "why": _why(error)}
    why = ""
    for number, test in enumerate(job["tests"]):
        try:
            exec(test, space)
            passed[number] = True
        except BaseException as error:
            why = why or _why(error)
    return {"passed": passed, "why": why}


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {brief_error(error)}"[:300]


def _names(sources: list[str]) -> set[str]:
    """Every name that is read in these sources."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
