"""A real server on a real socket, with the tiny model behind it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from openai import OpenAI

import tacg
from tacg.serve.app import Service
from tacg.serve.guard import Access
from tacg.serve.limits import Limits
from tacg.serve.parse_request import Defaults
from tacg.serve.run import Server, address, bind

SHORT = Defaults("tacg", {"gen_length": 24, "block_length": 8})


class Running:
    """A server in a thread."""

    def __init__(self, llm: Any, limits: Limits | None = None, access: Access | None = None) -> None:
        self.service = Service(llm, limits, access or Access.bound_to("127.0.0.1", None), SHORT)
        self.server = Server(self.service)
        self.socket = bind("127.0.0.1", 0)
        self.url = address(self.socket)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)

    def start(self) -> Running:
        self.thread.start()
        wait_until(lambda: self.server.started)
        self.client = self.openai()  # one for all threads: making one takes longer than a short decode
        return self

    def stop(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self.thread.join(timeout=20)
        assert not self.thread.is_alive()

    def openai(self, **more: Any) -> OpenAI:
        return OpenAI(**({"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "timeout": 30} | more))

    def http(self, **more: Any) -> httpx2.Client:
        return httpx2.Client(**({"base_url": self.url, "timeout": 30, "trust_env": False} | more))

    @property
    def rows(self) -> int:
        return self.service.batcher.running + self.service.batcher.waiting


def wait_until(true: Any, seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.01)


@contextlib.contextmanager
def running(llm: Any, limits: Limits | None = None, access: Access | None = None) -> Iterator[Running]:
    made = Running(llm, limits, access).start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def served(llm: tacg.LLM) -> Iterator[Running]:
    """One server for all tests that do not change it."""
    with running(llm) as made:
        yield made


@pytest.fixture
def client(served: Running) -> OpenAI:
    return served.client


@pytest.fixture(scope="session")
def http(served: Running) -> Iterator[httpx2.Client]:
    with served.http() as made:
        yield made
