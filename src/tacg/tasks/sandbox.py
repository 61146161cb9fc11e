"""Run model-written Python where it can do no harm, and judge it where it cannot lie.

What isolation there is depends on the machine (`level`):

namespaces  Linux with namespaces and a filter of system calls, as root or as a user who may make them. The answer runs
            as nobody, in a root of its own that holds Python's standard library and nothing else, without network,
            environment, descriptors, or sight of any other process; limits on processor time, memory, files, processes
            and the whole duration; when its time is up, everything it started ends with it, and what could outlive it
            (keys, shared memory, queues) is denied (`walls.py`).
process     Elsewhere: a process of its own with the same limits and no environment or descriptors. It can read what
            its user can read and, but for Linux's filter, reach the network; as root it becomes nobody first.
none        No POSIX: nothing is run.

Model-written code is run with `namespaces` or not at all, unless the owner of the machine says otherwise,
TACG_ISOLATION=process, or a task does: pocket-code, which is there to try decoders anywhere with the built-in model, is
content with `process` where there is no more.

On either level the verdict is out of the answer's reach: tests run in another process (`keeper.py`), and all that
an answer can do is return plain data. Hence also what tests cannot see: a change that an answer makes to its arguments,
the identity of objects, a comparison that its own classes define. What remains possible is to be right for the wrong
reason, such as a table of the expected values; to use `processes` times `memory` for as long as the clock runs; and
holes in the kernel, which a virtual machine would keep out and this does not.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tacg.errors import TacgError, unknown
from tacg.tasks.helper import Helper, Helpers

LEVELS = {
    "namespaces": "own root, processes and network; nobody's rights; limits on time, memory, files and processes",
    "process": "limits on time, memory, files and processes; it can read what its user can read",
    "none": "model-written code cannot be run here",
}
ASKED = "TACG_ISOLATION"
PATIENCE = 30  # seconds a keeper may take beyond a job's time before we give it up


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer may use: seconds of processor and clock, bytes of memory (a process), of files, of a reply.

    The tests' process has the same, so that no value keeps it busy for longer.

    The processor's seconds are the limit that counts, so that a busy machine judges like an idle one; the clock's are
    for those who sleep. The slowest reference of the public sets takes 2.5 of them.
    """

    cpu: int = 10
    wall: int = 120
    memory: int = 512 << 20
    file: int = 16 << 20
    processes: int = 8
    output: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Trial:
    """An answer and the tests it must pass.

    answer     source of the answer
    tests      each is run; it passes if it raises nothing
    setup      run before the tests, beside them
    functions  names that mean the answer's, even where the setup or Python has them
    modules    a module of the standard library may be used by its name without an import
    """

    answer: str
    tests: tuple[str, ...]
    setup: str = ""
    functions: tuple[str, ...] = ()
    modules: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which tests pass; `why` says what was wrong with the first that does not."""

    passed: tuple[bool, ...]
    why: str

    @property
    def share(self) -> float:
        """The share of tests that pass."""
        return sum(self.passed) / len(self.passed)


def run(trial: Trial, limits: Limits | None = None, least: str = "namespaces") -> Verdict:
    """Try an answer. Raises if this machine cannot isolate it as asked; a bad answer never raises.

    least  the weakest isolation that will do; the best there is is used
    """
    limits = limits or Limits()
    asked = wanted(least)
    refuse_weaker(asked)
    with _keepers.borrow((limits, asked if ASKED in os.environ else level())) as keeper:
        told = keeper.ask(asdict(trial), limits.wall + PATIENCE)
    passed = told["passed"] or [False] * len(trial.tests)
    return Verdict(tuple(bool(each) for each in passed), str(told["why"]))


def wanted(least: str = "namespaces") -> str:
    """The isolation that is asked for: by the owner of the machine, else by the task."""
    name = os.environ.get(ASKED, least)
    if name not in ("namespaces", "process"):
        raise unknown(f"isolation in {ASKED}", name, ("namespaces", "process"))
    return name


def refuse_weaker(asked: str) -> None:
    """Raise if this machine has less than what is asked for."""
    have, why = probe()
    if list(LEVELS).index(have) > list(LEVELS).index(asked):
        step = "Run on Linux with user namespaces allowed"
        step += "" if have == "none" else f", or accept the risk: TACG_ISOLATION={have}"
        raise TacgError(f"Model-written code needs isolation {asked!r}; this machine has {have!r} ({why}). {step}.")


def level() -> str:
    """The best isolation of this machine."""
    return probe()[0]


@functools.cache
def probe() -> tuple[str, str]:
    """The best isolation of this machine, and why there is no better one."""
    if os.name != "posix":
        return "none", f"{sys.platform} has no POSIX processes"
    reasons: list[str] = []
    for name in ("namespaces", "process"):
        try:
            _start((Limits(), name)).close()
            return name, "; ".join(reasons)
        except TacgError as error:
            reasons.append(str(error))
    return "none", "; ".join(reasons)


def _start(kind: tuple[Limits, str]) -> Helper:
    """A keeper that is ready; it has no environment, and no module of ours is on its path."""
    limits, isolation = kind
    python = getattr(sys, "_base_executable", "") or sys.executable  # a virtual environment's is only a link to it
    program = Path(__file__).with_name("keeper.py")
    keeper = Helper([python, "-I", "-S", str(program), json.dumps(asdict(limits)), isolation], env={}, cwd="/")
    try:
        told = keeper.hear(PATIENCE)
    except (EOFError, TimeoutError):
        told = {"ready": False, "why": "the keeper does not start"}
    if not told["ready"]:
        keeper.close()
        raise TacgError(f"no {isolation}: {told['why']}")
    return keeper


_keepers = Helpers(_start)
