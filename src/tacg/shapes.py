"""The shape that a value from a file must have, declared in one place, and a description of what is wrong with it.

A shape is a type (`str`, `bool`), a `Number`, a list with the shape of its elements (`[str]`), a tuple with the shapes
of a list's elements in order (`(str, int)`), or a dict with the shapes of an object's fields; a field whose name ends
in "?" may be missing or null.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

BIG = 2**53  # beyond it, not every whole number is a float
WORDS = {str: "text", bool: "true or false", dict: "an object", list: "a list"}


@dataclass(frozen=True)
class Number:
    """A finite number from `low` to `high`; `whole` ones only, or any."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.high >= BIG:
            return kind if math.isinf(self.low) else f"{kind} >= {self.low:g}"
        return f"{kind} from {self.low:g} to {self.high:g}"

    def takes(self, value: Any) -> bool:
        """Whether a value is such a number; true and false are not."""
        right = type(value) is int or (type(value) is float and not self.whole and math.isfinite(value))
        return right and self.low <= value <= self.high


COUNT = Number(0, BIG, whole=True)


def misfit(value: Any, shape: Any, name: str = "it") -> str:
    """What is wrong with a value, or an empty text if it has the shape."""
    if isinstance(shape, Number):
        return "" if shape.takes(value) else _wants(name, str(shape), value)
    if isinstance(shape, type):
        return "" if type(value) is shape else _wants(name, WORDS[shape], value)
    if isinstance(shape, dict):
        return _fields(value, shape, name) if isinstance(value, dict) else _wants(name, "an object", value)
    if not isinstance(value, list):
        return _wants(name, "a list", value)
    if isinstance(shape, tuple) and len(value) != len(shape):
        return _wants(name, f"a list of {len(shape)}", value)
    wanted = shape if isinstance(shape, tuple) else shape * len(value)
    return next((wrong for at, each in enumerate(value) if (wrong := misfit(each, wanted[at], f"{name}[{at}]"))), "")


def _fields(value: dict[str, Any], shapes: dict[str, Any], name: str) -> str:
    within = "" if name == "it" else f"{name}."
    for key, shape in shapes.items():
        field = key.removesuffix("?")
        if value.get(field) is None and field != key:
            continue
        if field not in value:
            return f"`{within}{field}` is missing"
        if wrong := misfit(value[field], shape, within + field):
            return wrong
    return ""


def _wants(name: str, wanted: str, value: Any) -> str:
    return f"`{name}` must be {wanted}, got {brief(value)}"


def brief(value: Any) -> str:
    """A value, shortened for a message: it may be very long."""
    shown = f"{WORDS[type(value)]} of {len(value)}" if isinstance(value, dict | list) else repr(value)
    return shown if len(shown) <= 80 else shown[:80] + "…"
