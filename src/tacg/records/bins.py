"""The bins in which signals are counted: edges and names."""

from __future__ import annotations

from itertools import pairwise

CONFIDENCE = (0.2, 0.4, 0.6, 0.8, 0.9)
# Signal -> inner edges of its bins.
SIGNALS: dict[str, tuple[float, ...]] = {
    "streak": (1.5, 2.5, 4.5),
    "support": (0.0, 0.05, 0.15, 0.4),
    "log_ratio": (0.0, 0.1, 0.3, 0.9),
    "margin": (0.1, 0.3, 0.6, 0.9),
    "entropy": (0.1, 0.5, 1.0, 2.0),
    "kl": (0.001, 0.01, 0.1, 1.0),
}


def bin_names(signal: str) -> list[str]:
    """Names of a signal's bins."""
    if signal == "streak":
        return ["1", "2", "3-4", "5+"]
    edges = CONFIDENCE if signal == "confidence" else SIGNALS[signal]
    inner = [f"{low:g}-{high:g}" for low, high in pairwise(edges)]
    return [f"<= {edges[0]:g}" if edges[0] else "0", *inner, f"> {edges[-1]:g}"]
