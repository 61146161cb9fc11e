"""Runs in SGLang's own environment: starts the engine, or its server, asks what it is told to, prints one JSON line.

drive.py '{"serve": false, "engine": {…}, "calls": [{"input_ids": […], "rid": […], …}, …]}'
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

SETUP = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "disable_cuda_graph": True,
    "skip_tokenizer_init": True,
    "max_running_requests": 4,
    "max_total_tokens": 4096,
    "log_level": "error",
}


def call_engine(settings: dict[str, Any], calls: list[dict[str, Any]]) -> list[Any]:
    """All calls one after the other; each may hold several requests at once."""
    import sglang

    engine = sglang.Engine(**settings)
    try:
        return [engine.generate(**call) for call in calls]
    finally:
        engine.shutdown()


def call_server(settings: dict[str, Any], calls: list[dict[str, Any]], port: int) -> list[Any]:
    """The server as users start it."""
    from sglang.srt.utils import kill_process_tree

    words = [f"--port={port}"]
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else [] if value is False else [f"{flag}={value}"]
    with subprocess.Popen([sys.executable, "-m", "sglang.launch_server", *words]) as server:
        try:
            return ask_server(calls, port, server)
        finally:
            kill_process_tree(server.pid, include_parent=True)


def ask_server(calls: list[dict[str, Any]], port: int, server: subprocess.Popen[bytes]) -> list[Any]:
    """The requests of every call as HTTP requests of their own, all at once."""

    def post(body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            break
        except OSError:
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with {server.returncode}") from None
            time.sleep(1)
    answers = []
    for call in calls:
        shared = {name: value for name, value in call.items() if name not in ("input_ids", "rid")}
        bodies = [
            {**shared, "input_ids": ids, "rid": rid} for ids, rid in zip(call["input_ids"], call["rid"], strict=True)
        ]
        found: list[Any] = [None] * len(bodies)

        def ask(place: int, body: dict[str, Any], found: list[Any] = found) -> None:
            found[place] = post(body)

        threads = [threading.Thread(target=ask, args=each) for each in enumerate(bodies)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        answers.append(found)
    return answers


def report(answers: list[Any]) -> None:
    """The last line of the output."""
    kept = ("id", "step_maps", "tacg_reason")
    short = [
        [
            {"tokens": each["output_ids"]} | {name: each["meta_info"].get(name) for name in kept}
            for each in (answer if isinstance(answer, list) else [answer])
        ]
        for answer in answers
    ]
    print("ANSWERS " + json.dumps(short), flush=True)


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    made = SETUP | job["engine"]
    serve = job.get("serve")
    report(call_server(made, job["calls"], serve) if serve else call_engine(made, job["calls"]))
