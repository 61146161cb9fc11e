"""The authors' code, imported from a checkout and unloaded again: none of it is part of this package."""

from __future__ import annotations

import importlib
import subprocess
import sys
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class StandIn(ModuleType):
    """A module in place of one that is not installed. The decoding loops use nothing of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class StandInFinder:
    """Finds stand-ins for the modules named, and for everything below them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Called by the import system: find a module."""
        parts = name.split(".")
        known = any(".".join(parts[:depth]) in self.names for depth in range(1, len(parts) + 1))
        return ModuleSpec(name, self, is_package=True) if known else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Called by the import system: create the module."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def load_module(folder: Path, name: str, without: Sequence[str] = ()) -> ModuleType:
    """Import the module `name` (dots for folders) that lies under `folder`.

    Packages on the way are entered without running their __init__. Modules in `without` are replaced by stand-ins.
    Afterwards these modules are unloaded, so that two checkouts may use the same names.
    """
    with _only_here(folder, without):
        *parents, _ = name.split(".")
        for depth in range(1, len(parents) + 1):
            package = ModuleType(".".join(parents[:depth]))
            package.__path__ = [str(folder.joinpath(*parents[:depth]))]
            sys.modules[package.__name__] = package
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise TacgError(f"{folder / name.replace('.', '/')}.py cannot be imported: {error}.") from error


@contextmanager
def _only_here(folder: Path, without: Sequence[str]) -> Iterator[None]:
    """Imports search `folder` first; what was imported from there is unloaded at the end."""
    finder = StandInFinder(without)
    before = dict(sys.modules)
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if before.get(name) is not module and (
                isinstance(module, StandIn) or not file or folder in Path(file).parents
            ):
                sys.modules.pop(name)
                if name in before:
                    sys.modules[name] = before[name]


def commit_of(checkout: Path) -> str:
    """The commit that is checked out, seven digits; "unknown" without git."""
    asked = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or "unknown"
