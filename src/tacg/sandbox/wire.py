"""What is sent over the sandbox's pipes: length-prefixed documents with plain data.

One side may be hostile. What it sends is checked and rebuilt here as values of Python's own types, so no code of a
class defined by an answer runs on the reading side.
"""

from __future__ import annotations

import json
import os
import struct
from collections import deque
from collections.abc import ItemsView, KeysView, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any

WORD = 1 << 63  # larger integers are sent in base 16, which takes linear time

# Name, type, how its value is written and read. Uses the type's own methods, since a subclass may override them.
TEXTS: dict[str, tuple[Any, Any, Any]] = {
    "bytes": (bytes | bytearray, lambda value: bytes(value).hex(), bytes.fromhex),
    "complex": (complex, complex.__repr__, complex),
    "Decimal": (Decimal, Decimal.__str__, Decimal),
}
# Name, type, its items, how they are read. Views compare like sets and queues have a length, so their type is kept.
ITEMS: dict[str, tuple[Any, Any, Any]] = {
    "dict": (dict, dict.items, dict),
    "list": (list, list.__iter__, list),
    "tuple": (tuple, tuple.__iter__, tuple),
    "set": (set, set.__iter__, set),
    "frozenset": (frozenset, frozenset.__iter__, frozenset),
    "deque": (deque, deque.__iter__, deque),
    "range": (range, lambda value: (value.start, value.stop, value.step), lambda items: range(*items)),
    "keys": (KeysView, iter, lambda items: dict.fromkeys(items).keys()),
    "items": (ItemsView, iter, lambda items: dict(items).items()),
    "values": (ValuesView, iter, lambda items: dict(enumerate(items)).values()),
    "Fraction": (Fraction, lambda value: (value._numerator, value._denominator), lambda items: _fraction(*items)),
}


class Foreign:
    """In the judge: a value of the answer that is not plain data. It is true or false, and can be passed back."""

    def __init__(self, number: int, truth: bool) -> None:
        self.number, self.truth = number, truth

    def __bool__(self) -> bool:
        return self.truth


def pack(value: Any, objects: list[Any] | None = None) -> Any:
    """A value as JSON. Anything that is not plain data is added to `objects`, and its index is sent."""
    if value is None or type(value) in (bool, float, str):
        return value
    if isinstance(value, int):
        value = int.__int__(value)
        return value if -WORD < value < WORD else {"int": hex(value)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)  # an Enum of strings prints differently from its value
    if isinstance(value, Foreign):
        return {"foreign": value.number, "truth": value.truth}
    for name, (kind, write, _) in TEXTS.items():
        if isinstance(value, kind):
            return {name: write(value)}
    for name, (kind, items, _) in ITEMS.items():
        if isinstance(value, kind):
            return {name: [pack(each, objects) for each in items(value)]}
    if objects is None:
        raise TypeError(f"a test passes {type(value).__name__}, which is not plain data")
    if hasattr(type(value), "__iter__"):  # a generator or similar: its items can be compared
        return {"iterator": [pack(each, objects) for each in value]}
    objects.append(value)
    return {"foreign": len(objects) - 1, "truth": bool(value)}


def unpack(data: Any, objects: list[Any] | None = None) -> Any:
    """The value that `pack` sent. Unknown shapes raise; nothing is ever executed."""
    if not isinstance(data, dict):
        return data
    name = next(iter(data), None)
    if name == "foreign":
        return Foreign(int(data[name]), bool(data["truth"])) if objects is None else objects[data[name]]
    if name == "int":
        return int(data[name], 16)
    if name in TEXTS:
        return TEXTS[name][2](data[name])
    items = [unpack(each, objects) for each in data[name]]
    return iter(items) if name == "iterator" else ITEMS[str(name)][2](items)


def _fraction(above: Any, below: Any) -> Fraction:
    """From integers only: building a fraction from the text "1e999999999" would take forever."""
    if type(above) is not int or type(below) is not int:
        raise TypeError("a fraction must come as two whole numbers")
    return Fraction(above, below)


def send(descriptor: int, document: Any) -> None:
    """Write a document, prefixed with its length."""
    body = json.dumps(document).encode()
    body = struct.pack("!Q", len(body)) + body
    while body:
        body = body[os.write(descriptor, body) :]


def receive(descriptor: int, most: int = 1 << 30) -> Any:
    """Read what `send` wrote; EOFError if the other side is gone or sends more than `most` bytes."""
    (length,) = struct.unpack("!Q", _exactly(descriptor, 8))
    if length > most:
        raise EOFError(f"more than {most} bytes")
    return json.loads(_exactly(descriptor, length))


def _exactly(descriptor: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(descriptor, min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        parts += part
    return bytes(parts)


def brief_error(error: BaseException) -> str:
    """An error's message, shortened; errors of an answer, or about huge numbers, may fail to give one."""
    try:
        return str(error)[:200]
    except BaseException:
        return ""
