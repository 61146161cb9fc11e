"""Knobs: every setting is declared once, with its range, its symbol in the paper and its meaning.

A settings class is a frozen dataclass that inherits `Knobs` and declares its fields with `knob(…)`. Validation, the
command line's parsing, `tacg policies` and the docs all read that one declaration.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self, cast

from tacg.errors import TacgError, unknown
from tacg.shapes import brief

if TYPE_CHECKING:
    from collections.abc import Hashable

BIG = 2**63  # no knob needs more, and larger integers do not fit a tensor


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting. `kind` is its Python type; `low` and `high` are inclusive.

    per_row  rows with different values may share a batch: code that reads the knob also accepts a tensor [R, 1]
    """

    name: str
    kind: type
    default: Any
    meaning: str
    symbol: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    per_row: bool = False

    @property
    def type_name(self) -> str:
        """The type as shown to users: `float in [0, 1] or none`, `even | linspace`."""
        name = " | ".join(self.choices) if self.choices else self.kind.__name__
        if self.low is not None and self.high is not None:
            name += f" in [{self.low:g}, {self.high:g}]"
        elif self.low is not None:
            name += f" >= {self.low:g}"
        return name + (" or none" if self.optional else "")

    def check(self, value: Any) -> Any:
        """Return `value` in the knob's own type, or raise naming the knob, the constraint and the value."""
        if value is None and self.optional:
            return None
        if self.kind is float and type(value) is int and -BIG < value < BIG:
            value = float(value)
        right_type = type(value) is self.kind and not (isinstance(value, int | float) and not -BIG < value < BIG)
        in_range = right_type and (
            (not self.choices or value in self.choices)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
        )
        if not in_range:
            raise TacgError(f"`{self.name}` must be {self.type_name}, got {brief(value)}.")
        return value

    def parse(self, text: str) -> Any:
        """Read a value typed on a command line."""
        word = text.strip().lower()
        if self.optional and word in ("none", "null", ""):
            return None
        if self.kind is bool:
            meanings = {"true": True, "yes": True, "on": True, "1": True}
            meanings |= {"false": False, "no": False, "off": False, "0": False}
            if word not in meanings:
                raise TacgError(f"`{self.name}` must be true or false, got {brief(text)}.")
            return meanings[word]
        try:
            return self.check(self.kind(text.strip()))
        except (ValueError, TypeError) as error:
            if isinstance(error, TacgError):
                raise
            raise TacgError(f"`{self.name}` must be {self.type_name}, got {brief(text)}.") from None


def knob(
    default: Any,
    meaning: str,
    *,
    symbol: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    per_row: bool = False,
) -> Any:
    """Declare a dataclass field as a knob (see `Knob`)."""
    facts = {"meaning": meaning, "symbol": symbol, "low": low, "high": high, "choices": choices, "per_row": per_row}
    return field(default=default, metadata={"knob": facts})


@dataclass(frozen=True)
class Knobs:
    """A frozen settings class. Fields that are themselves `Knobs` are groups; their knobs are reached by plain name."""

    def __post_init__(self) -> None:
        for each in own_knobs(type(self)):
            object.__setattr__(self, each.name, each.check(getattr(self, each.name)))

    def groups(self) -> dict[str, Knobs]:
        """The fields of this object that are `Knobs` themselves."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Knobs)}

    def knobs(self) -> dict[str, Knob]:
        """Every knob of this object by name, including those of its groups."""
        found = {each.name: each for each in own_knobs(type(self))}
        for group in self.groups().values():
            twice = found.keys() & group.knobs().keys()
            if twice:
                raise TacgError(f"Two knobs are named `{min(twice)}` in {type(self).__name__}: rename one of them.")
            found |= group.knobs()
        return found

    def values(self) -> dict[str, Any]:
        """The current value of every knob, by name."""
        found = {each.name: getattr(self, each.name) for each in own_knobs(type(self))}
        for group in self.groups().values():
            found |= group.values()
        return found

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these knobs changed; an unknown name raises an error that suggests the nearest one."""
        known = self.knobs()
        for name in changes:
            if name not in known:
                raise unknown(f"knob of `{getattr(self, 'name', type(self).__name__)}`", name, known)
        mine = {each.name for each in own_knobs(type(self))}
        new: dict[str, Any] = {name: value for name, value in changes.items() if name in mine}
        for field_name, group in self.groups().items():
            theirs = {n: v for n, v in changes.items() if n not in mine and n in group.knobs()}
            if theirs:
                new[field_name] = group.replace(**theirs)
        return dataclasses.replace(self, **new)

    def structure(self) -> Hashable:
        """What must be equal for two objects to share a batch: everything except the values of `per_row` knobs."""
        mine = tuple(
            (each.name, value is None if each.per_row else value)
            for each, value in ((each, getattr(self, each.name)) for each in own_knobs(type(self)))
        )
        return type(self), mine, tuple((name, group.structure()) for name, group in self.groups().items())


def own_knobs(cls: type[Knobs]) -> tuple[Knob, ...]:
    """The knobs that a class itself declares, in order."""
    return _declared(cast("Any", cls))


@functools.cache
def _declared(cls: Any) -> tuple[Knob, ...]:
    found = []
    for each in fields(cls):
        if facts := each.metadata.get("knob"):
            kind, optional = _kind(each.type)
            found.append(Knob(each.name, kind, each.default, optional=optional, **facts))
    return tuple(found)


def _kind(hint: Any) -> tuple[type, bool]:
    """`float | None` -> (float, True); `int` -> (int, False). Hints may be types or strings (postponed annotations)."""
    spelling = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    words = [word.strip() for word in spelling.split("|")]
    kinds = {"int": int, "float": float, "bool": bool, "str": str}
    if words[0] not in kinds or words[1:] not in ([], ["None"]):
        raise TacgError(f"A knob must be int, float, bool or str, perhaps `| None`; got {spelling!r}.")
    return kinds[words[0]], len(words) > 1
