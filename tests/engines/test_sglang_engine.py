"""The real SGLang engine on a CPU with the plug-in installed by pip. Wiring and scheduling, not speed or quality.

`make test-engines` makes the environment and runs this; without `TACG_SGLANG_PYTHON` everything here is skipped.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tacg
from tests.engines import checkpoints

PYTHON = os.environ.get("TACG_SGLANG_PYTHON", "")
HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(not PYTHON, reason="make test-engines runs these, in SGLang's own environment")

PROMPTS = [list(range(100, 100 + length)) for length in (5, 8, 13, 2)]
NAMES = ["one", "two", "three", "four"]
GREEDY = {"temperature": 0, "ignore_eos": True}


def ask(prompts: list[list[int]], names: list[str], new: int | list[int]) -> dict[str, Any]:
    each = [new] * len(prompts) if isinstance(new, int) else new
    return {"input_ids": prompts, "rid": names, "sampling_params": [{**GREEDY, "max_new_tokens": n} for n in each]}


def drive(engine: dict[str, Any], calls: list[dict[str, Any]], *, serve: int = 0) -> list[list[dict[str, Any]]]:
    """Start SGLang, ask, stop."""
    around = {name: value for name, value in os.environ.items() if name != "SGLANG_USE_CPU_ENGINE"}
    around |= {"PYTHONPATH": str(HERE / "shims"), "TORCHDYNAMO_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if engine.get("tp_size") == 2:
        around["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"
    job = json.dumps({"engine": engine, "calls": calls, "serve": serve})
    done = subprocess.run(
        [PYTHON, str(HERE / "drive.py"), job], env=around, capture_output=True, text=True, timeout=1500, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert lines, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    found: list[list[dict[str, Any]]] = json.loads(lines[-1].removeprefix("ANSWERS "))
    return found


def tokens(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [each["tokens"] for each in answers]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="module")
def sdar(home: Path) -> dict[str, Any]:
    """Engine settings for the tiny SDAR, with blocks of 8."""
    (home / "sdar.yaml").write_text("block_size: 8\ntau_floor: 0.3\nthreshold: 0.6\nstep_map: true\n")
    path = str(checkpoints.sdar(home / "sdar"))
    return {"model_path": path, "dllm_algorithm": "TACG", "dllm_algorithm_config": str(home / "sdar.yaml")}


@pytest.fixture(scope="module")
def expected(sdar: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What SDAR answers with one worker, first done first out: four requests at once, then one by one."""
    calls = [ask(PROMPTS, NAMES, 24), *(ask([p], [n], 24) for p, n in zip(PROMPTS, NAMES, strict=True))]
    return drive(sdar, calls)


def test_together_as_alone_with_step_maps(expected: list[list[dict[str, Any]]]) -> None:
    together, *alone = expected
    assert tokens(together) == [tokens(one)[0] for one in alone]
    assert len({tuple(each["tokens"]) for each in together}) == len(together)
    for each in together:
        assert checkpoints.SDAR_MASK not in each["tokens"]
        assert len(each["step_maps"]) == len(each["tacg_reason"]) == len(each["tokens"]) == 24
        assert set(each["tacg_reason"]) <= {"base", "extra", "fallback"}
        assert max(each["step_maps"]) <= 8


def test_lock_step_gives_the_same(sdar: dict[str, Any], expected: list[list[dict[str, Any]]]) -> None:
    (answers,) = drive(sdar | {"dllm_fdfo": False}, [ask(PROMPTS, NAMES, 24)])
    assert tokens(answers) == tokens(expected[0])
    assert [each["step_maps"] for each in answers] == [each["step_maps"] for each in expected[0]]


def test_two_tensor_parallel_workers_give_the_same(sdar: dict[str, Any], expected: list[list[dict[str, Any]]]) -> None:
    (answers,) = drive(sdar | {"tp_size": 2}, [ask(PROMPTS, NAMES, 24)])
    assert tokens(answers) == tokens(expected[0])


def test_the_http_server_gives_the_same(sdar: dict[str, Any], expected: list[list[dict[str, Any]]]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    call = ask(PROMPTS, NAMES, 24) | {"sampling_params": {**GREEDY, "max_new_tokens": 24}}
    (answers,) = drive(sdar, [call], serve=port)
    assert tokens(answers) == tokens(expected[0])
    assert [each["step_maps"] for each in answers] == [each["step_maps"] for each in expected[0]]


def test_samples_follow_from_the_request_id(sdar: dict[str, Any], home: Path) -> None:
    (home / "sampled.yaml").write_text("block_size: 8\ntemperature: 1.5\nthreshold: 0.3\nm_base: 1\n")
    config = sdar | {"dllm_algorithm_config": str(home / "sampled.yaml")}
    first, other, again = drive(config, [ask([PROMPTS[0]], [name], 24) for name in ("a", "b", "a")])
    assert tokens(first) == tokens(again) != tokens(other)


def in_blocks(commits: list[tacg.Commit], before: int, size: int = 32) -> list[int]:
    """The steps of commits in order of their position, counted from the start of each block on the grid."""
    blocks = [(before + each.position) // size for each in commits]
    first = {block: min(c.step for c, other in zip(commits, blocks, strict=True) if other == block) for block in blocks}
    return [each.step - first[block] + 1 for each, block in zip(commits, blocks, strict=True)]


@pytest.mark.parametrize(
    ("policy", "knobs"),
    [
        ("tacg", {"tau_floor": 0.1, "threshold": 0.3, "m_base": 2}),
        ("tacg+klass", {"tau_floor": 0.1, "threshold": 0.2, "kl_threshold": 0.5}),
    ],
)
def test_llada2_gives_what_our_own_engine_gives(home: Path, policy: str, knobs: dict[str, float]) -> None:
    place = home / policy
    mine, theirs = checkpoints.llada2(place)
    base = policy.removeprefix("tacg").removeprefix("+") or "confidence"
    lines = {"base": base, "step_map": "true", **knobs}
    (place / "tacg.yaml").write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    prompts = [list(range(100, 100 + length)) for length in (40, 5, 32, 70)]
    lengths = [56, 59, 64, 26]  # up to the end of a block: SGLang decodes whole blocks, and cuts
    engine = {"model_path": str(theirs), "dllm_algorithm": "TACG", "dllm_algorithm_config": str(place / "tacg.yaml")}
    (answers,) = drive(engine, [ask(prompts, NAMES, lengths)])
    llm = tacg.load(mine)
    # SGLang does not know which ids no token owns, so ours may write them too.
    llm.model.spec = replace(llm.model.spec, unwritable=(llm.model.spec.mask_id,))
    reasons = set()
    for prompt, length, answer in zip(prompts, lengths, answers, strict=True):
        alone = llm.generate(prompt, policy, gen_length=length, memory="bf16", early_stop=False, **knobs)
        assert answer["tokens"] == list(alone.tokens)
        in_order = sorted(alone.commits, key=lambda each: each.position)
        assert answer["tacg_reason"] == [each.reason for each in in_order]
        assert answer["step_maps"] == in_blocks(in_order, len(prompt))
        assert len(set(answer["tokens"])) > 5, "the random model has something to say"
        reasons |= set(answer["tacg_reason"])
    assert reasons == {"base", "extra", "fallback"}
