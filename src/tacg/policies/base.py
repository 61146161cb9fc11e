"""The contract of a policy, and the register of those that exist.

A policy is a frozen dataclass: its fields are its knobs, `needs` names the signals it reads, and `decide` is a pure
function from signals (and its own small state) to a decision. It never sees logits, the canvas or the model.
"""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tacg.errors import TacgError, unknown
from tacg.files import read_text
from tacg.knobs import Knobs
from tacg.shapes import misfit
from tacg.types import Decision, Needs, Signals

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

State = dict[str, Any]  # tensors whose first axis is the row; may nest


@dataclass(frozen=True)
class Policy(Knobs):
    """Decides when proposals are committed. Subclasses are frozen dataclasses; one file per published decoder.

    name     what users type; the register sets it where a class does not
    needs    signals beyond token and confidence that `decide` reads
    revises  whether it re-masks or edits what is committed

    Progress is the engine's business: a policy may accept nothing, and the engine then commits by `Decision.rank`.
    """

    name: ClassVar[str] = ""

    @property
    def revises(self) -> bool:
        """Whether it may re-mask or edit what is committed: text of an open block is not final then."""
        return False

    @property
    def needs(self) -> Needs:
        """Nothing beyond token and confidence, unless a policy says otherwise."""
        return Needs()

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """State for `rows` rows of `width` positions, tensors [rows, width, …].

        There is nothing to reset later: where `signals.first` is true a trajectory begins, whatever the state holds.
        """
        return {}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """What to commit now, and the state after it. Must not modify its arguments."""
        raise NotImplementedError(f"`{type(self).__name__}` must define decide(signals, state).")

    def choose(self, branches: Signals, state: State) -> Tensor:
        """Which of the branches that were proposed in the last step goes on, int64 [R].

        branches  signals of the alternatives, boards [R, K, L]: a policy that proposes branches must define this
        """
        raise NotImplementedError(f"`{type(self).__name__}` proposes branches: it must define choose(branches, state).")

    @property
    def label(self) -> str:
        """The name with the knobs that differ from their defaults: `confidence(threshold=0.7)`."""
        defaults = {name: each.default for name, each in self.knobs().items()}
        changed = [f"{name}={value}" for name, value in self.values().items() if value != defaults[name]]
        return self.name + (f"({', '.join(changed)})" if changed else "")


@dataclass(frozen=True)
class Wrapper(Policy):
    """A policy over another policy, spelled `wrapper+base`; `wrapper` alone wraps `confidence`."""

    base: Policy

    @property
    def revises(self) -> bool:
        """As the base policy."""
        return self.base.revises

    def choose(self, branches: Signals, state: State) -> Tensor:
        """The base policy's choice."""
        return self.base.choose(branches, state["base"])

    @property
    def label(self) -> str:
        """As any policy's, with the base spelled out unless it is the default one."""
        plain = super().label
        _, bracket, knobs = plain.partition("(")
        name = self.name if self.base.name == DEFAULT_BASE else f"{self.name}+{self.base.name}"
        return name + bracket + knobs


DEFAULT_BASE = "confidence"
GROUP = "tacg.policies"  # the entry-point group in which other packages announce policies

_BUILT_IN = {
    "schedule": "tacg.policies.schedule:Schedule",
    "confidence": "tacg.policies.confidence:Confidence",
    "klass": "tacg.policies.klass:Klass",
    "eb": "tacg.policies.eb:EntropyBound",
    "frechet": "tacg.policies.frechet:Frechet",
    "credit": "tacg.policies.credit:CreditDecoding",
    "saber": "tacg.policies.saber:Saber",
    "d3llm": "tacg.policies.d3llm:D3llm",
    "lookum": "tacg.policies.lookum:Lookum",
    "prophet": "tacg.policies.prophet:Prophet",
    "tacg": "tacg.policies.tacg:Tacg",
    "tacg-released": "tacg.policies.tacg_released:TacgReleased",
    "tacg-released-dream": "tacg.policies.tacg_released_dream:TacgReleasedDream",
    "tacg-released-dream-ema": "tacg.policies.tacg_released_dream:TacgReleasedDreamEma",
}
_registered: dict[str, type[Policy]] = {}

P = TypeVar("P", bound=type[Policy])


def register(name: str) -> Callable[[P], P]:
    """Class decorator: make a policy available under `name` in this process."""

    def add(cls: P) -> P:
        if name in _BUILT_IN or _registered.get(name, cls) is not cls:
            raise TacgError(f"A policy named {name!r} exists already; choose another name.")
        return _keep(name, cls)

    return add


def policy_names() -> list[str]:
    """Every policy that can be asked for, without importing any of them."""
    announced = {point.name for point in metadata.entry_points(group=GROUP)}
    return sorted(_BUILT_IN.keys() | _registered.keys() | announced)


def policy_class(name: str) -> type[Policy]:
    """The class behind a name; imported on first use."""
    if name in _registered:
        return _registered[name]
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        cls: type[Policy] = getattr(importlib.import_module(module), attribute)
    else:
        points = [point for point in metadata.entry_points(group=GROUP) if point.name == name]
        if not points:
            raise unknown("policy", name, policy_names())
        try:
            cls = points[0].load()
        except Exception as error:  # whatever a stranger's module does when it is imported
            raise TacgError(f"The policy {name!r} cannot be loaded from {points[0].value!r}: {error!r}.") from error
        if not (isinstance(cls, type) and issubclass(cls, Policy)):
            raise TacgError(f"Entry point {points[0].value!r} must name a subclass of tacg.Policy, got {cls!r}.")
    return _keep(name, cls)


def _keep(name: str, cls: P) -> P:
    if "name" not in vars(cls):
        cls.name = name
    _registered[name] = cls
    return cls


def get_policy(spec: str | Policy, **knobs: Any) -> Policy:
    """A policy from its spelling, with knobs turned.

    `confidence`, `tacg` (over confidence), `tacg+klass`; `name:preset` starts from published settings, for example
    `tacg:llada/gsm8k` (see `tacg policies --presets`).
    """
    if isinstance(spec, Policy):
        return spec.turn(**knobs)
    name, _, preset = spec.partition(":")
    settings = find_preset(name, preset)["knobs"] if preset else {}
    return _build(name).turn(**(settings | knobs))


def _build(name: str) -> Policy:
    outer, _, inner = name.partition("+")
    cls = policy_class(outer)
    if issubclass(cls, Wrapper):
        return cls(base=_build(inner or DEFAULT_BASE))
    if inner:
        raise TacgError(f"`{outer}` wraps no other policy, so {name!r} means nothing; try `tacg+{outer}`.")
    return cls()


def presets() -> dict[str, dict[str, Any]]:
    """Published settings by full name, `tacg:llada/gsm8k`: {"knobs": …, "decode": …}."""
    text = resources.files("tacg.policies").joinpath("presets.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    models = tables.pop("models")
    found = {}
    for policy, tasks in tables.items():
        for task, knobs in tasks.items():
            found[f"{policy}:{task}"] = {"knobs": knobs, "decode": models[task.partition("/")[0]]}
    return found


def find_preset(policy: str, task: str) -> dict[str, Any]:
    """One entry of `presets()`, or a preset file (`tacg:path.toml`, as `tacg tune` writes them)."""
    if task.endswith(".toml"):
        return _preset_file(policy, Path(task))
    known = presets()
    full = f"{policy}:{task}"
    if full not in known:
        raise unknown("preset", full, known)
    return known[full]


def _preset_file(policy: str, path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(read_text(path, "preset file"))
    except (ValueError, RecursionError) as error:  # TOML's errors, and what its reader does not foresee
        if isinstance(error, TacgError):
            raise
        raise TacgError(f"The preset file {str(path)!r} is not valid TOML: {str(error)[:200]}.") from None
    if wrong := misfit(found, {"policy": str, "knobs?": dict, "decode?": dict}):
        raise TacgError(f"The preset file {str(path)!r}: {wrong}; `tacg tune` writes such files.")
    if found.get("policy") != policy:
        theirs = found["policy"][:80]
        raise TacgError(f"{path} is a preset of {theirs!r}: spell it {theirs}:{path}.")
    return {"knobs": found.get("knobs", {}), "decode": found.get("decode", {})}


def fresh(signals: Signals, values: Tensor, neutral: float) -> Tensor:
    """`values` [R, W, …] with `neutral` wherever a trajectory begins in this step."""
    first = signals.first.view(*signals.first.shape, *[1] * (values.dim() - 2))
    return values.masked_fill(first, neutral)
