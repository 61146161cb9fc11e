"""Policies: one file per published decoder, all with the contract of `base.py`."""

from tacg.policies.base import (
    Policy,
    State,
    Wrapper,
    find_preset,
    fresh,
    get_policy,
    policy_class,
    policy_names,
    presets,
    register,
)

__all__ = [
    "Policy",
    "State",
    "Wrapper",
    "find_preset",
    "fresh",
    "get_policy",
    "policy_class",
    "policy_names",
    "presets",
    "register",
]
