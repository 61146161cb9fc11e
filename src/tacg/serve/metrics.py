"""Counters and gauges for operators, kept and written by `prometheus_client`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_TYPE = "text/plain; version=0.0.4"
BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds
COUNTED = {  # name: meaning, labels
    "tacg_requests_total": ("HTTP requests by endpoint and status.", ("endpoint", "status")),
    "tacg_rows_total": ("Rows that ended, by how.", ("how",)),
    "tacg_tokens_total": ("Tokens of answers.", ()),
    "tacg_prompt_tokens_total": ("Tokens of prompts.", ()),
    "tacg_forwards_total": ("Forwards, counted per row.", ()),
    "tacg_engine_steps_total": ("Steps of the whole batch.", ()),
    "tacg_engine_restarts_total": ("Times that a step of the batch failed and its rows started again, each alone.", ()),
    "tacg_memory_shortages_total": ("Times that a step ran out of memory, and rows were put back or ended.", ()),
}
GAUGES = {
    "tacg_rows_running": "Rows in the batch.",
    "tacg_rows_waiting": "Rows waiting for a place.",
    "tacg_rows_limit": "Maximum rows in the batch.",
    "tacg_queue_limit": "Maximum rows that may wait.",
    "tacg_draining": "1 while the server is shutting down.",
}
disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter that nobody asked for


class Metrics:
    """What was counted so far, in a registry of its own: a process may have several servers. Thread-safe."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counts = {
            name: Counter(name, meaning, labels, registry=self._registry) for name, (meaning, labels) in COUNTED.items()
        }
        self._gauges = {name: Gauge(name, meaning, registry=self._registry) for name, meaning in GAUGES.items()}
        self._seconds = Histogram(
            "tacg_request_seconds", "How long requests took.", ("endpoint",), registry=self._registry, buckets=BOUNDS
        )

    def add(self, name: str, amount: float = 1, **labels: object) -> None:
        """Count something. Label values must be our own: values from clients would grow without limit."""
        counter = self._counts[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def took(self, seconds: float, endpoint: str) -> None:
        """Record the duration of a request."""
        self._seconds.labels(endpoint=endpoint).observe(seconds)

    def text(self, gauges: Mapping[str, float]) -> bytes:
        """All counters, and these current gauge values, in Prometheus's text format."""
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return generate_latest(self._registry)
