"""Several processes at once, whole `tacg` commands or calls of a function: faster than threads on few cores."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tacg.errors import TacgError
from tacg.records.rows import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

# Settings of glibc: keep freed memory instead of returning it after every step, and use large pages. pocket's steps
# take a quarter less time.
MEMORY = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in {"hugetlb": 1, "mmap_threshold": 1 << 32, "trim_threshold": 1 << 34, "top_pad": 1 << 26}.items()
)


def run_apart(commands: Mapping[str, Sequence[str]], jobs: int, rows: Path) -> None:
    """Run commands by name, `jobs` at a time. All of them append to the file `rows`, which shows how far they are."""
    Ledger(rows)  # repairs a cut-off last line before other processes read the file
    jobs = min(jobs, len(commands))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # otherwise the child processes would go on alone
    waiting, running = dict(commands), dict[str, Child]()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} rows"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task("", total=None)
        try:
            while waiting or running:
                for name in list(waiting)[: jobs - len(running)]:
                    running[name] = Child(waiting.pop(name), jobs)
                time.sleep(0.5)
                bar.update(shown, description=", ".join(running), completed=count_lines(rows))
                for name in [name for name, child in running.items() if child.process.poll() is not None]:
                    running.pop(name).check(name)
        finally:
            for child in running.values():
                child.stop()
            signal.signal(signal.SIGTERM, before)


class Child:
    """A running command, with its share of the cores. Its output is kept in case it fails."""

    def __init__(self, words: Sequence[str], jobs: int) -> None:
        surroundings = {**_surroundings(jobs), **os.environ}
        self.said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (read after the child has ended)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tacg", *words], stdout=self.said, stderr=self.said, env=surroundings
        )

    def check(self, name: str) -> None:
        """Raise if it failed."""
        with self.said as file:
            file.seek(0)
            said = file.read().decode(errors="replace").strip()
        if self.process.returncode:
            raise TacgError(f"The process for {name} ended with {self.process.returncode}. It said: {said[-2000:]}")

    def stop(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait()
        self.said.close()


def _surroundings(jobs: int) -> dict[str, str]:
    """What a process of several finds in its environment: its share of the cores, and how to use memory."""
    share = str(max(1, (os.cpu_count() or 1) // jobs))
    return {"GLIBC_TUNABLES": MEMORY, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": share}


class Workers:
    """Processes in which each one makes its own object, such as a loaded model; calls go to whichever is free."""

    def __init__(self, make: Callable[[], object], jobs: int) -> None:
        for name, value in _surroundings(jobs).items():
            os.environ.setdefault(name, value)  # read when a process starts
        self._pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (make,))

    def ask(self, name: str, *words: Any) -> Any:
        """The object's attribute of this name, or what its method returns."""
        return self._pool.submit(_answer, name, words).result()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *why: object) -> None:
        self._pool.shutdown(cancel_futures=True)


_object: list[Callable[[], object]] = []  # in a worker: how to get its object, which is made once


def _begin(make: Callable[[], object]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _object.append(functools.cache(make))  # made in the first call, which can say what is wrong


def _end_with_parent() -> None:
    """A worker waits for calls forever, also when the process that sends them was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(name: str, words: Sequence[Any]) -> Any:
    found = getattr(_object[0](), name)
    return found(*words) if callable(found) else found


def count_lines(path: Path) -> int:
    """0 if there is no file yet."""
    return path.read_bytes().count(b"\n") if path.is_file() else 0
