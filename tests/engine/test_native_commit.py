"""The kernel that writes commits on a CPU, against `resolve_commits` and `advance`."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tacg.engine import native_commit
from tacg.engine.advance import Boards, advance
from tacg.types import Decision, Needs, Signals
from tests.worlds import MASK

pytestmark = pytest.mark.skipif(
    native_commit.kernel()[0] is None, reason=f"no native kernel: {native_commit.kernel()[1]}"
)


def world(
    seed: int, rows: int, length: int, *, active: bool, extra: bool, quota: bool, opens: bool, unusable: bool
) -> Any:
    """Random boards, an answer that is a slice of a canvas, signals and a decision; ranks have ties."""
    draw = torch.Generator().manual_seed(seed)

    def flags(share: float) -> Tensor:
        return torch.rand(rows, length, generator=draw) < share

    def numbers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape or (rows,), generator=draw)

    boards = Boards.blank(rows, length, 3)
    grid = (torch.arange(length) * 3 // length).expand(rows, -1)
    masked, steps = flags(0.6), numbers(1, 6)
    boards = boards._replace(
        masked=masked, holes=masked | flags(0.3), grid=grid.clone(), block=numbers(0, 3), step=numbers(0, 6) % steps,
        length=torch.full((rows,), length),
    )  # fmt: skip
    here = grid == boards.block[:, None]
    open_ = here | (grid == boards.block[:, None] + 1) if active else here
    confidence = numbers(0, 5, rows, length) / 4
    if unusable:
        confidence[0, -1] = torch.nan
    eligible = masked & open_ & ~confidence.isnan().any(dim=1, keepdim=True)
    signals = Signals(
        observed=boards.holes & open_, eligible=eligible, first=flags(0.5), token=numbers(3, 90, rows, length),
        confidence=confidence, step=boards.step, steps=steps, masked=masked, active=eligible & here if active else None,
        opened=boards.open, length=boards.length,
    )  # fmt: skip
    rank = numbers(-2, 3, rows, length).float()
    rank[rank == -2] = -torch.inf
    decision = Decision(
        base=flags(0.2), rank=rank, extra=flags(0.2) if extra else None, quota=numbers(0, 4) if quota else None,
        open=numbers(1, 4) if opens else None,
    )  # fmt: skip
    canvas = numbers(3, 90, rows, length + 5)
    canvas[:, 3:-2] = torch.where(masked, MASK, canvas[:, 3:-2])
    return boards, canvas[:, 3:-2], signals, decision


@given(
    seed=st.integers(0, 10_000), rows=st.integers(1, 4), length=st.integers(1, 20), active=st.booleans(),
    extra=st.booleans(), quota=st.booleans(), opens=st.booleans(), unusable=st.booleans(), committed=st.booleans(),
)  # fmt: skip
def test_equals_the_operations(seed: int, rows: int, length: int, committed: bool, **kinds: bool) -> None:
    boards, answer, signals, decision = world(seed, rows, length, **kinds)
    needs = Needs(committed=committed, scope="open" if kinds["active"] else "block")
    found = {}
    for name in ("native", "plain"):
        written = answer.clone()
        with mock.patch.object(native_commit, "is_native", return_value=name == "native"):
            after, written, kept, report = advance(boards, written, signals, decision, needs, MASK)
        found[name] = after, written, kept, report.read(length)
    for one, other in zip(found["native"][0], found["plain"][0], strict=True):
        assert torch.equal(one, other)
    assert all(torch.equal(found["native"][i], found["plain"][i]) for i in (1, 2))
    assert found["native"][3] == found["plain"][3]


@pytest.mark.parametrize("kind", ["remask", "edit", "stay", "finish"])
def test_leaves_what_revises_to_the_operations(kind: str) -> None:
    kinds = dict.fromkeys(("active", "extra", "quota", "opens", "unusable"), False)
    _, _, signals, decision = world(0, 2, 8, **kinds)
    assert native_commit.is_native(signals, decision)
    board = decision.base if kind in ("remask", "edit") else decision.base[:, 0]
    assert not native_commit.is_native(signals, Decision(decision.base, decision.rank, **{kind: board}))
    assert not native_commit.is_native(signals, Decision(decision.base, decision.rank.double()))


@given(seed=st.integers(0, 99), windows=st.booleans())
def test_lists_what_is_observed(seed: int, windows: bool) -> None:
    observed = torch.rand(3, 9, generator=torch.Generator().manual_seed(seed)) < 0.4
    history = torch.randperm(27) if windows else None
    places, slots = native_commit.places_of(observed[:, :6], history)
    with mock.patch.object(native_commit, "kernel", return_value=(None, "")):
        plain = native_commit.places_of(observed[:, :6], history)
    assert torch.equal(places, plain[0])
    assert torch.equal(slots, plain[1])
