"""Operations on rows of a policy's state, which is a (possibly nested) dict of tensors whose first axis is the row.

Policies of one structure are stacked in the same way: knobs that differ become tensors with one value per row.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from tacg.knobs import Knobs, own_knobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from tacg.policies.base import State

K = TypeVar("K", bound=Knobs)


def stack(rows: Sequence[K], device: torch.device) -> K:
    """Stack policies of one structure into one; knobs that differ hold a tensor [R, 1]."""
    first = rows[0]
    if all(row is first or row == first for row in rows):
        return first
    stacked = copy.copy(first)
    changes: dict[str, Any] = {name: stack([getattr(row, name) for row in rows], device) for name in first.groups()}
    for each in own_knobs(type(first)):
        values = [getattr(row, each.name) for row in rows]
        if any(value != values[0] for value in values):
            changes[each.name] = torch.tensor(values, device=device)[:, None]
    for name, value in changes.items():
        object.__setattr__(stacked, name, value)  # already checked when each policy was created
    return stacked


def restart(state: State, row: int, fresh: State) -> None:
    """Overwrite one row in place with the first row of `fresh`."""
    for name, value in state.items():
        if isinstance(value, dict):
            restart(value, row, fresh[name])
        else:
            value[row] = fresh[name][0]


def resized(state: State, fresh: State) -> State:
    """A larger `fresh` state with `state` copied into its first rows and positions."""
    larger: State = {}
    for name, value in state.items():
        if isinstance(value, dict):
            larger[name] = resized(value, fresh[name])
        else:
            larger[name] = fresh[name].clone()  # a fresh state may hold the same tensor under two names
            if value.numel():
                larger[name][tuple(slice(0, size) for size in value.shape)] = value
    return larger


def merged(new: State, old: State, rows: Tensor) -> State:
    """`new` where `rows`, bool [R], is true, and `old` in the other rows."""
    return {
        name: merged(value, old[name], rows)
        if isinstance(value, dict)
        else torch.where(rows.view(-1, *[1] * (value.dim() - 1)), value, old[name])
        for name, value in new.items()
    }
