"""Policies from a Python file that the user names: `file.py:Class`, also under a wrapper, `tacg+file.py:Class`.

Naming a file runs it. So this is only used for what a person typed on the command line, never for requests to a server.
`get_policy` knows such a policy only after it has been loaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError, unknown
from tacg.files import refuse_irregular
from tacg.policies.base import Policy
from tacg.policies.registry import policy_names, register

if TYPE_CHECKING:
    from types import ModuleType

SUFFIX = ".py"


def load_own(spec: str) -> tuple[str, str]:
    """Register the policy of a name such as `tacg+own.py:Bold:preset.toml`.

    Returns the name with the policy's registered name in place of file and class, and the part that was replaced. Any
    other name is returned unchanged, with an empty text.
    """
    wrappers, rest = "", spec
    while (parts := rest.partition("+"))[1] and parts[0] in policy_names():
        wrappers, rest = f"{wrappers}{parts[0]}+", parts[2]
    file, colon, behind = rest.partition(f"{SUFFIX}:")
    if not colon and not rest.endswith(SUFFIX):
        return spec, ""
    name, preset = (behind.partition(":")[0], behind.partition(":")[1:]) if colon else ("", ("", ""))
    path = file + SUFFIX if colon else rest
    cls = _class(_module(Path(path).expanduser()), path, name)
    return f"{wrappers}{_registered(cls)}{''.join(preset)}", f"{path}:{name}"


def _module(path: Path) -> ModuleType:
    """The file as a module, run once per process."""
    refuse_irregular(path, "policy file")
    real = path.resolve()
    name = f"tacg_own_{hashlib.sha256(str(real).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, real)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        found.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything
        del sys.modules[name]
        raise TacgError(f"The policy file {str(path)!r} cannot be run: {type(error).__name__}: {error}.") from error
    return module


def _class(module: ModuleType, path: str, name: str) -> type[Policy]:
    """The class of that name, checked."""
    defined = [
        each for each, value in vars(module).items() if _is_policy(value) and value.__module__ == module.__name__
    ]
    if not name:
        there = f"it has {', '.join(defined)}" if defined else "it has none"
        raise TacgError(f"Name a policy of {path!r}, as in {path}:Class; {there}.")
    cls: Any = getattr(module, name, None)
    if cls is None:
        raise unknown(f"policy of {path!r}:", name, defined)
    if not _is_policy(cls):
        raise TacgError(f"{path}:{name} must be a class that derives from tacg.Policy, got {cls!r}.")
    params = vars(cls).get("__dataclass_params__")
    if params is None or not params.frozen:
        raise TacgError(f"{path}:{name} must be a frozen dataclass: write @dataclass(frozen=True) above the class.")
    if cls.decide is Policy.decide:
        raise TacgError(f"{path}:{name} must define decide(self, signals, state); see examples/own_policy.py.")
    checked: type[Policy] = cls
    return checked


def _is_policy(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Policy)


def _registered(cls: type[Policy]) -> str:
    """The policy's name in the registry: its `name`, or the class name in lower case."""
    name = cls.name if "name" in vars(cls) else cls.__name__.lower()
    register(name)(cls)
    return name
