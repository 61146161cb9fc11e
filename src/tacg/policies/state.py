"""A policy's state is a dict of tensors whose first axis is the row, and may nest: what is done to rows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.policies.base import State


def restart(state: State, row: int, fresh: State) -> None:
    """Overwrite one row, in place, by the first one of `fresh`."""
    for name, value in state.items():
        if isinstance(value, dict):
            restart(value, row, fresh[name])
        else:
            value[row] = fresh[name][0]


def joined(state: State, more: State) -> State:
    """Two states, one below the other."""
    return {
        name: joined(value, more[name]) if isinstance(value, dict) else torch.cat([value, more[name]])
        for name, value in state.items()
    }


def merged(new: State, old: State, rows: Tensor) -> State:
    """`new` in the rows that are true in `rows`, bool [R], `old` in the others."""
    return {
        name: merged(value, old[name], rows)
        if isinstance(value, dict)
        else torch.where(rows.view(-1, *[1] * (value.dim() - 1)), value, old[name])
        for name, value in new.items()
    }
