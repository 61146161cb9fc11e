"""How TACG is set up inside another engine: one flat mapping of names and values, checked as a whole."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from tacg.errors import TacgError, unknown
from tacg.knobs import Knobs, knob, own_knobs
from tacg.policies import find_preset, get_policy
from tacg.scan.step_scan import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tacg.policies import Policy, Wrapper

logger = logging.getLogger(__name__)

SHARED = ("temperature", "seed", "memory", "scan")  # settings that a preset may have
LENGTHS = ("gen_length", "block_length", "steps", "cache", "early_stop")
LARGE = 8 << 20  # bytes of a block's fp32 reference above which bf16 is the default


@dataclass(frozen=True)
class Settings(Knobs):
    """What is not the policy's. `base` and `preset` choose the policy."""

    base: str = knob("confidence", "the policy that TACG gates")
    preset: str | None = knob(None, "published settings to start from, such as llada2-mini/any")
    steps: int | None = knob(None, "denoising steps of a block at most (none: one per position)", low=1)
    temperature: float = knob(0.0, "0: most probable token; above 0: random sampling", symbol="T", low=0)
    seed: int = knob(0, "random seed, together with the request's id", low=0)
    memory: str = knob(
        "auto", "how the reference is kept: auto takes bf16 for large blocks", choices=("auto", "fp32", "bf16")
    )
    scan: str = knob("auto", "what reads the logits: auto takes the fastest that the device has", choices=BACKENDS)
    step_map: bool = knob(False, "tell at which step, and why, each token was committed")
    suppress: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        ids = self.suppress
        if not isinstance(ids, list | tuple) or not all(type(each) is int and each >= 0 for each in ids):
            raise TacgError(f"`suppress` must be a list of token ids, got {ids!r}.")
        object.__setattr__(self, "suppress", tuple(ids))

    def kind(self, width: int, vocabulary: int) -> str:
        """fp32 or bf16: how the reference of blocks of this size is kept."""
        if self.memory != "auto":
            return self.memory
        return "bf16" if width * vocabulary * 4 > LARGE else "fp32"


def read_settings(given: Mapping[str, Any], allowed: Collection[str] = ()) -> tuple[Policy, Settings]:
    """The gate and its settings out of a flat mapping; an unknown name is refused with the nearest match.

    allowed  names that are the engine's own and none of ours
    """
    ours = {each.name for each in own_knobs(Settings)} | {"suppress"}
    settings = Settings(**{name: value for name, value in given.items() if name in ours})
    if settings.base.startswith("tacg"):
        raise TacgError(f"`base` must be what TACG gates, such as confidence or klass; got {settings.base!r}.")
    spelling = "tacg" if settings.base == "confidence" else f"tacg+{settings.base}"
    if settings.preset is not None:
        settings = _with_preset(settings, given, spelling)
        spelling = f"{spelling}:{settings.preset}"
    policy = get_policy(spelling)
    theirs = policy.knobs().keys()
    if twice := ours & theirs:
        raise TacgError(f"`{policy.name}` has a knob named `{min(twice)}`, as the engine has: rename the policy's.")
    for name in given:
        if name not in ours | theirs | set(allowed):
            raise unknown("setting", str(name), ours | theirs | set(allowed))
    policy = policy.replace(**{name: value for name, value in given.items() if name in theirs})
    needs = policy.needs  # which may depend on a knob
    more = (needs.committed, needs.samples, needs.branches, needs.attention, needs.verifier)
    if needs.scope != "block" or needs.suffix is not None or any(more):
        raise TacgError(
            f"`base` must be a policy that fills the masks of one block, as engines hand over no more than that; "
            f"`{cast('Wrapper', policy).base.label}` reaches beyond it."
        )
    return policy, settings


def _with_preset(settings: Settings, given: Mapping[str, Any], policy: str) -> Settings:
    """What a preset says of the decode, where nothing else is said. Lengths are the engine's; the rest is named."""
    preset = find_preset(policy, str(settings.preset))["decode"]
    mine = {name: value for name, value in preset.items() if name in SHARED and name not in given}
    for name, value in preset.items():
        if name not in SHARED and name not in LENGTHS:
            logger.warning(
                "The preset %s sets %s=%r, which has no effect in this engine.", settings.preset, name, value
            )
    return replace(settings, **mine)
