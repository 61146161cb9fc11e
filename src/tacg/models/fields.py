"""Reading config.json: each field by name, checked for type and range, so that no invalid value reaches torch."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST = 1 << 22  # upper limit of any size: larger than in every existing model


def short(value: Any) -> str:
    """A value, shortened for an error message: it may be a megabyte long."""
    return _short.repr(value)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


class Fields:
    """The fields of one config.json. A wrong one raises with its name, what it must be, and what it is."""

    def __init__(self, config: Mapping[str, Any], family: str) -> None:
        self.config, self.family = config, family

    def size(self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number from `least` to `most`."""
        value = self._get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise TacgError(f"config.json: `{name}` must be a whole number from {least} to {most}, got {short(value)}.")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise TacgError(f"config.json: `{name}` must be a positive number, got {short(value)}.")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise TacgError(f"config.json: `{name}` must be true or false, got {short(value)}.")
        return value

    def only(self, switches: Mapping[str, Any]) -> None:
        """Refuse switches that change the network in a way that is not implemented."""
        for name, value in switches.items():
            if self.config.get(name) not in (None, False if value is None else value):
                raise TacgError(
                    f"config.json: `{name}` must be {value!r} for model_type {self.family!r}, "
                    f"got {short(self.config[name])}."
                )

    def without(self, *names: str) -> None:
        """Refuse fields whose presence means another network."""
        for name in names:
            if self.config.get(name) is not None:
                raise TacgError(
                    f"config.json: `{name}` is not supported for model_type {self.family!r}, "
                    f"got {short(self.config[name])}."
                )

    def heads(self, width: str, heads: str, kv_heads: str) -> tuple[int, int, int, int]:
        """(width, heads, kv heads, head size) of attention whose heads share the width evenly."""
        size, count = self.size(width), self.size(heads, most=1 << 12)
        shared = self.size(kv_heads, count, most=1 << 12)
        if size % count or size // count % 2:
            raise TacgError(f"config.json: `{width}` must be an even multiple of `{heads}`, got {size} and {count}.")
        if count % shared:
            raise TacgError(f"config.json: `{heads}` must be a multiple of `{kv_heads}`, got {count} and {shared}.")
        return size, count, shared, size // count

    def _get(self, name: str, default: Any) -> Any:
        value = self.config.get(name)
        if value is None:
            value = default
        if value is None:
            raise TacgError(f"config.json: `{name}` is missing; model_type {self.family!r} needs it.")
        return value
