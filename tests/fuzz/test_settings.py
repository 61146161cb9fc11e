"""Settings as people type them, and as other engines pass them: each is accepted or refused with a clear message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacg.cli.common import load_task, parse_settings
from tacg.cli.sweep import _axis
from tacg.engine.request import Decode, resolve
from tacg.integrations.settings import read_settings
from tacg.policies import get_policy, policy_names
from tests.fuzz.damage import ABSURD, survives

pytestmark = pytest.mark.usefixtures("_no_hang")
SPELLINGS = [
    *policy_names(),
    "tacg+klass",
    "tacg:llada/gsm8k",
    "tacg+tacg",
    "klass+klass",
    "tacg:",
    ":",
    "+",
    "tacg+",
    "é",
]
POLICIES = st.one_of(st.sampled_from(SPELLINGS), st.text(max_size=12))
NAMES = st.sampled_from(
    [*Decode().knobs(), *get_policy("tacg+klass").knobs(), "suppress", "base", "preset", "step_map", "x"]
)
WORDS = st.one_of(
    st.sampled_from(
        ["", "1", "-1", "0", "0.5", "1e400", "nan", "inf", "none", "true", "1_000", "9" * 5000, "١", "1,2", ","]
    ),
    st.text(max_size=8),
    st.integers().map(str),
    st.floats().map(str),
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(ABSURD), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=3)
)


@settings(max_examples=300)
@given(
    policy=POLICIES, pairs=st.lists(st.one_of(st.builds("{}={}".format, NAMES, WORDS), st.text(max_size=8)), max_size=3)
)
def test_typed_settings(policy: str, pairs: list[str]) -> None:
    survives(lambda: resolve(policy, parse_settings(policy, pairs, None)))
    survives(lambda: load_task("gsm8k", None, pairs))
    survives(lambda: _axis([policy], (pairs or [""])[0], quick=False))


@settings(max_examples=300)
@given(policy=POLICIES, given_=st.dictionaries(NAMES, VALUES, max_size=4))
def test_given_settings(policy: str, given_: dict[str, Any]) -> None:
    """Those of a program, of the transformers' `generate` and of SGLang, which hands over one flat mapping."""
    survives(lambda: resolve(policy, dict(given_)))
    survives(lambda: read_settings(given_))
    survives(lambda: read_settings({**given_, "base": policy}))
    survives(lambda: read_settings({**given_, "preset": policy}))
