"""The worker of the sandbox: the process that runs the answer, and knows nothing but the answer's own source.

Only the standard library is used, and nothing of this package but the neighbours: see `child.py`.
"""

from __future__ import annotations

import linecache
import sys
import types
from typing import Any

from tacg.sandbox.wire import brief_error, pack, receive, send, unpack

ANSWER = "answer"  # the answer's module; not "__main__": its own tests are not run


def work(inbox: int, outbox: int) -> None:
    """Run the answer's source, then call its functions as asked, for as long as somebody asks."""
    module = types.ModuleType(ANSWER)
    sys.modules[ANSWER] = module  # dataclasses, pickle and type hints look there for the module of a class
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
    except BaseException as error:  # an answer may raise anything, SystemExit and KeyboardInterrupt too
        reply = {"error": [kind.__name__ for kind in type(error).__mro__], "text": brief_error(error)}
    send(outbox, reply)
