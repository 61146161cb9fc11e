"""The other side of the sandbox: a program of its own, started by `sandbox.py` with nothing but pipes.

    keeper ── server ── warden ─┬─ judge     holds the tests and what they expect; never runs the answer
                                └─ worker    runs the answer; knows nothing but the answer's own source

The keeper makes namespaces and an empty root, once; the server forks a warden for each job. The worker is forked
before the judge reads the job, so that no test is in its memory. A test that calls a function of the answer sends the
arguments over a pipe, and what comes back is plain data (`pack`, `unpack`): there is nothing in the judge's process
that an answer could patch, print to or leave. The warden keeps the time and ends whatever is left.

Only the standard library is used, and nothing of this package: this file is run by its path.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

# What answers import often: loaded once, shared by every fork.
COMMON = "re string itertools functools collections heapq bisect operator statistics copy datetime typing"
COMMON += " hashlib cmath array dataclasses enum abc queue textwrap unicodedata calendar types numbers"

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38

BOX = "/proc"  # where the new root is put together: every Linux has the directory, and nothing we need is in it
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store")
ROOM = "/tmp"  # the only place an answer may write to
NO_MORE = 3  # exit status of a judge that found no job
UID_CEILING = 1 << 30  # users below it that nobody has: processes are counted by user, so a keeper takes two of its own


# --- isolation -------------------------------------------------------------------------------------------------------


def call(name: str, *args: Any) -> None:
    """A call of the C library that must succeed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode() or None)


def enter_namespaces() -> None:
    """Leave the network, the mounts, the shared memory and the processes of this machine behind."""
    user = os.geteuid()
    group = os.getegid()
    flags = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
    call("unshare", flags if user == 0 else flags | NEWUSER)
    if user != 0:  # inside we keep our own number, but may mount
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def build_root() -> None:
    """An empty root with Python's library, the system's libraries and /dev/null, all read-only; then make it ours.

    A change of root, unlike a pivot, also keeps what runs inside from making user namespaces of its own.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("room", BOX, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.makedirs(BOX + ROOM)
    os.mkdir(BOX + "/dev")
    open(BOX + "/dev/null", "w").close()
    mount("/dev/null", BOX + "/dev/null", None, MS_BIND)
    for path in sorted({*LIBRARIES, *(each for each in sys.path if os.path.isdir(each))}):
        inside = BOX + path
        if path in LIBRARIES and os.path.islink(path):
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            os.symlink(os.readlink(path), inside)
        elif os.path.isdir(path) and not os.path.isdir(inside):
            os.makedirs(inside)
            mount(path, inside, None, MS_BIND | MS_REC)
            held = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | 8 | 1024 | 2048)  # an inherited mount keeps these
            mount("none", inside, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | held)
    mount("none", BOX, None, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.chroot(BOX)
    os.chdir("/")


def spare_user() -> int:
    """Of two users that nobody is, the first: near the top of those that there are, which in a container may be few."""
    if os.geteuid() != 0:
        return os.geteuid()
    table = Path("/proc/self/uid_map")
    ranges = [line.split() for line in table.read_text(encoding="ascii").splitlines()] if table.exists() else []
    top = max((int(first) + int(count) for first, _, count in ranges), default=1 << 16)
    if top < 1 << 15:
        raise OSError("root is alone here, there is no other user to become")
    return min(top, UID_CEILING) - 2 - 2 * (os.getpid() % (1 << 12))


def rehearse(limits: dict[str, int], user: int) -> None:
    """Raise if rights cannot be dropped: found out now, it is not mistaken for an answer that fails."""
    if (process := os.fork()) == 0:
        child(lambda: drop(limits, user))
    if os.waitpid(process, 0)[1] != 0:
        raise OSError("rights cannot be dropped")


def drop(limits: dict[str, int], user: int) -> None:
    """Become nobody, for good, within limits."""
    sizes = [(resource.RLIMIT_CPU, limits["cpu"]), (resource.RLIMIT_FSIZE, limits["file"])]
    sizes += [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 64)]
    sizes += [(resource.RLIMIT_NPROC, limits["processes"]), (resource.RLIMIT_AS, limits["memory"])]
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if sys.platform == "linux":
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        call("capset", struct.pack("II", 0x20080522, 0), bytes(24))  # no capability, not even in our own namespaces
        call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)  # no other process of this user may look into this one
    for kind, size in sizes:
        try:
            resource.setrlimit(kind, (size, size))
        except ValueError:
            if sys.platform == "linux":  # others lack some: macOS has no limit on memory
                raise


def keep_only(*kept: int) -> None:
    """Close every descriptor but these; input and output become the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    for each in range(3):
        if each not in kept:
            os.dup2(null, each)
    inherited = sorted({2, *kept})
    for low, high in zip(inherited, [*inherited[1:], 4096], strict=True):
        os.closerange(max(low + 1, 3), high)


# --- plain data over pipes -------------------------------------------------------------------------------------------

PLAIN = (bool, int, float, str)
TEXTS: dict[str, Any] = {"complex": complex, "Decimal": Decimal, "Fraction": Fraction}
ITEMS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "iterator": iter}


class Foreign:
    """In the judge: something of the answer's that is not plain data. It is true or false, and can be passed back."""

    def __init__(self, number: int, truth: bool) -> None:
        self.number, self.truth = number, truth

    def __bool__(self) -> bool:
        return self.truth


def pack(value: Any, objects: list[Any] | None = None) -> Any:
    """A value as JSON can hold it. What is not plain data goes into `objects`, and its place there is sent."""
    if value is None or type(value) in PLAIN:
        return value
    for plain in PLAIN:
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, Foreign):
        return {"foreign": value.number, "truth": value.truth}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[pack(key, objects), pack(each, objects)] for key, each in value.items()]}
    for name, kind in TEXTS.items():
        if isinstance(value, kind):
            return {name: str(value)}
    for name in ("list", "tuple", "set", "frozenset"):
        if isinstance(value, ITEMS[name]):
            return {name: [pack(each, objects) for each in value]}
    if objects is None:
        raise TypeError(f"a test passes {type(value).__name__}, which is not plain data")
    if hasattr(type(value), "__iter__"):  # a generator, a view, a range: its items are what can be compared
        return {"iterator": [pack(each, objects) for each in value]}
    objects.append(value)
    return {"foreign": len(objects) - 1, "truth": bool(value)}


def unpack(data: Any, objects: list[Any] | None = None) -> Any:
    """The value that `pack` sent. Unknown shapes raise; nothing is ever run."""
    if not isinstance(data, dict):
        return data
    name = next(iter(data))
    if name == "foreign":
        return Foreign(int(data[name]), bool(data["truth"])) if objects is None else objects[data[name]]
    if name == "bytes":
        return bytes.fromhex(data[name])
    if name == "dict":
        return {unpack(key, objects): unpack(value, objects) for key, value in data[name]}
    if name in TEXTS:
        return TEXTS[name](data[name])
    return ITEMS[name]([unpack(each, objects) for each in data[name]])


def send(descriptor: int, document: Any) -> None:
    """Write a document with its length in front."""
    body = json.dumps(document).encode()
    body = struct.pack("!Q", len(body)) + body
    while body:
        body = body[os.write(descriptor, body) :]


def receive(descriptor: int, most: int = 1 << 30) -> Any:
    """Read what `send` wrote; EOFError if the other side is gone or says more than `most` bytes."""
    (length,) = struct.unpack("!Q", _exactly(descriptor, 8))
    if length > most:
        raise EOFError(f"more than {most} bytes")
    return json.loads(_exactly(descriptor, length))


def _exactly(descriptor: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(descriptor, min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        parts += part
    return bytes(parts)


# --- the worker: runs the answer -------------------------------------------------------------------------------------


def work(inbox: int, outbox: int) -> None:
    """Run the answer's source, then call its functions as asked, for as long as somebody asks."""
    space: dict[str, Any] = {"__name__": "answer"}
    objects: list[Any] = []
    source = receive(inbox)
    _reply(outbox, lambda: exec(compile(source, "answer", "exec"), space), objects)
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
        told = {"error": type(error).__name__, "text": str(error)[:200]}
    send(outbox, told)


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
    """The value of a reply, or the error that it tells of: a built-in one if it is, so that a test may expect it."""
    if "error" not in reply:
        return unpack(reply["value"])
    kind: Any = getattr(builtins, str(reply["error"]), None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    raise kind(f"the answer raises {reply['error']}: {reply['text']}")


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
    return f"{type(error).__name__}: {error}"[:300]


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
        call("unshare", NEWNS)
        owner = f"uid={user},gid={user}," if os.geteuid() == 0 else ""
        options = f"{owner}size={limits['file']},nr_inodes=1000,mode=700"
        mount("room", ROOM, "tmpfs", MS_NOSUID | MS_NODEV, options)
        return ROOM
    room = tempfile.mkdtemp(prefix="tacg-room-")
    if os.geteuid() == 0:
        os.chown(room, user, user)
    return room


def child(action: Any) -> NoReturn:
    """The rest of a forked process: whatever happens, it ends here."""
    code = 1
    with contextlib.suppress(BaseException):
        code = action() or 0
    os._exit(code)


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
    drop({**limits, "cpu": limits["wall"]}, user)
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
    try:
        user = spare_user()
        rehearse(limits, user)
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
