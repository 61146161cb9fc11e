"""Policies: one file per published decoder, all with the contract of `base.py`."""

from tacg.policies.base import Policy, State, Wrapper, fresh
from tacg.policies.own_file import load_own
from tacg.policies.presets import find_preset, presets
from tacg.policies.registry import get_policy, policy_class, policy_names, register

__all__ = [
    "Policy",
    "State",
    "Wrapper",
    "find_preset",
    "fresh",
    "get_policy",
    "load_own",
    "policy_class",
    "policy_names",
    "presets",
    "register",
]
