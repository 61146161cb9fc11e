"""Run model-written Python where it can do no harm, and judge it where it cannot cheat.

The isolation depends on the machine (`level`):

namespaces  Linux with namespaces and a system call filter, as root or as a user who may create them. The answer runs
            as nobody, in its own root that holds only Python's standard library, without network, environment,
            descriptors, or a view of other processes. Processor time, memory, files, processes and total time are
            limited. When the time is up, everything it started ends with it, and what could outlive it (keys, shared
            memory, queues) is denied (`walls.py`).
process     Elsewhere: a separate process with the same limits and no environment or descriptors. It can read what
            its user can read and, except for Linux's filter, reach the network; as root it becomes nobody first.
none        No POSIX: nothing is run.

Model-written code is run with `namespaces` or not at all, unless the owner of the machine sets
TACG_ISOLATION=process, or the task allows it: pocket-code, which is for trying decoders anywhere with the built-in
model, accepts `process` if there is nothing better.

At either level the answer cannot reach the verdict: tests run in another process (`child.py`), and an answer can only
return plain data. So tests cannot see some things: changes that an answer makes to its arguments, the identity of
objects, comparisons defined by its own classes. What remains possible: to be right for the wrong reason, such as a
table of expected values; to use `processes` times `memory` for as long as the clock runs; and to exploit holes in the
kernel, which only a virtual machine would prevent.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tacg.errors import TacgError, unknown
from tacg.sandbox.helper import Helper, Helpers

LEVELS = {
    "namespaces": "own root, processes and network; no privileges; limits on time, memory, files and processes",
    "process": "limits on time, memory, files and processes; it can read what its user can read",
    "none": "model-written code cannot be run here",
}
ASKED = "TACG_ISOLATION"
PATIENCE = 30  # seconds that a child may take beyond a job's time before it is given up


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What an answer may use: seconds of CPU and wall time, bytes of memory (per process), of files, of a reply.

    The tests' process has the same limits, so that no value keeps it busy for longer.

    CPU time is the limit that normally counts, so that a busy machine judges like an idle one; wall time stops answers
    that sleep. The slowest reference solution of the public sets takes 2.5 CPU seconds.
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
    setup      run before the tests, in the same namespace
    functions  names that refer to the answer, even if the setup or Python defines them
    modules    modules of the standard library may be used without an import
    """

    answer: str
    tests: tuple[str, ...]
    setup: str = ""
    functions: tuple[str, ...] = ()
    modules: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which tests pass; `why` describes what was wrong with the first that failed."""

    passed: tuple[bool, ...]
    why: str

    @property
    def share(self) -> float:
        """The share of tests that pass."""
        return sum(self.passed) / len(self.passed)


def run(trial: Trial, limits: ResourceLimits | None = None, least: str = "namespaces") -> Verdict:
    """Test an answer. Raises if this machine cannot isolate it as required; a bad answer never raises.

    least  the weakest acceptable isolation; the best available is used
    """
    limits = limits or ResourceLimits()
    asked = wanted(least)
    refuse_weaker(asked)
    with _children.borrow((limits, asked if ASKED in os.environ else level())) as child:
        reply = child.ask(asdict(trial), limits.wall + PATIENCE)
    passed = reply["passed"] or [False] * len(trial.tests)
    return Verdict(tuple(bool(each) for each in passed), str(reply["why"]))


def wanted(least: str = "namespaces") -> str:
    """The required isolation: set by the owner of the machine, otherwise by the task."""
    name = os.environ.get(ASKED, least)
    if name not in ("namespaces", "process"):
        raise unknown(f"isolation in {ASKED}", name, ("namespaces", "process"))
    return name


def refuse_weaker(asked: str) -> None:
    """Raise if this machine's isolation is weaker than required."""
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
            _start((ResourceLimits(), name)).close()
            return name, "; ".join(reasons)
        except TacgError as error:
            reasons.append(str(error))
    return "none", "; ".join(reasons)


def _start(kind: tuple[ResourceLimits, str]) -> Helper:
    """Start a child and wait until it is ready; it has no environment, and no module of ours is on its path."""
    limits, isolation = kind
    python = getattr(sys, "_base_executable", "") or sys.executable  # a virtual environment's is only a link
    program = Path(__file__).with_name("child.py")
    child = Helper([python, "-I", "-S", str(program), json.dumps(asdict(limits)), isolation], env={}, cwd="/")
    try:
        greeting = child.hear(PATIENCE)
    except (EOFError, TimeoutError):
        greeting = {"ready": False, "why": "the child does not start"}
    if not greeting["ready"]:
        child.close()
        raise TacgError(f"no {isolation}: {greeting['why']}")
    return child


_children = Helpers(_start)
