"""A JSON schema as a regular expression, for the regular part of JSON schema. Anything else is refused by name.

JSON is written in one format, that of Python's `json.dumps`: a space after each comma and colon, and properties in the
order of the schema. Properties that the schema does not name are not written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tacg.errors import TacgError

CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'
INTEGER = r"(?:-?(?:0|[1-9][0-9]*))"
SCALARS = {
    "string": rf'"{CHARACTER}*"',
    "integer": INTEGER,
    "number": rf"(?:{INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)",
    "boolean": "(?:true|false)",
    "null": "null",
}
DEPTH = 1  # maximum nesting of values without a schema
NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$id"} | {
    "$comment", "$defs", "definitions",
}  # fmt: skip
OF_TYPE: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
MOST_REPEATS = 1000


def schema_pattern(schema: Mapping[str, Any] | bool) -> str:
    """The regular expression of the JSON texts that this schema describes."""
    return _Writer(schema if isinstance(schema, Mapping) else {}).value(schema, "schema", ())


class _Writer:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def value(self, schema: Any, at: str, within: tuple[str, ...]) -> str:
        """at: where we are, for errors; within: references that are being followed."""
        if schema is True or schema == {}:
            return _anything(DEPTH)
        if not isinstance(schema, Mapping):
            raise TacgError(f"`{at}` must be a JSON schema that something can satisfy, got {schema!r}.")
        keys = schema.keys() - NOTES
        if not keys:
            return _anything(DEPTH)
        for key in ("$ref", "anyOf", "allOf", "enum", "const"):
            if key in keys:
                beside = keys - {key} - ({"type"} if key in ("enum", "const") else set())
                if beside:
                    raise _unsupported(f"{key} together with {min(beside)}", at)
                return self._special(key, schema, at, within)
        kinds = schema["type"] if "type" in keys else _implied(keys, at)
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or not kinds:
            raise TacgError(f"`{at}.type` must name a JSON type, got {kinds!r}.")
        known = set().union(*(OF_TYPE.get(kind, ()) for kind in kinds if isinstance(kind, str)))
        if strange := keys - {"type"} - known:
            raise _unsupported(min(strange), at)
        return _either(self._typed(kind, schema, at, within) for kind in kinds)

    def _special(self, key: str, schema: Mapping[str, Any], at: str, within: tuple[str, ...]) -> str:
        given = schema[key]
        if key == "$ref":
            if given in within:
                raise _unsupported(f"the recursive reference {given}", at)
            return self.value(self._referred(given, at), at, (*within, given))
        if key == "const":
            return _spelled(given)
        if not isinstance(given, list) or not given:
            raise TacgError(f"`{at}.{key}` must be a non-empty list, got {given!r}.")
        if key == "enum":
            kinds = schema.get("type")
            return _either(_spelled(each) for each in given if _is_of(each, kinds))
        if key == "allOf" and len(given) > 1:
            raise _unsupported("allOf of several schemas", at)
        return _either(self.value(each, f"{at}.{key}[{n}]", within) for n, each in enumerate(given))

    def _referred(self, reference: Any, at: str) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _unsupported(f"the reference {reference!r}", at)
        found: Any = self.root
        for part in reference.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or part not in found:
                raise TacgError(f"`{at}` refers to {reference!r}, which the schema does not have.")
            found = found[part]
        return found

    def _typed(self, kind: Any, schema: Mapping[str, Any], at: str, within: tuple[str, ...]) -> str:
        if kind == "object":
            return self._object(schema, at, within)
        if kind == "array":
            return self._array(schema, at, within)
        if kind not in SCALARS:
            raise TacgError(f"`{at}.type` must be one of object, array, {', '.join(SCALARS)}; got {kind!r}.")
        if kind == "string" and {"minLength", "maxLength"} & schema.keys():
            return f'"{CHARACTER}{_times(schema, "minLength", "maxLength", at)}"'
        if kind == "integer" and OF_TYPE["integer"] & schema.keys():
            return _integers(*_bounds(schema, at))
        return SCALARS[kind]

    def _object(self, schema: Mapping[str, Any], at: str, within: tuple[str, ...]) -> str:
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise TacgError(f"`{at}.properties` must be an object, got {properties!r}.")
        more, required = schema.get("additionalProperties", True), schema.get("required", [])
        if missing := [name for name in required if name not in properties]:
            raise TacgError(f"`{at}.required` must name properties of the schema, got {missing[0]!r}.")
        if not properties:
            if more is False:
                return r"\{\}"
            value = _anything(0) if more is True else self.value(more, f"{at}.additionalProperties", within)
            return _listed(r"\{", rf"{SCALARS['string']}: {value}", "*", r"\}")
        parts = [
            (f"{_spelled(name)}: {self.value(each, f'{at}.properties.{name}', within)}", name in required)
            for name, each in properties.items()
        ]
        return rf"\{{{_in_order(parts)}\}}"

    def _array(self, schema: Mapping[str, Any], at: str, within: tuple[str, ...]) -> str:
        items = schema.get("items", True)
        if "prefixItems" in schema:
            if items is not False and "items" in schema:
                raise _unsupported("prefixItems together with items", at)
            if {"minItems", "maxItems"} & schema.keys() and not (
                schema.get("minItems", 0) <= len(schema["prefixItems"]) <= schema.get("maxItems", MOST_REPEATS)
            ):
                raise _unsupported("prefixItems whose number differs from minItems or maxItems", at)
            first = enumerate(schema["prefixItems"])
            return rf"\[{', '.join(self.value(each, f'{at}.prefixItems[{n}]', within) for n, each in first)}\]"
        value = _anything(0) if items is True or items == {} else self.value(items, f"{at}.items", within)
        return _listed(r"\[", value, _times(schema, "minItems", "maxItems", at), r"\]")


def _unsupported(what: str, at: str) -> TacgError:
    return TacgError(f"`{at}` uses {what}, which is not supported: leave it out of the schema.")


def _implied(keys: set[str], at: str) -> str:
    """The type that the keywords imply if a schema names none."""
    kinds = [kind for kind in ("object", "array") if keys <= OF_TYPE[kind]]
    if not kinds:
        raise _unsupported(f"{min(keys)} without a type", at)
    return kinds[0]


def _either(patterns: Any) -> str:
    several = list(dict.fromkeys(patterns))
    if not several:
        raise TacgError("`enum` must have a value of the schema's `type`.")
    return several[0] if len(several) == 1 else f"(?:{'|'.join(several)})"


def _spelled(value: Any) -> str:
    """A pattern that matches exactly this value as JSON."""
    return literal(json.dumps(value, ensure_ascii=False))


def literal(text: str) -> str:
    """A regular expression that matches this text alone."""
    return re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", text)


def _is_of(value: Any, kinds: Any) -> bool:
    if kinds is None:
        return True
    names = {str: ("string",), bool: ("boolean",), int: ("integer", "number"), float: ("number",)} | {
        type(None): ("null",), dict: ("object",), list: ("array",),
    }  # fmt: skip
    return bool({*names[type(value)]} & {*([kinds] if isinstance(kinds, str) else kinds)})


def _anything(depth: int) -> str:
    """Any JSON value, nested up to `depth` levels."""
    kinds = [pattern for kind, pattern in SCALARS.items() if kind != "integer"]
    if depth:
        value = _anything(depth - 1)
        kinds += [_listed(r"\[", value, "*", r"\]"), _listed(r"\{", rf"{SCALARS['string']}: {value}", "*", r"\}")]
    return _either(kinds)


def _listed(before: str, item: str, times: str, after: str) -> str:
    """Items separated by commas, repeated `*` or `{low,high}` times."""
    low, high = (0, None) if times == "*" else _range(times)
    if high == 0:
        return f"{before}{after}"
    rest = f"{{{max(low - 1, 0)},{'' if high is None else high - 1}}}"
    items = f"{item}(?:, {item}){rest}"
    return f"{before}{items}{after}" if low else f"{before}(?:{items})?{after}"


def _range(times: str) -> tuple[int, int | None]:
    low, _, high = times[1:-1].partition(",")
    return int(low), int(high) if high else None


def _times(schema: Mapping[str, Any], low: str, high: str, at: str) -> str:
    least, most = schema.get(low, 0), schema.get(high)
    for name, value in ((low, least), (high, most)):
        if value is not None and not (type(value) is int and 0 <= value <= MOST_REPEATS):
            raise TacgError(f"`{at}.{name}` must be a whole number in [0, {MOST_REPEATS}], got {value!r}.")
    if most is not None and most < least:
        raise TacgError(f"`{at}.{high}` must be at least `{low}`, {least}; got {most}.")
    return "*" if not least and most is None else f"{{{least},{'' if most is None else most}}}"


def _in_order(parts: list[tuple[str, bool]]) -> str:
    """Properties separated by commas; those not required may be left out.

    Each property either is written first or follows a comma. So the pattern is built from the end, in two versions:
    what may follow another property, beginning with a comma, and what may come first, without one.
    """
    after, first = "", ""  # after another property, and after the brace
    for part, required in reversed(parts):
        after, first = (
            (f", {part}{after}", f"{part}{after}")
            if required
            else (f"(?:, {part})?{after}", f"(?:{part}{after}|{first})" if first else f"(?:{part}{after})?")
        )
    return first


def _bounds(schema: Mapping[str, Any], at: str) -> tuple[int | None, int | None]:
    for name in OF_TYPE["integer"]:
        if name in schema and type(schema[name]) is not int:
            raise TacgError(f"`{at}.{name}` must be a whole number for an integer, got {schema[name]!r}.")
    lows = [schema["minimum"]] if "minimum" in schema else []
    lows += [schema["exclusiveMinimum"] + 1] if "exclusiveMinimum" in schema else []
    highs = [schema["maximum"]] if "maximum" in schema else []
    highs += [schema["exclusiveMaximum"] - 1] if "exclusiveMaximum" in schema else []
    low, high = max(lows, default=None), min(highs, default=None)
    if low is not None and high is not None and low > high:
        raise TacgError(f"`{at}` must allow at least one integer, got at least {low} and at most {high}.")
    return low, high


def _integers(low: int | None, high: int | None) -> str:
    """Whole numbers in a range, open where a bound is None; zero has no sign."""
    parts = []
    if low is None or low < 0:
        parts += [f"-(?:{each})" for each in _naturals(max(1, -high if high is not None else 1), low and -low)]
    if high is None or high >= 0:
        parts += _naturals(max(0, low or 0), high)
    return _either(parts)


def _naturals(low: int, high: int | None) -> list[str]:
    """Patterns of the whole numbers from `low` >= 0 on, without leading zeros."""
    if high is None:
        digits = len(str(low))
        return [*_naturals(low, 10**digits - 1), rf"[1-9][0-9]{{{digits},}}"]
    # Cut where the number of digits changes; then digit by digit.
    edges = [low, *(10**n for n in range(1, len(str(high))) if low < 10**n <= high), high + 1]
    return [pattern for start, stop in pairwise(edges) for pattern in _digits(str(start), str(stop - 1))]


def _digits(low: str, high: str) -> list[str]:
    """Patterns of the numbers between two of equally many digits."""
    if not low:
        return [""]
    if low[0] == high[0]:
        return [low[0] + rest for rest in _digits(low[1:], high[1:])]
    found, first, last = [], int(low[0]), int(high[0])
    if low[1:].strip("0"):
        found += [low[0] + rest for rest in _digits(low[1:], "9" * len(low[1:]))]
        first += 1
    if high[1:].strip("9"):
        found += [high[0] + rest for rest in _digits("0" * len(high[1:]), high[1:])]
        last -= 1
    if first <= last:
        some = f"[{first}-{last}]" if first < last else str(first)
        found.append(some + (f"[0-9]{{{len(low) - 1}}}" if len(low) > 1 else ""))
    return found
