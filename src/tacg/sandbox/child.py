"""The inner side of the sandbox: a separate program, started by `trial.py` with only pipes open.

    child ── server ── warden ─┬─ judge     holds the tests and what they expect; never runs the answer
                               └─ worker    runs the answer; knows only the answer's own source

The child sets up namespaces and an empty root once (`walls.py`); the server forks a warden for each job. The worker is
forked before the judge reads the job, so no test is in its memory. A test that calls a function of the answer sends
the arguments over a pipe, and the reply is plain data (`wire.py`): an answer has nothing of the judge's process to
patch, to print to or to exit. The warden keeps the time and kills whatever is left.

Only the standard library and the neighbouring modules are used, because this file is run by its path.
"""

from __future__ import annotations

import contextlib
import importlib
import json
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

if not __package__:  # find our neighbours without importing the package itself, which would load torch
    for place in (Path(__file__).parent.parent, Path(__file__).parent):
        package = types.ModuleType("tacg.sandbox" if place.name == "sandbox" else "tacg")
        package.__path__ = [str(place)]
        sys.modules[package.__name__] = package

from tacg.sandbox.judge import judge
from tacg.sandbox.walls import (
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
from tacg.sandbox.wire import receive, send
from tacg.sandbox.worker import work

# Modules that answers often import: loaded once, shared by every fork.
COMMON = "re string itertools functools collections heapq bisect operator statistics copy datetime typing"
COMMON += " hashlib cmath array dataclasses enum abc queue textwrap unicodedata calendar types numbers"

NO_MORE = 3  # exit status of a judge that got no job


# --- the warden: one job ---------------------------------------------------------------------------------------------


def warden(limits: dict[str, int], isolated: bool, user: int) -> int:
    """Wait for a job, run it within its time and report; returns the exit status for the server."""
    room = fresh_room(limits, isolated, user)
    calls, replies, verdicts, gate = (os.pipe() for _ in range(4))
    judging = os.fork()
    if judging == 0:
        child(lambda: judge_side(limits, user + 1, gate[0], replies[0], calls[1], verdicts[1]))
    if isolated:
        call("unshare", NEWPID)  # the next fork lives in its own process namespace
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
    """An empty directory that disappears with its job."""
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
    """Become the judge: after the warden has seen a job arrive, read it and test the answer."""
    keep_only(0, gate, inbox, outbox, verdict)
    os.read(gate, 1)
    try:
        job = receive(0)
    except EOFError:
        return NO_MORE
    keep_only(inbox, outbox, verdict)
    drop(limits, user)  # the same limit as the answer: a huge value may keep the judge busy, but not for long
    random.seed(0)  # some tests draw random inputs: every answer gets the same ones
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
    """Without a process namespace: kill the worker's group, then its orphans (now our children), until none is left."""
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


# --- the child and its server ----------------------------------------------------------------------------------------


def serve(limits: dict[str, int], isolated: bool, user: int) -> int:
    """Fork a warden for each job in turn, until there are no more jobs."""
    while True:
        process = os.fork()
        if process == 0:
            if not isolated and sys.platform == "linux":
                call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            child(lambda: warden(limits, isolated, user))
        while True:  # as the first process of a namespace, we also reap orphans
            ended, status = os.wait()
            if ended == process:
                break
        code = os.waitstatus_to_exitcode(status)
        if code:
            return 0 if code == NO_MORE else code


def main() -> int:
    """Isolate as requested, report whether that worked, and serve."""
    limits, isolated = json.loads(sys.argv[1]), sys.argv[2] == "namespaces"
    for name in COMMON.split():
        importlib.import_module(name)
    sys.set_int_max_str_digits(0)  # integers may be as long as time and memory allow, even when printed
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
