"""Counters and gauges in Prometheus's text format."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)  # seconds
MEANINGS = {
    "tacg_requests_total": "HTTP requests by endpoint and status.",
    "tacg_rows_total": "Rows that ended, by how.",
    "tacg_tokens_total": "Tokens of answers.",
    "tacg_prompt_tokens_total": "Tokens of prompts.",
    "tacg_forwards_total": "Forwards, counted per row.",
    "tacg_engine_steps_total": "Steps of the whole batch.",
    "tacg_engine_restarts_total": "Times that a step of the batch failed and its rows started again, each alone.",
    "tacg_memory_shortages_total": "Times that a step ran out of memory, and rows were put back or ended.",
}


class Metrics:
    """What was counted so far. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, float]] = {name: defaultdict(float) for name in MEANINGS}
        self._seconds: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(BOUNDS) + 2))  # buckets, count, sum

    def add(self, name: str, amount: float = 1, **labels: object) -> None:
        """Count something. Label values must be our own: values from clients would grow without limit."""
        with self._lock:
            self._counts[name][_labels(labels)] += amount

    def took(self, seconds: float, **labels: object) -> None:
        """Record the duration of a request."""
        with self._lock:
            found = self._seconds[_labels(labels)]
            for place, bound in enumerate(BOUNDS):
                found[place] += seconds <= bound
            found[-2] += 1
            found[-1] += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """All counters, and these current gauge values."""
        with self._lock:
            lines = []
            for name, meaning in MEANINGS.items():
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} counter"]
                lines += [f"{name}{labels} {value:.15g}" for labels, value in self._counts[name].items()]
            lines += ["# HELP tacg_request_seconds How long requests took.", "# TYPE tacg_request_seconds histogram"]
            for labels, found in self._seconds.items():
                inner = labels[1:-1]
                for bound, value in zip([*map(str, BOUNDS), "+Inf"], found[:-1], strict=True):
                    lines.append(f'tacg_request_seconds_bucket{{{inner},le="{bound}"}} {value:.15g}')
                lines += [f"tacg_request_seconds_count{labels} {found[-2]:.15g}"]
                lines += [f"tacg_request_seconds_sum{labels} {found[-1]:.6f}"]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:.15g}"]
        return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
