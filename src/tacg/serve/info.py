"""What the page needs to offer choices: the model, policies and their knobs, examples, limits."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from tacg.engine.request import Decode
from tacg.errors import TacgError
from tacg.policies import Wrapper, get_policy, policy_class, policy_names
from tacg.policies.presets import presets
from tacg.policies.recommended import recommended
from tacg.serve.parse_request import SERVERS_OWN
from tacg.serve.problems import Example
from tacg.tasks import task_names
from tacg.tasks.familiar import knows
from tacg.version import __version__

if TYPE_CHECKING:
    from tacg.knobs import Knob
    from tacg.llm import LLM
    from tacg.policies import Policy
    from tacg.serve.limits import Limits
    from tacg.serve.parse_request import Defaults


def describe(llm: LLM, defaults: Defaults, limits: Limits) -> dict[str, Any]:
    """Everything as JSON values."""
    decode = Decode().knobs()
    return {
        "tacg": __version__,
        "model": llm.model.spec.name,
        "knows": knows(llm.model.spec.name),
        "max_length": llm.model.spec.max_length,
        "chat": llm.tokenizer.chat_template is not None,
        "defaults": {"policy": defaults.policy, "settings": dict(defaults.settings)},
        "policies": [_policy(name) for name in _spellings()],
        "decode": [_knob(each) for name, each in decode.items() if name not in SERVERS_OWN],
        "examples": [Example(name, 0).document(llm) for name in task_names(llm.model.spec.name)],
        "presets": _presets(),
        "recommended": recommended() if llm.model.spec.name == "pocket" else {},
        "limits": dataclasses.asdict(limits),
    }


def _spellings() -> list[str]:
    """Every policy, and every wrapper over every policy it can wrap, if they load."""
    names = [name for name in policy_names() if _loads(name)]
    wrappers = [name for name in names if issubclass(policy_class(name), Wrapper)]
    plain = [name for name in names if name not in wrappers]
    both = [f"{outer}+{inner}" for outer in wrappers for inner in plain if inner != "confidence"]
    return [*wrappers, *plain, *filter(_loads, both)]


def _loads(name: str) -> bool:
    """Whether a policy loads; false for broken packages, and for combinations with two knobs of one name."""
    try:
        get_policy(name)
    except TacgError:
        return False
    return True


def _policy(name: str) -> dict[str, Any]:
    policy: Policy = get_policy(name)
    about = (type(policy).__doc__ or "").strip().partition("\n")[0]
    inner = policy.base if isinstance(policy, Wrapper) and not policy.frontier else policy
    main = inner.frontier[0] if inner.frontier else None
    return {"name": name, "about": about, "main": main, "knobs": [_knob(each) for each in policy.knobs().values()]}


def _knob(each: Knob) -> dict[str, Any]:
    facts = dataclasses.asdict(each)
    return facts | {"type": facts.pop("kind").__name__, "choices": list(each.choices)}


def _presets() -> dict[str, dict[str, Any]]:
    """The knobs of published settings, by policy and preset."""
    found: dict[str, dict[str, Any]] = {}
    for full, preset in presets().items():
        policy, _, name = full.partition(":")
        found.setdefault(policy, {})[name] = preset["knobs"]
    return found
