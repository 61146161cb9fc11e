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
    """Settings that are not the policy's knobs. `policy` or `base`, and `preset`, choose the policy."""

    policy: str | None = knob(None, "any policy that fits a block, such as klass or swd+eb, without the gate")
    base: str = knob("confidence", "the policy that TACG gates, if `policy` is not given")
    preset: str | None = knob(None, "published settings to start from, such as llada2-mini/any")
    steps: int | None = knob(None, "maximum denoising steps per block (none: one per position)", low=1)
    temperature: float = knob(0.0, "0: most probable token; above 0: random sampling", symbol="T", low=0)
    seed: int = knob(0, "random seed, together with the request's id", low=0)
    memory: str = knob("auto", "type of the reference; auto: bf16 for large blocks", choices=("auto", "fp32", "bf16"))
    scan: str = knob("auto", "implementation that reads the logits; auto: the fastest on this device", choices=BACKENDS)
    step_map: bool = knob(False, "report at which step, and why, each token was committed")
    suppress: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        ids = self.suppress
        if not isinstance(ids, list | tuple) or not all(type(each) is int and each >= 0 for each in ids):
            raise TacgError(f"`suppress` must be a list of token ids, got {ids!r}.")
        object.__setattr__(self, "suppress", tuple(ids))

    def kind(self, width: int, vocabulary: int) -> str:
        """fp32 or bf16: the type of the reference for blocks of this size."""
        if self.memory != "auto":
            return self.memory
        return "bf16" if width * vocabulary * 4 > LARGE else "fp32"


def read_settings(given: Mapping[str, Any], allowed: Collection[str] = ()) -> tuple[Policy, Settings]:
    """The gate and its settings from a flat mapping; an unknown name raises an error with the nearest match.

    allowed  names that belong to the engine
    """
    ours = {each.name for each in own_knobs(Settings)} | {"suppress"}
    settings = Settings(**{name: value for name, value in given.items() if name in ours})
    spelling = _spelling(settings, given)
    if settings.preset is not None:
        settings = _with_preset(settings, given, spelling)
        spelling = f"{spelling}:{settings.preset}"
    policy = get_policy(spelling)
    theirs = policy.knobs().keys()
    if twice := ours & theirs:
        raise TacgError(f"`{policy.name}` has a knob named `{min(twice)}`, and so has the engine: rename the policy's.")
    for name in given:
        if name not in ours | theirs | set(allowed):
            raise unknown("setting", str(name), ours | theirs | set(allowed))
    policy = policy.replace(**{name: value for name, value in given.items() if name in theirs})
    if (why := beyond_block(policy)) is not None:
        asked, named = ("policy", policy) if settings.policy is not None else ("base", cast("Wrapper", policy).base)
        raise TacgError(
            f"`{asked}` must be a policy that fills the masks of one block, because engines pass only that; "
            f"`{named.label}` {why}. `tacg generate` and `tacg serve` run it."
            + (" It fits with ahead=0." if "ahead" in policy.knobs() else "")
        )
    return policy, settings


def beyond_block(policy: Policy) -> str | None:
    """What a policy needs beyond the logits of one block's masks, which is all that engines pass; None: nothing.

    It depends on the policy's knobs: `hierarchy` reads committed tokens only if it may re-mask them.
    """
    needs = policy.needs
    wants = {
        "reads the model's attention": needs.attention,
        "needs a verifier": needs.verifier,
        "tries several branches, with a forward for each": needs.branches or needs.samples,
        "reads committed tokens again": needs.committed,
        "leaves out part of the suffix": needs.suffix is not None,
        "looks at masks beyond the block": needs.scope != "block",
    }
    return next((why for why, wanted in wants.items() if wanted), None)


def _spelling(settings: Settings, given: Mapping[str, Any]) -> str:
    """The policy's name in the registry."""
    if settings.policy is not None:
        if "base" in given:
            raise TacgError("Give `policy`, which is used as it is, or `base`, which TACG gates; not both.")
        if ":" in settings.policy:
            raise TacgError(f"`policy` must be a name without a preset, got {settings.policy!r}: set `preset` as well.")
        return settings.policy
    if settings.base.startswith("tacg"):
        raise TacgError(f"`base` must be what TACG gates, such as confidence or klass; got {settings.base!r}.")
    return "tacg" if settings.base == "confidence" else f"tacg+{settings.base}"


def _with_preset(settings: Settings, given: Mapping[str, Any], policy: str) -> Settings:
    """Add a preset's decode settings that were not given. Those without effect here are logged, except for lengths."""
    preset = find_preset(policy, str(settings.preset))["decode"]
    mine = {name: value for name, value in preset.items() if name in SHARED and name not in given}
    for name, value in preset.items():
        if name not in SHARED and name not in LENGTHS:
            logger.warning(
                "The preset %s sets %s=%r, which has no effect in this engine.", settings.preset, name, value
            )
    return replace(settings, **mine)
