"""A long run of the server on this machine's loopback, with clients of every kind. Is every answer right, and does
memory or any other resource grow?

Clients send requests, whole or streamed, read slowly, disconnect halfway, or send invalid requests. Halfway through,
the server is stopped and started again on the same port while the clients go on. The expected answers are decoded
beforehand, without a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tacg.bench.asks import ClientConnection, ClientRequest, Gone, Got, workload
from tacg.bench.serve import start
from tacg.errors import TacgError
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from tacg.llm import LLM
    from tacg.records.rows import ResultRow

CLIENTS, MOST = 12, 200_000  # concurrent clients; maximum number of requests
FAULTS = ("disconnect", "cancel", "slow_reader", "bad_body", "cut_body", "half_open")
SHARE = 0.35  # share of client actions that are faults
PATIENCE = 120.0  # seconds to wait for one answer
LEAVING = 503


@dataclass
class Life:
    """One run of the server, and what was observed."""

    process: subprocess.Popen[str]
    requests: int = 0
    right: int = 0
    different: int = 0
    broken: int = 0  # connections that ended although the server was not told to stop
    interrupted: int = 0  # requests hit by the restart: refused, or ended with an error that says so
    statuses: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[float, int, int]] = field(default_factory=list)  # MB resident, descriptors, threads
    leaving: bool = False
    rows_left: int = -1

    def sample(self) -> None:
        """Sample the process's resources from outside."""
        there = Path(f"/proc/{self.process.pid}")
        with contextlib.suppress(OSError, StopIteration):  # it may be ending
            facts = dict(line.split(":", 1) for line in (there / "status").read_text().splitlines())
            resident = int(facts["VmRSS"].split()[0]) / 1024
            self.samples.append((resident, len(list((there / "fd").iterdir())), int(facts["Threads"])))

    def growth(self) -> dict[str, float]:
        """Medians under load: of the second fifth of the time, after the initial growth, and of the last fifth."""
        if len(self.samples) < 10:
            raise TacgError(f"The soak was too short: only {len(self.samples)} samples of the server. Raise --minutes.")
        fifth = len(self.samples) // 5
        found: dict[str, float] = {}
        for place, name in enumerate(("rss_mb", "descriptors", "threads")):
            early = statistics.median(each[place] for each in self.samples[fifth : 2 * fifth])
            late = statistics.median(each[place] for each in self.samples[-fifth:])
            found |= {name: late, f"{name}_growth": late - early}
        return found

    def row(self) -> ResultRow:
        """The summary row."""
        return {
            "requests": self.requests, "right": self.right, "different": self.different,
            "faults": self.faults.total(), **{name: self.faults[name] for name in FAULTS},
            "status_5xx": sum(count for status, count in self.statuses.items() if status >= 500),
            "broken": self.broken, "interrupted": self.interrupted, "rows_left": self.rows_left,
            "exit_code": self.process.returncode, **self.growth(),
        }  # fmt: skip


def measure(
    llm: LLM, model: str, minutes: float, clients: int = CLIENTS, asks: Sequence[ClientRequest] = (), seed: int = 0
) -> Iterator[ResultRow]:
    """One row for the server before its restart, and one for after it."""
    if not Path("/proc/self/fd").is_dir():
        raise TacgError("A soak watches the server through /proc, which this system does not have; run it on Linux.")
    soak = Soak(model, asks or workload(llm, seed=seed), minutes * 60, seed)
    asyncio.run(soak.run(clients))
    facts = {"bench": "soak", "model": model, "clients": clients, "minutes": minutes, "seed": seed}
    for number, life in enumerate(soak.lives, 1):
        yield facts | {"life": number} | life.row() | surroundings()


class Soak:
    """The server, the clients and the observer, all running at once."""

    def __init__(self, model: str, asks: Sequence[ClientRequest], seconds: float, seed: int) -> None:
        self._model, self._asks, self._seconds, self._seed = model, asks, seconds, seed
        self._up = asyncio.Event()
        self._port, self._count = 0, 0
        self._until = float("inf")
        self.lives: list[Life] = []

    async def run(self, clients: int) -> None:
        """Run from the first start to the last exit."""
        try:
            await self._start()
            looks = asyncio.create_task(self._look())
            chances = [random.Random(f"{self._seed}/{each}") for each in range(clients)]
            crowd = [asyncio.create_task(self._client(each)) for each in chances]
            await asyncio.sleep(self._seconds / 2)
            await self._end()
            await self._start()
            self._until = time.monotonic() + self._seconds / 2
            await asyncio.gather(*crowd)
            looks.cancel()
            self.lives[-1].rows_left = await self._rows_left()
            await self._end()
        finally:
            for life in self.lives:
                with life.process:  # also closes its pipe
                    if life.process.poll() is None:
                        life.process.kill()

    # -- the server --------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        process, url = await asyncio.to_thread(start, self._model, self._port)
        self._port = urlsplit(url).port or 0
        self.lives.append(Life(process))
        self._up.set()

    async def _end(self) -> None:
        life = self.lives[-1]
        life.leaving = True
        self._up.clear()
        life.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(life.process.wait, 120)

    async def _look(self) -> None:
        while True:
            if not self.lives[-1].leaving:
                self.lives[-1].sample()
            await asyncio.sleep(min(2.0, self._seconds / 60))

    async def _rows_left(self) -> int:
        """Rows that are still being decoded shortly after all clients are gone."""
        left = -1
        for _ in range(100):
            async with ClientConnection(self._port) as line:
                got = await line.ask(ClientRequest("GET", "/metrics", b"", 200))
            values = dict(each.rsplit(" ", 1) for each in got.text.splitlines() if not each.startswith("#"))
            left = int(float(values["tacg_rows_running"]) + float(values["tacg_rows_waiting"]))
            if not left:
                break
            await asyncio.sleep(0.1)
        return left

    # -- a client ----------------------------------------------------------------------------------------------------

    async def _client(self, chance: random.Random) -> None:
        while time.monotonic() < self._until and self._count < MOST:
            life = self.lives[-1]
            self._count += 1
            fault = chance.choice(FAULTS) if chance.random() < SHARE else ""
            ask = chance.choice([each for each in self._asks if each.good is not (fault == "bad_body")])
            try:
                async with asyncio.timeout(PATIENCE), ClientConnection(self._port) as line:
                    await self._visit(life, line, ask, fault, chance)
            except (OSError, EOFError, Gone):
                if not life.leaving:
                    life.broken += 1
                    continue
                life.interrupted += 1
                await self._up.wait()
            if life.leaving:
                await asyncio.sleep(0.2)  # then try again

    async def _visit(
        self, life: Life, line: ClientConnection, ask: ClientRequest, fault: str, chance: random.Random
    ) -> None:
        life.faults[fault] += bool(fault)
        if fault == "half_open":
            await line.send(ask.content()[: chance.randrange(1, 60)])
            await asyncio.sleep(chance.random())
        elif fault == "cut_body":
            await line.send(ask.content()[:-1])
        elif fault == "cancel":
            await line.send(ask.content())
            await asyncio.sleep(chance.random() / 2)
        elif fault == "disconnect":
            await line.send(ask.content())
            await line.some()
        else:
            got = await line.ask(ask, pause=0.02 if fault == "slow_reader" else 0.0)
            self._judge(life, ask, got)

    def _judge(self, life: Life, ask: ClientRequest, got: Got) -> None:
        if life.leaving and (got.status == LEAVING or "shutting_down" in got.text):
            life.interrupted += 1
            return
        life.requests += 1
        life.statuses[got.status] += 1
        if got.status == ask.status and (not ask.good or ask.answer(got.text) == ask.wanted):
            life.right += 1
        else:
            life.different += 1


def passed(rows: Sequence[ResultRow]) -> bool:
    """Whether no answer was wrong or lost. Growth is left to the reader to judge."""
    return not any(
        row[name] for row in rows for name in ("different", "status_5xx", "broken", "exit_code")
    ) and not rows[-1]["rows_left"]  # fmt: skip


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One line per run of the server."""
    columns = (
        "life", "requests", "right", "different", "faults", "5xx", "broken", "at the restart", "exit",
        "MB (growth)", "descriptors", "threads",
    )  # fmt: skip
    lines = [
        (
            str(row["life"]), str(row["requests"]), str(row["right"]), str(row["different"]), str(row["faults"]),
            str(row["status_5xx"]), str(row["broken"]), str(row["interrupted"]), str(row["exit_code"]),
            *(f"{row[name]:.0f} ({row[f'{name}_growth']:+.0f})" for name in ("rss_mb", "descriptors", "threads")),
        )
        for row in rows
    ]  # fmt: skip
    faults = tuple((name, *(str(row[name]) for row in rows)) for name in FAULTS)
    title = f"{rows[0]['clients']} clients for {rows[0]['minutes']:g} minutes, with a restart in the middle"
    return [
        Table(title, columns, tuple(lines)),
        Table("Faults injected", ("fault", *(f"life {row['life']}" for row in rows)), faults),
    ]
