"""Run model-written Python in a process of its own, with limits on time, memory, files and output.

This contains accidents: endless loops, floods of output, runaway memory. It is not a wall against an attacker.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from typing import Any

SECONDS = 5
MEMORY = 512 << 20
OUTPUT = 1 << 20

# Runs in the child. The verdict travels on a descriptor of its own, so that prints of the tested code cannot fake it.
_HARNESS = """
import json, os, sys
job = json.loads(sys.stdin.read())
verdict = os.fdopen(os.dup(1), "w")
null = os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1)
os.dup2(null, 2)
def results(source):
    space = {}
    exec(source, space)
    found = []
    for each in job["inputs"]:
        try:
            found.append(["value", space[job["function"]](list(each))])
        except Exception as error:
            found.append(["error", type(error).__name__])
    return found
wanted = results(job["reference"])
try:
    got = results(job["answer"])
except BaseException:
    got = [None] * len(wanted)
same = sum(a == b and type(a[1]) is type(b[1]) for a, b in zip(wanted, got) if b)
verdict.write(json.dumps(same / len(wanted)))
verdict.flush()
os._exit(0)
"""


def run_tests(answer: str, reference: str, function: str, inputs: list[list[int]]) -> float:
    """The share of inputs on which `answer` returns what `reference` returns; 0 if it does not end well."""
    job = json.dumps({"answer": answer, "reference": reference, "function": function, "inputs": inputs})
    with tempfile.TemporaryDirectory(prefix="tacg-run-") as room:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _HARNESS],
                input=job,
                capture_output=True,
                text=True,
                cwd=room,
                env={},
                timeout=SECONDS,
                check=False,
                start_new_session=True,
                preexec_fn=_limit,
            )
        except subprocess.TimeoutExpired:
            return 0.0
    return _share(done.stdout)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT, OUTPUT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _share(text: str) -> float:
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError:
        return 0.0
    return float(value) if isinstance(value, int | float) else 0.0
