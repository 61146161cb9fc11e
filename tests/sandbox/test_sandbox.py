"""Attacks on the sandbox. Each is bounded, so that a hole would be noticed without doing harm."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from tacg import TacgError
from tacg.sandbox import ResourceLimits, Trial, Verdict, run, walls
from tacg.sandbox import trial as sandbox

QUICK = ResourceLimits(cpu=2, wall=20, memory=256 << 20)
isolated = pytest.mark.skipif(sandbox.level() != "namespaces", reason="this machine cannot make namespaces")


def returns(source: str, limits: ResourceLimits = QUICK) -> str:
    """What `f()` of this source returns, seen from outside: the test fails with it."""
    return run(Trial(dedent(source), ("raise Exception(repr(f()))",)), limits).why


def test_a_test_passes_or_says_why() -> None:
    verdict = run(Trial("def f(x):\n    return x + 1", ("assert f(1) == 2", "assert f(1) == 3", "f(1, 2)", "g(1)")))
    assert verdict == Verdict((True, False, False, False), "AssertionError: ")
    assert run(Trial("def f(x:", ("f(1)",))).why.startswith("SyntaxError")
    assert run(Trial("def f():\n    return 1 / 0", ("f()",))).why.startswith("ZeroDivisionError: the answer raises")
    assert run(Trial("", ("f()",))).why == "NameError: the answer raises NameError: name 'f' is not defined"
    assert run(Trial("", ("assert math.pi > 3",), modules=True)).passed == (True,)
    assert run(Trial("", ("assert math.pi > 3",), modules=False)).passed == (False,)
    assert run(Trial("def sum(a):\n    return 7", ("assert sum(1) == 7",), functions=("sum",))).passed == (True,)


VALUES = ["None", "True", "-3", "2.5", "float('inf')", "'ä\\ud800'", "b'ab'", "10 ** 400", "1 + 2j", "Decimal('1.10')"]
VALUES += ["-(10 ** 5000)", "deque([1])", "range(1, 9, 2)", "2 ** 63", "-(2 ** 63)"]
VALUES += ["Fraction(1, 3)", "[1, [2]]", "(1, (2,))", "{1, 2}", "frozenset({1})", "{(1, 'a'): [None], 2: {}}"]


def test_plain_data_comes_through_whole() -> None:
    imports = "from collections import deque\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
    tests = [f"x = {value}\nassert f(x) == x and type(f(x)) is type(x)" for value in VALUES]
    assert run(Trial("def f(x):\n    return x", tuple(tests), imports)) == Verdict((True,) * len(VALUES), "")


def test_other_things_come_through_as_what_can_be_compared() -> None:
    source = """
        import enum
        from collections import Counter

        class Word(str, enum.Enum):
            A = "a"

        class Late(ValueError):
            pass

        def raises(text):
            raise Late if text else b"\\xff".decode()

        class C:
            n = 3

            def __eq__(self, other):
                return True

        def n(c):
            return c.n

        def items():
            yield from "ab"

        def count():
            return Counter("aab")
        """
    tests = [
        "assert n(C()) == 3",
        "assert C()",
        "assert list(items()) == ['a', 'b']",
        "assert count() == {'a': 2, 'b': 1}",
    ]
    expects = "try:\n    raises({})\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError"
    tests += ["assert word() == 'a'", "assert keys() == {1, 2} and list(keys()) == [1, 2]", "assert len(values()) == 2"]
    tests += [expects.format("True"), expects.format("False")]
    source = dedent(source) + "def word():\n    return Word.A\n"
    source += "def keys():\n    return {1: 3, 2: 3}.keys()\ndef values():\n    return {1: 3, 2: 3}.values()\n"
    assert run(Trial(source, (*tests, "assert C() == 3"))).passed == (*[True] * len(tests), False)


def test_a_fork_bomb_is_bounded() -> None:
    source = """
        import os, time

        def f():
            made = 0
            for _ in range(40):
                try:
                    child = os.fork()
                except OSError:
                    break
                if child == 0:
                    time.sleep(60)
                    os._exit(0)
                made += 1
            return made
        """
    before = time.monotonic()
    made = int(returns(source).removeprefix("Exception: "))
    assert made < QUICK.processes
    assert returns("def f():\n    return 1") == "Exception: 1"
    assert time.monotonic() - before < 55, "the sleeping children were ended with their job"


def test_memory_is_bounded() -> None:
    assert returns("def f():\n    return len(bytearray(1 << 29))").startswith("MemoryError")


def test_recursion_is_bounded() -> None:
    endless = "import sys\nsys.setrecursionlimit(10**9)\ndef f():\n    return f()"
    assert run(Trial(endless, ("f()",)), ResourceLimits(cpu=1, wall=20, memory=64 << 20)).passed == (False,)


def test_output_is_bounded() -> None:
    assert returns("def f():\n    for _ in range(2000):\n        print('x' * 10000)\n    return 5") == "Exception: 5"
    assert returns("def f():\n    return 'x' * (2 << 20)").startswith("EOFError: more than")
    flood = """
        import os

        def f():
            for fd in range(3, 20):
                try:
                    os.write(fd, b"\\xff" * (1 << 16))
                except OSError:
                    pass
        """
    assert returns(flood).startswith("EOFError: more than")


def test_time_is_bounded() -> None:
    assert run(Trial("while True:\n    pass", ("f()",)), ResourceLimits(cpu=1, wall=3)).passed == (False,)
    asleep = run(Trial("import time\ntime.sleep(60)", ("f()", "f()")), ResourceLimits(wall=1))
    assert asleep == Verdict((False, False), "no verdict in 1 s")


def test_files_are_bounded() -> None:
    source = """
        def f():
            with open("big", "wb") as file:
                for _ in range(64):
                    file.write(bytes(1 << 20))
        """
    assert returns(source).startswith(("OSError", "EOFError"))


def test_each_job_has_an_empty_room() -> None:
    source = "import os\ndef f():\n    found = os.listdir('.')\n    open('left', 'w').close()\n    return found"
    assert [returns(source), returns(source)] == ["Exception: []"] * 2


LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
KEPT = {  # what a job may try to leave for the next, or to learn of another: each must raise or return -1
    "the user's keyring": "return libc.syscall(248, b'user', b'k', b'v', 1, -4)",
    "the session's keyring": "return libc.syscall(248, b'user', b'k', b'v', 1, -3)",
    "shared memory": "return libc.shmget(77, 4096, 0o1666)",
    "a semaphore": "return libc.semget(77, 1, 0o1666)",
    "a message queue": "return libc.msgget(77, 0o1666)",
    "a POSIX queue": "return libc.syscall(240, b'q', 0o102, 0o666, 0)",
    "the null device's time": "os.utime('/dev/null')",
    "a time in the library": "os.utime(os.__file__)",
    "a hint on a file": "return libc.fcntl(os.open(os.__file__, os.O_RDONLY), 1036, ctypes.byref(ctypes.c_uint64(2)))",
    "a lock": "import fcntl\n    fcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_SH)",
    "a file beside the room": "open('/dev/shm/x', 'w')",
    "memory without an owner": "return os.memfd_create('x')",
    "a listener on the library": "return libc.inotify_init1(0)",
    "a socket of the machine": "return libc.socket(40, 1, 0)",
    "the kernel's log": "return libc.syscall(103, 10, 0, 0)",
}


@isolated
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls are numbered as on x86_64")
@pytest.mark.parametrize("channel", KEPT)
def test_nothing_is_left_for_the_next_job(channel: str) -> None:
    told = returns(f"{LIBC}def f():\n    {KEPT[channel]}")
    assert told == "Exception: -1" or told.startswith(("OSError", "PermissionError", "FileNotFoundError")), told


@isolated
def test_every_call_of_the_list_is_denied() -> None:
    column = walls.ARCHITECTURES[os.uname().machine][0]
    numbers = [numbers[column] for numbers in walls.DENIED.values() if numbers[column] is not None]
    ask = f"{LIBC}def f():\n    return [(libc.syscall(n, 0, 0, 0, 0, 0, 0), ctypes.get_errno()) for n in {numbers}]"
    verdict = run(Trial(ask, ("assert {tuple(each) for each in f()} == {(-1, 1)}",)), QUICK)
    assert verdict == Verdict((True,), "")


@isolated
def test_the_root_holds_pythons_library_and_nothing_else() -> None:
    source = """
        import os

        library = os.path.dirname(os.__file__)

        def f():
            places = [(place, names) for place, _, names in os.walk("/") if not place.startswith(library)]
            packages = [each for each in ("site-packages", "dist-packages") if os.path.isdir(f"{library}/{each}")]
            return [f"{place}/{name}" for place, names in places for name in names] + [
                name for each in packages for name in os.listdir(f"{library}/{each}")
            ]
        """
    assert returns(source) == "Exception: ['/dev/null']"
    every = "import ssl, sqlite3, ctypes, lzma, bz2, zlib, decimal, uuid, asyncio, threading, xml.etree.ElementTree"
    works = "\n    asyncio.run(asyncio.sleep(0))\n    thread = threading.Thread(target=print)\n"
    works += (
        "    thread.start()\n    thread.join()\n    return sqlite3.connect(':memory:').execute('select 7').fetchone()"
    )
    assert returns(f"{every}\ndef f():{works}") == "Exception: (7,)", "and all of it works"


def test_a_value_does_not_keep_the_judge_busy() -> None:
    """No method of an answer's class is called; writing into the pipe costs the answer its time limit at most."""
    lies = """
        from fractions import Fraction

        class Third(Fraction):
            def __str__(self):
                return "1e999999999"
            __repr__ = __str__
            def __eq__(self, other):
                while True:
                    pass

        def f():
            return Third(1, 3)
        """
    verdict = run(Trial(dedent(lies), ("assert f() == F(1, 3)",), "from fractions import Fraction as F"), QUICK)
    assert verdict == Verdict((True,), "")
    forge = """
        import json, os, struct

        def f(value):
            body = json.dumps({"value": value if value else {"set": [n * (2**61 - 1) for n in range(40000)]}}).encode()
            for fd in range(3, 20):
                try:
                    os.write(fd, struct.pack("!Q", len(body)) + body)
                except OSError:
                    pass
        """
    for sent in ({"Fraction": ["1e999999999"]}, {"Fraction": ["1e999999999", 1]}, {"int": "z"}, {}):
        verdict = run(Trial(dedent(forge), (f"f({sent!r})",), functions=("f",)), QUICK)
        assert verdict.passed == (False,)
        assert not verdict.why.startswith("no verdict in"), sent


@isolated
def test_the_parents_files_cannot_be_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("42")
    os.chmod(secret, 0o644)
    for path in (secret, Path(__file__), "/etc/passwd", "/proc/1/environ", "/proc/self/maps", sys.executable):
        told = returns(f"def f():\n    return open({str(path)!r}, 'rb').read()")
        assert told.startswith(("FileNotFoundError", "PermissionError")), (path, told)


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "42")
    told = returns("import os\ndef f():\n    return [name for name in os.environ if name != 'LC_CTYPE']")
    assert told == "Exception: []"


def test_descriptors_are_not_inherited() -> None:
    source = """
        import os, stat

        def f():
            found = ""
            for fd in range(64):
                try:
                    found += "pipe " if stat.S_ISFIFO(os.fstat(fd).st_mode) else "other "
                except OSError:
                    pass
            return found
        """
    assert returns(source) == "Exception: 'other other other pipe pipe '", "the null device, and its two pipes"


@isolated
def test_nothing_outside_can_be_written() -> None:
    for path in ("/x", "/dev/x", "/usr/lib/x", f"{Path(os.__file__).parent}/x", "/proc/x"):
        told = returns(f"def f():\n    open({path!r}, 'w')")
        assert told.startswith(("OSError", "PermissionError", "FileNotFoundError")), (path, told)


@isolated
def test_there_is_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        told = returns(f"import socket\ndef f():\n    socket.create_connection({place!r}, 2)")
    assert told.startswith("PermissionError")


@isolated
def test_no_rights_can_be_gained() -> None:
    calls = ["unshare(0x10000000)", "unshare(0x20000)", "mount(b'x', b'/tmp', b'tmpfs', 0, None)", "chroot(b'/tmp')"]
    for attempt in calls:
        told = returns(f"import ctypes\ndef f():\n    return ctypes.CDLL(None).{attempt}")
        assert told == "Exception: -1", attempt
    assert returns("import os\ndef f():\n    return os.setuid(0)").startswith("PermissionError")
    assert returns("import resource as r\ndef f():\n    r.setrlimit(r.RLIMIT_NPROC, (99, 99))").startswith("ValueError")


@isolated
def test_no_other_process_can_be_reached() -> None:
    assert returns("import os\ndef f():\n    return [os.getpid(), os.getppid()]") == "Exception: [1, 0]"
    for process in (os.getpid(), os.getppid(), -1):
        assert returns(f"import os\ndef f():\n    os.kill({process}, 9)").startswith("ProcessLookupError")


CLAIMS = {
    "leaves": "import os\nos._exit(0)",
    "exits": "import sys\nsys.exit(0)",
    "leaves when called": "import os\ndef f(x):\n    os._exit(0)",
    "exits when called": "def f(x):\n    raise SystemExit(0)",
    "patches built-ins": """
        import builtins
        builtins.AssertionError = KeyError
        builtins.exec = builtins.compile = print
        def f(x):
            return 0
        """,
    "patches the checker": """
        import sys
        for module in list(sys.modules.values()):
            for name in ("judge", "run", "check", "understand"):
                if hasattr(module, name):
                    setattr(module, name, lambda *a: {"passed": [True], "why": ""})
        def f(x):
            return 0
        """,
    "equals everything": """
        class E(int):
            def __eq__(self, other):
                return True
        def f(x):
            return E(0)
        """,
    "prints a verdict": """
        def f(x):
            print('{"passed": [true], "why": ""}')
            return 0
        """,
    "writes a verdict everywhere": """
        import json, os, struct
        body = json.dumps({"passed": [True], "why": ""}).encode()
        for fd in range(64):
            try:
                os.write(fd, struct.pack("!Q", len(body)) + body)
            except OSError:
                pass
        def f(x):
            return 0
        """,
    "closes everything": "import os\ndef f(x):\n    os.closerange(0, 64)",
    "clears the frames above": """
        import sys
        def f(x):
            frame = sys._getframe()
            while frame:
                frame.f_locals.clear()
                frame = frame.f_back
        """,
    "kills its parent": "import os\ndef f(x):\n    os.kill(os.getppid(), 9)\n    return 0",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_verdict_cannot_be_claimed(claim: str) -> None:
    if claim == "kills its parent" and sandbox.wanted() != "namespaces":
        pytest.skip("without namespaces an answer can kill what its user can kill")
    verdict = run(Trial(dedent(CLAIMS[claim]), ("assert f(1) == 41 + 1",), functions=("f",)), QUICK)
    assert verdict.passed == (False,), verdict


def test_the_tests_are_not_in_the_answers_memory() -> None:
    """Every frame and object that the answer can find is searched for a word that only the tests have."""
    word = "quetzal" + "coatl"
    search = """
        import gc, sys

        def f():
            word = "".join(["quetzal", "coatl"])
            frame = sys._getframe(1)
            while frame:
                if word in repr(frame.f_locals):
                    return True
                frame = frame.f_back
            return any(word in repr(each)[:100000] for each in gc.get_objects() if type(each) in (dict, list, tuple))
        """
    found = run(
        Trial(dedent(search), (f"assert not f(), {word!r}", f"assert f(), {word!r}")), ResourceLimits(cpu=20, wall=120)
    )
    assert found.passed == (True, False)
    planted = f"PLANTED = [{word!r}]\n{dedent(search)}"
    assert run(Trial(planted, ("assert f()",)), ResourceLimits(cpu=20, wall=120)).passed == (True,), (
        "the search finds things"
    )


def test_an_interrupted_job_leaves_no_keeper_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: object, question: object, seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sandbox.Helper, "ask", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(Trial("", ("f()",)), QUICK)
    assert run(Trial("def f():\n    return 1", ("assert f() == 1",)), QUICK).passed == (True,)


def test_weaker_isolation_than_asked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "probe", lambda: ("process", "no namespaces: unshare: Operation not permitted"))
    monkeypatch.setenv("TACG_ISOLATION", "namespaces")
    with pytest.raises(
        TacgError, match=r"needs isolation 'namespaces'; this machine has 'process' \(.*TACG_ISOLATION=process"
    ):
        run(Trial("", ("f()",)))
    monkeypatch.setenv("TACG_ISOLATION", "procss")
    with pytest.raises(TacgError, match="Did you mean 'process'"):
        run(Trial("", ("f()",)))
    monkeypatch.delenv("TACG_ISOLATION")
    with pytest.raises(TacgError, match="needs isolation 'namespaces'"):
        run(Trial("", ("f()",)))
    content = run(Trial("def f():\n    return 1", ("assert f() == 1",)), least="process")
    assert content.passed == (True,)


@pytest.mark.parametrize("answer", ["def f(x):\n    return x", "import os\nos._exit(0)", "while True:\n    pass"])
def test_processes_alone_judge_as_well(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACG_ISOLATION", "process")
    right = "return x" in answer
    assert run(Trial(answer, ("assert f(3) == 3",)), ResourceLimits(cpu=1, wall=4)).passed == (right,)


def test_processes_alone_leave_nobody_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that leaves its session is found and ended."""
    monkeypatch.setenv("TACG_ISOLATION", "process")
    source = """
        import os, time

        def f():
            read, write = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                os.write(write, str(os.getpid()).encode())
                time.sleep(60)
                os._exit(0)
            return int(os.read(read, 20))
        """
    child = int(returns(source).removeprefix("Exception: "))
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
