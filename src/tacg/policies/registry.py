"""Policies by name: built in, registered in this process, or provided by other packages."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from tacg.errors import TacgError, unknown
from tacg.policies.base import DEFAULT_BASE, Policy, Wrapper
from tacg.policies.presets import find_preset

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = "tacg.policies"  # the entry-point group in which other packages provide policies

BUILT_IN = {  # in the order in which tables list them
    "schedule": "tacg.policies.schedule:Schedule",
    "confidence": "tacg.policies.confidence:Confidence",
    "klass": "tacg.policies.klass:Klass",
    "entropy": "tacg.policies.entropy:EntropyThreshold",
    "eb": "tacg.policies.eb:EntropyBound",
    "frechet": "tacg.policies.frechet:Frechet",
    "localleap": "tacg.policies.localleap:LocalLeap",
    "hierarchy": "tacg.policies.hierarchy:Hierarchy",
    "slowfast": "tacg.policies.slowfast:SlowFast",
    "credit": "tacg.policies.credit:CreditDecoding",
    "saber": "tacg.policies.saber:Saber",
    "joint": "tacg.policies.joint:JointThreshold",
    "d3llm": "tacg.policies.d3llm:D3llm",
    "lookum": "tacg.policies.lookum:Lookum",
    "lopa": "tacg.policies.lopa:Lopa",
    "attention": "tacg.policies.attention:Attention",
    "dapd": "tacg.policies.dapd:Dapd",
    "apd": "tacg.policies.apd:Apd",
    "prophet": "tacg.policies.prophet:Prophet",
    "sched": "tacg.policies.sched:Sched",
    "swd": "tacg.policies.swd:Swd",
    "ahd": "tacg.policies.ahd:Ahd",
    "streaming": "tacg.policies.streaming:Streaming",
    "wino": "tacg.policies.wino:Wino",
    "tacg": "tacg.policies.tacg:Tacg",
    "auto": "tacg.policies.auto:Auto",
    "tacg-released": "tacg.policies.tacg_released:TacgReleased",
    "tacg-released-dream": "tacg.policies.tacg_released_dream:TacgReleasedDream",
    "tacg-released-dream-ema": "tacg.policies.tacg_released_dream:TacgReleasedDreamEma",
}
_registered: dict[str, type[Policy]] = {}

P = TypeVar("P", bound=type[Policy])


def register(name: str) -> Callable[[P], P]:
    """Class decorator: make a policy available under `name` in this process."""

    def add(cls: P) -> P:
        if name in BUILT_IN or _registered.get(name, cls) is not cls:
            raise TacgError(f"A policy named {name!r} exists already; choose another name.")
        return _keep(name, cls)

    return add


def policy_names() -> list[str]:
    """The names of all available policies, without importing any of them."""
    announced = {point.name for point in metadata.entry_points(group=GROUP)}
    return sorted(BUILT_IN.keys() | _registered.keys() | announced)


def policy_class(name: str) -> type[Policy]:
    """The class of a policy; imported on first use."""
    if name in _registered:
        return _registered[name]
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        cls: type[Policy] = getattr(importlib.import_module(module), attribute)
    else:
        cls = _announced(name)
    return _keep(name, cls)


def _announced(name: str) -> type[Policy]:
    """The class that another package provides under this name (as an entry point)."""
    points = [point for point in metadata.entry_points(group=GROUP) if point.name == name]
    if not points:
        raise unknown("policy", name, policy_names(), "tacg policies")
    try:
        cls = points[0].load()
    except Exception as error:  # importing another package may raise anything
        raise TacgError(f"The policy {name!r} cannot be loaded from {points[0].value!r}: {error!r}.") from error
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise TacgError(f"Entry point {points[0].value!r} must name a subclass of tacg.Policy, got {cls!r}.")
    return cls


def _keep(name: str, cls: P) -> P:
    if "name" not in vars(cls):
        cls.name = name
    _registered[name] = cls
    return cls


def get_policy(spec: str | Policy, **knobs: Any) -> Policy:
    """Build a policy from its name, with some knobs changed.

    `confidence`, `tacg` (over confidence), `tacg+klass`; `name:preset` starts from published settings, for example
    `tacg:llada/gsm8k` (see `tacg policies --presets`).
    """
    if isinstance(spec, Policy):
        return spec.replace(**knobs)
    name, _, preset = spec.partition(":")
    settings = find_preset(name, preset)["knobs"] if preset else {}
    return _build(name).replace(**(settings | knobs))


def _build(name: str) -> Policy:
    outer, _, inner = name.partition("+")
    cls = policy_class(outer)
    if issubclass(cls, Wrapper):
        return cls(base=_build(inner or DEFAULT_BASE))
    if inner:
        raise TacgError(f"`{outer}` does not wrap other policies, so {name!r} is not valid; try `tacg+{outer}`.")
    return cls()
