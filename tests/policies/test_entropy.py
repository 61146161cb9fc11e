"""The entropy threshold on hand-made signals."""

from __future__ import annotations

from tacg.policies import get_policy
from tests.policies.test_policies import committed, signals


def test_little_entropy_passes_and_ranks_first() -> None:
    given = signals([0.9, 0.1, 0.9, 0.5], entropy=[0.5, 0.4, 0.51, 2.0])
    assert committed(get_policy("entropy", threshold=0.5), given) == [0, 1], "confidence does not matter"
    decision, _ = get_policy("entropy", threshold=0.0).decide(given, {})
    assert not decision.base.any()
    assert decision.rank[0].argsort(descending=True).tolist() == [1, 0, 2, 3]
