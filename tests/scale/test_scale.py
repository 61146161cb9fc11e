"""Ray: many replicas give what one model gives, even if some are lost."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tacg
from tacg import TacgError
from tacg.experiments.evaluate import evaluate
from tacg.models.tiny import write_checkpoint
from tacg.records.journal import read_journal
from tacg.tasks import get_task

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default")

SHORT = {"gen_length": 12, "block_length": 6}


@pytest.fixture(scope="module")
def _cluster() -> Iterator[None]:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 * 1024 * 1024)
    yield
    ray.shutdown()


def test_shares_are_long_first_and_small_last() -> None:
    from tacg.scale.fleet import shares

    found = shares(["a" * size for size in (3, 9, 5, 1, 7, 2, 8, 4)], batch_size=3, replicas=2)
    assert [number for share in found for number, _ in share] == [1, 6, 4, 2, 7, 0, 5, 3]
    assert [len(share) for share in found] == [2, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("nodes", "cores", "reader", "fit"),
    [
        ([{"CPU": 8.0, "GPU": 2.0}], 4, False, 2),
        ([{"CPU": 8.0}], 3, False, 2),
        ([{"CPU": 8.0}], 3, True, 2),
        ([{"CPU": 2.0}], 1, False, 2),
        ([{"CPU": 2.0}], 1, True, 1),
        ([{"CPU": 3.0}, {"CPU": 3.0}], 2, True, 2),
        ([{"CPU": 2.0}, {"CPU": 2.0}], 2, True, 1),
        ([{"CPU": 2.0, "GPU": 2.0}], 1, True, 1),
        ([{"CPU": 2.0, "GPU": 1.0}], 1, True, 1),
        ([{"CPU": 1.0}, {"CPU": 1.0}], 2, False, 0),
        ([{"CPU": 1.0}], 1, True, 0),
        ([{"CPU": 1.0, "GPU": 1.0}], 1, True, 0),
        ([{"CPU": 4.0, "GPU": 0.0}, {"GPU": 1.0}], 1, False, 0),
    ],
)
def test_replicas_fit_machines_and_leave_room_for_the_reader(
    nodes: list[dict[str, float]], cores: int, reader: bool, fit: int
) -> None:
    from tacg.scale.fleet import room

    if fit:
        assert room(nodes, cores, reader=reader)[1] == fit
        assert room(nodes, cores, 1, reader=reader)[1] == 1
    with pytest.raises(TacgError, match=f"too few for {fit + 1} replicas with .* each.*: ask for less"):
        room(nodes, cores, fit + 1, reader=reader)
    with pytest.raises(TacgError, match="`cores` must be at least 1, got 0"):
        room(nodes, 0)


@pytest.mark.usefixtures("_cluster")
def test_a_lost_replica_is_not_missed(llm: tacg.LLM, tmp_path: Path) -> None:
    """One of two is killed on the way: all rows, each once, and the file of a single process."""
    from tacg.scale import Fleet

    task, n = get_task("pocket-sudoku"), 24
    evaluate(llm, task, "tacg", n=n, settings=SHORT, out=tmp_path / "one.jsonl")
    fleet = Fleet("tiny")
    assert len(fleet.replicas) == 2
    assert fleet.identity == llm.identity
    seen: list[str] = []

    def count(item: Any) -> None:
        seen.append(item.id)
        if len(seen) == n // 3:
            threading.Thread(target=lambda: ray.kill(fleet.replicas[0], no_restart=False)).start()

    evaluate(fleet, task, "tacg", n=n, settings=SHORT, batch_size=4, out=tmp_path / "many.jsonl", on_item=count)
    assert sorted(seen) == sorted({*seen})
    assert len(seen) == n
    assert (tmp_path / "many.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    with pytest.raises(TacgError, match="Unknown setting 'k_xtra'"):
        fleet.generate(["Hello"], "tacg", k_xtra=1)
    fleet.close()


@pytest.mark.usefixtures("_cluster")
def test_a_model_with_a_qwen_body(tmp_path: Path) -> None:
    """SDAR with experts, which sees by blocks of 4."""
    from tacg.scale import Fleet

    place = write_checkpoint(tmp_path, family="sdar-moe")
    llm, fleet = tacg.load(place), Fleet(str(place), replicas=2)
    prompts, short = [f"{word} " * 3 for word in "abcdef"], {"gen_length": 10}
    assert fleet.identity == llm.identity
    alone = [llm.generate(prompt, "tacg", **short) for prompt in prompts]
    assert [each.tokens for each in fleet.generate(prompts, "tacg", **short)] == [each.tokens for each in alone]
    graded = [evaluate(each, get_task("pocket-math"), "tacg", n=2, settings=short).items for each in (llm, fleet)]
    assert graded[0] == graded[1], "the task's blocks of 32 give way"
    fleet.close()


@pytest.mark.usefixtures("_cluster")
def test_whole_files(llm: tacg.LLM, tmp_path: Path) -> None:
    from tacg.scale import generate

    rows = [{"id": f"row-{number}", "prompt": "word " * (1 + number % 5)} for number in range(10)]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert generate(source, out, model="tiny", batch_size=3, **SHORT) == 10, "on two cores, and as many as fit"
    whole = out.read_bytes()
    header, answers = read_journal(out)
    assert [answer["id"] for answer in answers] == [row["id"] for row in rows]
    assert [each["text"] for each in answers] == [llm.generate(row["prompt"], **SHORT).text for row in rows]
    assert header["run"]["rows"] == 10
    assert {answer["model"] for answer in answers} == {"/".join(llm.identity.values())}
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]) + b'{"id": "torn')
    told: list[dict[str, Any]] = []
    generate(source, out, model="tiny", batch_size=3, replicas=1, resume=True, on_row=told.append, **SHORT)
    assert (len(told), out.read_bytes()) == (7, whole)
    out.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]).replace(b"tiny/float32/", b"tiny/float32/0"))
    with pytest.raises(TacgError, match=r"was answered by tiny/float32/\w+.*by tiny/float32/0\w+"):
        generate(source, out, model="tiny", batch_size=3, replicas=1, resume=True, **SHORT)
    with pytest.raises(TacgError, match=r"decode\.gen_length: 12 there, 16 here"):
        generate(source, out, model="tiny", resume=True, gen_length=16, block_length=6)


@pytest.mark.usefixtures("_cluster")
def test_a_parquet_file(llm: tacg.LLM, tmp_path: Path) -> None:
    import pandas

    from tacg.scale import generate

    rows = [{"id": f"row-{number}", "prompt": "word " * (1 + number)} for number in range(3)]
    source, out = tmp_path / "in.parquet", tmp_path / "out.jsonl"
    pandas.DataFrame(rows).to_parquet(source)
    assert generate(source, out, model="tiny", replicas=1, **SHORT) == 3
    _, answers = read_journal(out)
    found = [(each["id"], each["text"]) for each in answers]
    assert found == [(row["id"], llm.generate(row["prompt"], **SHORT).text) for row in rows]


def test_mistakes_of_files(tmp_path: Path) -> None:
    from tacg.scale import generate

    source = tmp_path / "in.jsonl"
    with pytest.raises(TacgError, match="must end in"):
        generate(tmp_path / "in.csv", tmp_path / "out", model="tiny")
    source.write_text('{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n')
    with pytest.raises(TacgError, match="1 of column 'id' occurs 2 times"):
        generate(source, tmp_path / "out", model="tiny")
    with pytest.raises(TacgError, match="has no column 'question'"):
        generate(source, tmp_path / "out", model="tiny", column="question")
    for text, told in (
        ("", "has no prompts"),
        ("[" * 100_000, "nested more than 64 levels"),
        ("[1]", "line 1: must be a JSON object"),
        ('{"id": [1], "prompt": "a"}', "row 1: 'id' must be text or a whole number"),
        ('{"id": 1, "prompt": 2}', "'prompt' text"),
        ('{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}', "texts and numbers in column 'id'"),
        ('{"id": 1, "prompt": "a"}\n{"id": 2}', "row 2 has no column 'prompt'"),
    ):
        source.write_text(text)
        with pytest.raises(TacgError, match=told):
            generate(source, tmp_path / "out", model="tiny")
    broken = tmp_path / "in.parquet"
    broken.write_bytes(b"PAR1")
    with pytest.raises(TacgError, match="cannot be read as Parquet"):
        generate(broken, tmp_path / "out", model="tiny")
    source.write_text('{"id": 1, "prompt": "a"}')
    with pytest.raises(TacgError, match="must be a regular file, but it is a directory"):
        generate(source, tmp_path, model="tiny")
