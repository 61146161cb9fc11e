"""What the fused kernels have in common (`triton.py`, `native.py`): the numbers that they write for each position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacg.scan.reference import from_others
from tacg.types import CONTRASTED

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Needs

SCALARS = (
    "peak", "confidence", "margin", "gap", "entropy", "kl", "reference", "readout", "others", "reference_others",
    "readout_others",
)  # fmt: skip


def by_name(token: Tensor, scalars: Tensor, needs: Needs) -> dict[str, Tensor]:
    """token int64 […], and of the scalars, float32 [11, …] in the order of `SCALARS`, what was asked for."""
    contrast, names = needs.contrast, needs.names
    peak, confidence, *others = scalars.unbind()
    found = {"token": token, "peak": peak, "confidence": confidence}
    found |= {name: each for name, each in zip(SCALARS[2:], others, strict=True) if name in names}
    if contrast is not None and contrast.fine:
        found |= {name: from_others(scalars[SCALARS.index(f"{name}_others")]) for name in CONTRASTED if name in names}
    return found
