"""Valid documents and ways to damage them: values of any kind, missing fields, cut or flipped bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tacg import TacgError


def nested(levels: int) -> Any:
    """A list in a list in a list …"""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


ABSURD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 2**31, 2**53 + 1, 2**63, 10**40, 0.5, -0.5, 1e300, float("nan"), float("inf"),
    "", "8", "x", "\x00", "\ud800", "ж" * 300, "{{", "../../etc/passwd", [], [[]], [1, 2], ["a"], {}, {"a": {"b": []}},
    nested(60), nested(70), [None] * 50,
]  # fmt: skip
VALUES = st.sampled_from(ABSURD)
PLACES = st.integers(0, 10**6)

# What is done to a document: put a value somewhere, take something away, or put it there twice.
EDITS = st.lists(
    st.tuples(PLACES, st.sampled_from(["put", "put", "put", "drop", "twice"]), VALUES), min_size=0, max_size=4
)
INSERTED = {
    "byte": b"\xff", "zero": b"\x00", "deep": b'{"a":' * 50_000, "deep lists": b"[" * 50_000, "long": b"1" * 5000,
    "half": b"\\ud800", "line": b"\n",
}  # fmt: skip
# What is done to its bytes.
HARMS = st.one_of(
    st.none(),
    st.tuples(st.just("cut"), PLACES),
    st.tuples(st.just("flip"), PLACES),
    st.tuples(st.just("insert"), PLACES, st.sampled_from(list(INSERTED))),
    st.tuples(st.just("replace"), st.binary(max_size=40)),
)  # fmt: skip
DAMAGE = st.tuples(EDITS, HARMS)


def edited(document: Any, edits: Sequence[tuple[int, str, Any]]) -> Any:
    """A copy of the document after these edits."""
    box = [copy.deepcopy(document)]
    for place, what, value in edits:
        spots = list(_spots(box))
        holder, key = spots[place % len(spots)]
        if what == "put":
            holder[key] = copy.deepcopy(value)
        elif what == "twice" and isinstance(holder, list) and holder is not box:
            holder.insert(key, copy.deepcopy(holder[key]))
        elif what == "drop" and holder is not box:
            del holder[key]
    return box[0]


def _spots(holder: Any) -> Any:
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _spots(holder[key])


def harmed(content: bytes, harm: tuple[Any, ...] | None) -> bytes:
    """The bytes after what is done to them."""
    if harm is None:
        return content
    if harm[0] == "replace":
        return bytes(harm[1])
    at = harm[1] % (len(content) + 1)
    if harm[0] == "cut":
        return content[:at]
    if harm[0] == "insert":
        return content[:at] + INSERTED[harm[2]] + content[at:]
    return (
        content[:at] + bytes([content[at] ^ (1 << harm[1] % 8)]) + content[at + 1 :] if at < len(content) else content
    )


def lines(document: Any) -> bytes:
    """A list as JSONL."""
    rows = document if isinstance(document, list) else [document]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def toml(document: Any) -> bytes:
    """Tables of values as TOML, or something like it: what JSON writes is TOML in most cases."""
    text = ""
    for name, value in document.items() if isinstance(document, dict) else [("x", document)]:
        inner = value if isinstance(value, dict) else {}
        text += "".join([f"[{name}]\n", *(f"{key} = {json.dumps(each)}\n" for key, each in inner.items())] if inner
                        else [f"{name} = {json.dumps(value)}\n"])  # fmt: skip
    return text.encode()


def one(document: Any) -> bytes:
    """A document as JSON."""
    return json.dumps(document).encode()


def survives(action: Callable[[], Any]) -> None:
    """It works, or it is refused with a clear message. Nothing else may happen."""
    told = "It works."
    try:
        action()
    except TacgError as error:
        told = str(error)
    assert 5 < len(told) < 3000, told
