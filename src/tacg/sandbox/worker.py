"""The sandbox's worker: the process that runs the answer, and knows only the answer's own source.

Only the standard library and the neighbouring modules are used: see `child.py`.
"""

from __future__ import annotations

import linecache
import sys
import types
from typing import Any

from tacg.sandbox.wire import brief_error, pack, receive, send, unpack

ANSWER = "answer"  # the answer's module name; not "__main__", so that its own tests are not run


def work(inbox: int, outbox: int) -> None:
    """Run the answer's source, then call its functions on request until it is ended."""
    module = types.ModuleType(ANSWER)
    sys.modules[ANSWER] = module  # dataclasses, pickle and type hints look up a class's module there
    space, objects = module.__dict__, list[Any]()
    source = receive(inbox)
    linecache.cache[ANSWER] = (len(source), None, source.splitlines(keepends=True), ANSWER)
    _reply(outbox, lambda: exec(compile(source, ANSWER, "exec"), space), objects)
    while True:
        asked = receive(inbox)
        args, named = (unpack(asked[part], objects) for part in ("args", "named"))
        path = asked["function"]
        _reply(outbox, lambda path=path, args=args, named=named: _find(space, path)(*args, **named), objects)


def _find(space: dict[str, Any], path: str) -> Any:
    name, *attributes = path.split(".")
    if name not in space:
        raise NameError(f"name {name!r} is not defined")
    value = space[name]
    for each in attributes:
        value = getattr(value, each)
    return value


def _reply(outbox: int, action: Any, objects: list[Any]) -> None:
    try:
        reply = {"value": pack(action(), objects)}
    except BaseException as error:  # an answer may raise anything, including SystemExit and KeyboardInterrupt
        reply = {"error": [kind.__name__ for kind in type(error).__mro__], "text": brief_error(error)}
    send(outbox, reply)
