"""tacg: decide when a diffusion language model commits a token, from the trajectory of its logits.

    import tacg
    llm = tacg.load("pocket")
    out = llm.generate("Hello", policy="tacg")

Names are loaded on first use: importing this package imports neither torch nor anything else that is heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tacg.version import __version__

if TYPE_CHECKING:
    from tacg.canvas import Canvas, Hole
    from tacg.engine.events import Finished, Proposal, Started, Step
    from tacg.engine.loop import Engine
    from tacg.engine.request import Decode, Request
    from tacg.errors import LogitsError, TacgError
    from tacg.gate import GateConfig, GateStep
    from tacg.knobs import knob
    from tacg.llm import LLM, load
    from tacg.own_loop import GateState, commit_step
    from tacg.policies import Policy, State, get_policy, policy_names, register
    from tacg.records.flat import read_rows
    from tacg.types import Branches, Commit, Credit, Decision, EmaContrast, Mix, Needs, Output, Signals

_HOME = {
    "tacg.canvas": ("Canvas", "Hole"),
    "tacg.engine.events": ("Finished", "Proposal", "Started", "Step"),
    "tacg.engine.loop": ("Engine",),
    "tacg.engine.request": ("Decode", "Request"),
    "tacg.errors": ("LogitsError", "TacgError"),
    "tacg.gate": ("GateConfig", "GateStep"),
    "tacg.knobs": ("knob",),
    "tacg.llm": ("LLM", "load"),
    "tacg.own_loop": ("GateState", "commit_step"),
    "tacg.policies": ("Policy", "State", "get_policy", "policy_names", "register"),
    "tacg.records.flat": ("read_rows",),
    "tacg.types": ("Branches", "Commit", "Credit", "Decision", "EmaContrast", "Mix", "Needs", "Output", "Signals"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "LLM",
    "Branches",
    "Canvas",
    "Commit",
    "Credit",
    "Decision",
    "Decode",
    "EmaContrast",
    "Engine",
    "Finished",
    "GateConfig",
    "GateState",
    "GateStep",
    "Hole",
    "LogitsError",
    "Mix",
    "Needs",
    "Output",
    "Policy",
    "Proposal",
    "Request",
    "Signals",
    "Started",
    "State",
    "Step",
    "TacgError",
    "__version__",
    "commit_step",
    "get_policy",
    "knob",
    "load",
    "policy_names",
    "read_rows",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tacg' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
