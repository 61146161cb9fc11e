"""Failing devices: running out of memory delays a few rows; a lost device stops the server with a message."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import torch

import tacg
from tacg.engine.footprint import out_of_memory
from tacg.serve import batcher
from tacg.serve.limits import Limits
from tests.serve.conftest import Running, running, wait_until
from tests.serve.test_batching import ask, requests

LONG = {"policy": "schedule", "settings": {"gen_length": 60, "block_length": 8, "early_stop": False}}


class Tight:
    """The tiny model with memory for so many rows. It can break for good."""

    def __init__(self, llm: tacg.LLM, rows: int, slow: float = 0.0) -> None:
        self.model, self.spec, self.rows, self.slow = llm.model, llm.model.spec, rows, slow
        self.most = self.short = 0
        self.broken = False

    @property
    def device(self) -> torch.device:
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered\nmore words")
        return self.model.device

    def __call__(self, tokens: Any, spans: Any, select: Any) -> Any:
        time.sleep(self.slow)
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        if len(spans) > self.rows:
            self.short += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.most = max(self.most, len(spans))
        return self.model(tokens, spans, select)


def tight(llm: tacg.LLM, rows: int, **how: Any) -> tuple[tacg.LLM, Tight]:
    model = Tight(llm, rows, **how)
    return tacg.LLM(model, llm.tokenizer), model  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [False, True])
def test_too_many_rows_for_memory_take_turns(llm: tacg.LLM, stream: bool) -> None:
    """On a CPU even rows that were partly streamed, since they continue with exactly the same text."""
    small, model = tight(llm, 3)
    many = requests(16)
    with running(small, Limits(rows=8)) as server, ThreadPoolExecutor(16) as pool:
        for job, each in [(pool.submit(ask, server, each, stream=stream), each) for each in many]:
            alone = llm.generate(each["prompt"], each["policy"], chat=False, **each["settings"])
            assert job.result()[0] == alone.text
        assert (model.most, server.rows) == (3, 0)
        with server.http() as http:
            told = re.search(r"tacg_memory_shortages_total (\d+)", http.get("/metrics").text)
    assert told is not None
    assert int(told[1]) == model.short < 60, "it learns how many fit"


def test_where_answers_may_differ_what_was_shown_is_not_started_again(
    llm: tacg.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of which nothing was streamed yet make room first, the youngest of them."""
    monkeypatch.setattr(batcher, "repeats", lambda model: False)
    small, model = tight(llm, 4, slow=0.01)
    with running(small, Limits(rows=8)) as server, ThreadPoolExecutor(4) as pool:
        prompts = [{"prompt": f"number {number}", **LONG} for number in range(4)]
        jobs = [pool.submit(ask, server, each, stream=number < 2) for number, each in enumerate(prompts)]
        wait_until(lambda: sum(job.shown for job in running_jobs(server)) == 2)
        model.rows = 2  # the two that were not shown wait
        wait_until(lambda: len(running_jobs(server)) == 2)
        assert all(job.shown for job in running_jobs(server))
        model.rows = 1  # one that was shown has to go
        ended = []
        for job, each in zip(jobs, prompts, strict=True):
            alone = llm.generate(each["prompt"], each["policy"], chat=False, **each["settings"])
            try:
                assert job.result()[0] == alone.text
                ended.append("whole")
            except openai.APIError as error:
                ended.append(str(error.code))
    assert sorted(ended[:2]) == ["out_of_memory", "whole"]
    assert ended[2:] == ["whole", "whole"]


def running_jobs(server: Running) -> list[Any]:
    return [job for jobs in list(server.service.batcher._engines.values()) for job in list(jobs.values())]


def test_a_failed_step_ends_what_was_shown_where_answers_may_differ(
    llm: tacg.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "repeats", lambda model: False)
    small, model = tight(llm, 8, slow=0.01)
    with running(small) as server, ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(ask, server, {"prompt": f"{stream}", **LONG}, stream=stream) for stream in (True, False)]
        wait_until(lambda: len(running_jobs(server)) == 2 and any(job.shown for job in running_jobs(server)))
        right, failed = model.model, []

        def once(*given: Any) -> Any:
            model.model = right
            failed.append(1)
            raise ValueError("a slip")

        once.device = right.device  # type: ignore[attr-defined]
        model.model = once  # type: ignore[assignment]
        with pytest.raises(openai.APIError, match="send the request again") as caught:
            jobs[0].result()
        assert caught.value.code == "interrupted"
        assert jobs[1].result()[0] == llm.generate("False", "schedule", chat=False, **LONG["settings"]).text
        assert failed


def test_a_row_that_never_fits_is_told_so(llm: tacg.LLM) -> None:
    small, model = tight(llm, 0)
    with running(small) as server:
        with pytest.raises(openai.InternalServerError, match="even alone") as caught:
            ask(server, {"prompt": "a", **LONG})
        assert (caught.value.status_code, caught.value.code) == (503, "out_of_memory")
        model.rows = 1
        assert ask(server, requests(1)[0])[0], "and life goes on"


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory: …"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("not enough memory"), False),
    ],
)
def test_what_counts_as_too_little_memory(error: Exception, memory: bool) -> None:
    assert out_of_memory(error) is memory


def test_the_cpu_says_so_in_the_words_we_know() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert out_of_memory(caught.value)


def test_a_device_that_is_gone_ends_the_server(llm: tacg.LLM) -> None:
    small, model = tight(llm, 8, slow=0.01)
    server = Running(small).start()
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(ask, server, {"prompt": "a", **LONG}, stream=number == 0) for number in range(3)]
        wait_until(lambda: server.rows == 3)
        model.broken = True
        for job in jobs:
            with pytest.raises(openai.APIError, match="server is stopping") as caught:
                job.result()
            assert caught.value.code == "server_failed"
    server.thread.join(20)
    assert not server.thread.is_alive()
    assert "device-side assert" in server.service.batcher.failure
    assert "more words" not in server.service.batcher.failure
    server.client.close()


# -- in processes of their own ---------------------------------------------------------------------------------------

SERVE = ["serve", "-m", "tiny", "--port", "0"]
GONE = """
import sys, torch
import tacg.models.tiny
from tacg import llm
from tacg.__main__ import run
from tests.serve.test_trouble import tight
load = llm.load
def broken(*given, **more):
    made, model = tight(load(*given, **more), 8)
    submit = tacg.engine.loop.Engine.submit
    def breaks(self, request):
        model.broken = True
        return submit(self, request)
    tacg.engine.loop.Engine.submit = breaks
    return made
import tacg.engine.loop
llm.load = broken
sys.argv = ["tacg", *sys.argv[1:]]
run()
"""
STOPPED = """
import os, sys, time
number, place = int(sys.argv[1]), sys.argv[2]
def stop(*given, **more):
    os.kill(os.getpid(), number)
    time.sleep(60)  # a signal that is put off does not end this
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == place:
            stop()
sys.meta_path.insert(0, Finder())
if place == "warm-up":
    from tacg.serve.batcher import Batcher
    Batcher.start = stop
elif place == "weights":
    from tacg import llm
    llm.load = stop
sys.argv = ["tacg", *sys.argv[3:]]
from tacg.__main__ import run
run()
"""


def process(program: str, *words: str) -> subprocess.Popen[str]:
    root = Path(tacg.__file__).parents[1]
    there = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root.parent}"}
    return subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=there
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", ["typer", "torch", "uvicorn", "weights", "warm-up"])
def test_a_signal_while_it_starts_ends_it(number: int, place: str) -> None:
    with process(STOPPED, str(int(number)), place, *SERVE) as started:
        _, errors = started.communicate(timeout=50)
    assert (started.returncode, "Traceback" in errors) == (128 + number, False), errors


def test_the_process_says_why_it_ends() -> None:
    with process(GONE, *SERVE) as started:
        assert started.stderr is not None
        lines = iter(started.stderr.readline, "")
        where = next(found[1] for line in lines if (found := re.search(r"at (http://\S+)", line)))
        answer = httpx2.post(f"{where}/v1/completions", json={"model": "tiny", "prompt": "a"}, trust_env=False)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_failed")
        _, errors = started.communicate(timeout=50)
    assert started.returncode == 1
    assert "error: The device 'tiny' runs on has failed: CUDA error" in errors
    assert "Traceback" not in errors
