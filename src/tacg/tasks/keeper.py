"""The other side of the sandbox: a program of its own, started by `sandbox.py` with nothing but pipes.

    keeper ── server ── warden ─┬─ judge     holds the tests and what they expect; never runs the answer
                                └─ worker    runs the answer; knows nothing but the answer's own source

The keeper makes namespaces and an empty root, once (`walls.py`); the server forks a warden for each job. The worker is
forked before the judge reads the job, so that no test is in its memory. A test that calls a function of the answer
sends the arguments over a pipe, and what comes back is plain data (`wire.py`): there is nothing in the judge's process
that an answer could patch, print to or leave. The warden keeps the time and ends whatever is left.

Only the standard library is used, and nothing of this package but the two neighbours: this file is run by its path.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import linecache
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

if not __package__:  # our neighbours are found, but the package's own start, which would bring torch, is not run
    for place in (Path(__file__).parent.parent, Path(__file__).parent):
        package = types.ModuleType("tacg.tasks" if place.name == "tasks" else "tacg")
        package.__path__ = [str(place)]
        sys.modules[package.__name__] = package

from tacg.tasks.walls import (
    MS_NODEV,
    MS_NOSUID,
    NEWIPC,
    NEWNS,
    NEWPID,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    ROOM,
    build_root,
    call,
    child,
    drop,
    enter_namespaces,
    keep_only,
    mount,
    rehearse,
    spare_user,
)
from tacg.tasks.wire import pack, receive, send, unpack

# What answers import often: loaded once, shared by every fork.
COMMON = "re string itertools functools collections heapq bisect operator statistics copy datetime typing"
COMMON += " hashlib cmath array dataclasses enum abc queue textwrap unicodedata calendar types numbers"

ANSWER = "answer"  # the answer's module; not "__main__": its own tests are not run
NO_MORE = 3  # exit status of a judge that found no job


# --- the worker: runs the answer -------------------------------------------------------------------------------------


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
    found = space[name]
    for each in attributes:
        found = getattr(found, each)
    return found


def _reply(outbox: int, action: Any, objects: list[Any]) -> None:
    try:
        told = {"value": pack(action(), objects)}
    except BaseException as error:  # an answer may raise anything, SystemExit and KeyboardInterrupt too
        told = {"error": [kind.__name__ for kind in type(error).__mro__], "text": _text(error)}
    send(outbox, told)


def _text(error: BaseException) -> str:
    """What an error says, in short; an error of an answer's, or one about a huge number, may fail to say it."""
    try:
        return str(error)[:200]
    except BaseException:
        return ""


# --- the judge: runs the tests ---------------------------------------------------------------------------------------


class Answer:
    """In the judge: a name of the answer's. Calling it calls the worker."""

    def __init__(self, path: str, inbox: int, outbox: int, most: int) -> None:
        self._path, self._inbox, self._outbox, self._most = path, inbox, outbox, most

    def __getattr__(self, name: str) -> Answer:
        return Answer(f"{self._path}.{name}", self._inbox, self._outbox, self._most)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Send the arguments, wait for the value."""
        send(self._outbox, {"function": self._path, "args": pack(args), "named": pack(named)})
        return understand(receive(self._inbox, self._most))


def understand(reply: Any) -> Any:
    """The value of a reply, or the error that it tells of: the built-in one, so that a test may expect it."""
    if "error" not in reply:
        return unpack(reply["value"])
    raise _error(reply["error"], f"the answer raises {reply['error'][0]}: {reply['text']}")


def _error(kinds: list[str], text: str) -> Exception:
    for name in kinds:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(TypeError):  # a few want more than a text; what they derive from does not
                return kind(text)
    return RuntimeError(text)


def judge(job: dict[str, Any], inbox: int, outbox: int, most: int) -> dict[str, Any]:
    """Run each test; says which pass and, for the first that does not, why.

    A test's names are its own, the setup's, built-in ones, modules of the standard library (unless the job says not
    to), and for the rest the answer's.
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
                space[name] = importlib.import_module(name) if stdlib else Answer(name, inbox, outbox, most)
    except BaseException as error:  # a setup may raise anything, and no error may look like a pass
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
    return f"{type(error).__name__}: {_text(error)}"[:300]


def _names(sources: list[str]) -> set[str]:
    """Every name that is read in these sources."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


# --- the warden: one job ---------------------------------------------------------------------------------------------


def warden(limits: dict[str, int], isolated: bool, user: int) -> int:
    """Wait for a job, see it through within its time, report; exit status for the server."""
    room = fresh_room(limits, isolated, user)
    calls, replies, verdicts, gate = (os.pipe() for _ in range(4))
    judging = os.fork()
    if judging == 0:
        child(lambda: judge_side(limits, user + 1, gate[0], replies[0], calls[1], verdicts[1]))
    if isolated:
        call("unshare", NEWPID)  # the next fork lives in a world of processes of its own
    working = os.fork()
    if working == 0:
        child(lambda: worker_side(limits, user, room, calls[0], replies[1]))
    for descriptor in (*calls, *replies, verdicts[1], gate[0]):
        os.close(descriptor)
    select.select([0], [], [])
    os.write(gate[1], b"!")
    verdict, late = hear(verdicts[0], limits["wall"], limits["output"])
    for process in (judging, working):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in (judging, working)]
    if not isolated:
        sweep(working, room)
    if codes[0] == NO_MORE:
        return NO_MORE
    send(1, verdict or {"passed": [], "why": f"no verdict in {limits['wall']} s" if late else "the judge was ended"})
    return 0


def fresh_room(limits: dict[str, int], isolated: bool, user: int) -> str:
    """An empty directory that is gone with its job."""
    if isolated:
        call("unshare", NEWNS | NEWIPC)
        owner = f"uid={user},gid={user}," if os.geteuid() == 0 else ""
        options = f"{owner}size={limits['file']},nr_inodes=1000,mode=700"
        mount("room", ROOM, "tmpfs", MS_NOSUID | MS_NODEV, options)
        return ROOM
    room = tempfile.mkdtemp(prefix="tacg-room-")
    if os.geteuid() == 0:
        os.chown(room, user, user)
    return room


def worker_side(limits: dict[str, int], user: int, room: str, inbox: int, outbox: int) -> None:
    """Become the worker."""
    os.setsid()
    os.chdir(room)
    keep_only(inbox, outbox)
    drop(limits, user)
    work(inbox, outbox)


def judge_side(limits: dict[str, int], user: int, gate: int, inbox: int, outbox: int, verdict: int) -> int:
    """Become the judge: once the warden has seen a job arrive, read it and try the answer on it."""
    keep_only(0, gate, inbox, outbox, verdict)
    os.read(gate, 1)
    try:
        job = receive(0)
    except EOFError:
        return NO_MORE
    keep_only(inbox, outbox, verdict)
    drop(limits, user)  # the same seconds as the answer: a huge value may keep us busy, but not for long
    random.seed(0)  # some tests draw their inputs: every answer gets the same ones
    send(verdict, judge(job, inbox, outbox, limits["output"]))
    return 0


def hear(verdict: int, seconds: float, most: int) -> tuple[Any, bool]:
    """The judge's verdict, or None, and whether time ran out."""
    if not select.select([verdict], [], [], seconds)[0]:
        return None, True
    try:
        return receive(verdict, most), False
    except EOFError:
        return None, False


def sweep(working: int, room: str) -> None:
    """Without a process namespace: end the worker's group, then orphans, which come to us, until none is left."""
    for _ in range(1000):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(working, signal.SIGKILL)
        left = Path(f"/proc/self/task/{os.getpid()}/children")
        for process in left.read_text(encoding="ascii").split() if left.exists() else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            break
        time.sleep(0.001)
    shutil.rmtree(room, ignore_errors=True)


# --- the keeper and its server ---------------------------------------------------------------------------------------


def serve(limits: dict[str, int], isolated: bool, user: int) -> int:
    """Fork a warden for each job, one after the other, until the jobs end."""
    while True:
        process = os.fork()
        if process == 0:
            if not isolated and sys.platform == "linux":
                call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            child(lambda: warden(limits, isolated, user))
        while True:  # as the first process of a namespace, we also bury other people's orphans
            ended, status = os.wait()
            if ended == process:
                break
        code = os.waitstatus_to_exitcode(status)
        if code:
            return 0 if code == NO_MORE else code


def main() -> int:
    """Isolate as far as told, say how it went, serve."""
    limits, isolated = json.loads(sys.argv[1]), sys.argv[2] == "namespaces"
    for name in COMMON.split():
        importlib.import_module(name)
    sys.set_int_max_str_digits(0)  # a number may be as long as time and memory allow, printed or not
    try:
        user = spare_user()
        rehearse(limits, user, isolated)
        if isolated:
            enter_namespaces()
            build_root()
    except OSError as error:
        send(1, {"ready": False, "why": str(error)})
        return 1
    server = os.fork()
    if server == 0:
        if sys.platform == "linux":
            call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        send(1, {"ready": True, "why": ""})
        child(lambda: serve(limits, isolated, user))
    os.close(0)
    return os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
