"""A fleet on a Ray cluster of two nodes with one core each, on this machine: the speed-up, and are the rows the same?

single    no cluster: one process, one thread; all other results files must equal its file, byte for byte
replicas  one, then two, then two of which one is killed halfway
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tacg.errors import TacgError
from tacg.experiments.evaluate import evaluate
from tacg.llm import load
from tacg.records.results import read_results
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table
from tacg.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tacg.records.rows import ResultRow
    from tacg.tasks import Task

POLICY = "tacg"


def measure(model: str, items: int, task: str = "pocket-sudoku") -> Iterator[ResultRow]:
    """One row each for the single process, one replica, two replicas, and two with a loss."""
    asked = get_task(task)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            single = _timed(load(model), asked, items, path / "single.jsonl")
        finally:
            torch.set_num_threads(threads)
        wanted, first = (path / "single.jsonl").read_bytes(), 0.0
        facts: ResultRow = {"bench": "fleet", "model": model, "task": task, "policy": POLICY, "items": items}
        yield _row(facts, 0, False, single, single, path / "single.jsonl", wanted)
        with two_nodes() as address:
            for replicas, killed in ((1, False), (2, False), (2, True)):
                file = path / f"{replicas}-{killed}.jsonl"
                seconds = _on_ray(model, asked, items, file, address, replicas, killed)
                first = first or seconds
                yield _row(facts, replicas, killed, seconds, first, file, wanted)


def _timed(decoder: Any, task: Task, items: int, out: Path, on_item: Any = None) -> float:
    began = time.perf_counter()
    evaluate(decoder, task, POLICY, n=items, out=out, on_item=on_item)
    return time.perf_counter() - began


def _on_ray(model: str, task: Task, items: int, out: Path, address: str, replicas: int, killed: bool) -> float:
    import ray

    from tacg.scale import Fleet

    fleet, seen = Fleet(model, address=address, replicas=replicas), 0

    def lose(_: object) -> None:
        nonlocal seen
        seen += 1
        if killed and seen == items // 2:
            threading.Thread(target=lambda: ray.kill(fleet.replicas[0], no_restart=False)).start()

    fleet.generate(["warm"] * replicas, POLICY, gen_length=8)
    seconds = _timed(fleet, task, items, out, lose)
    fleet.close()
    return seconds


def _row(
    facts: ResultRow, replicas: int, killed: bool, seconds: float, one: float, file: Path, wanted: bytes
) -> ResultRow:
    return facts | {
        "replicas": replicas, "killed": int(killed), "rows": len(read_results(file)[1]),
        "equal": file.read_bytes() == wanted, "seconds": seconds, "items_per_second": facts["items"] / seconds,
        "times_faster": one / seconds, "baseline": "one replica" if replicas else "itself", **surroundings(),
    }  # fmt: skip


@contextlib.contextmanager
def two_nodes() -> Iterator[str]:
    """Start a Ray cluster of two nodes with one core each; yields its address."""
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        raise TacgError("A fleet needs Ray: pip install 'tacg[ray]'.") from None
    shape = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**shape, "include_dashboard": False})
    try:
        cluster.add_node(**shape)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One line per row."""
    columns = ("replicas", "killed", "rows", "equal to one process", "s", "items per second", "over one replica")
    lines = [
        (
            str(row["replicas"] or "no cluster"), str(row["killed"]), str(row["rows"]), "yes" if row["equal"] else "NO",
            f"{row['seconds']:.1f}", f"{row['items_per_second']:.1f}",
            f"{row['times_faster']:.2f}x" if row["replicas"] else "",
        )
        for row in rows
    ]  # fmt: skip
    return [Table(f"{rows[0]['items']} problems of {rows[0]['task']} on two nodes", columns, tuple(lines))]
