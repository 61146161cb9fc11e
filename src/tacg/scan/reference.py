"""The readable scan: logits -> one scalar per position and signal. Faster scans are tested against it.

A scan has three parts, each a function of plain tensors, called by `StepScan` in this order: `read` measures the
posterior, `contrast` compares it with the reference on request, and `follow` updates the reference.
Signals that only a few policies need are in `histories.py`, the same for every backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

# Replaces -inf and everything below: its probability is exactly 0, yet contrasts stay finite, and an average that
# includes it keeps its precision in float32.
SUPPRESSED = -1e4
SMOOTHING = 1e-12  # inside KLASS's logarithms; before a first observation the previous posterior is all zeros


def read(
    logits: Tensor, rows: Tensor | None, proposal: Tensor | None, names: frozenset[str], previous: Tensor | None,
    slots: Tensor, first: Tensor | None,
) -> dict[str, Tensor]:  # fmt: skip
    """token (int64), peak, confidence and the requested ones of margin, entropy, others, kl: [P] each, >= float32.

    logits    float [N, V]; rows int64 [P], which of them to read, or None for all
    proposal  int64 [P], or None for the argmax
    previous  float [slots, V], log of the smoothed posterior of the last step; read at `slots` and overwritten there
    first     bool [P], where `previous` holds nothing yet (None: nowhere)
    """
    z = widened(logits if rows is None else logits[rows])
    peak, best = z.max(dim=1)
    z = z - peak[:, None]
    weight = z.exp()
    total = weight.sum(dim=1)
    token = best if proposal is None else proposal
    found = {"token": token, "peak": peak, "confidence": at(weight, token) / total}
    if names & {"margin", "gap"}:
        second = z.topk(2, dim=1).values[:, 1] if z.shape[1] > 1 else torch.full_like(peak, SUPPRESSED)
        pair = {"margin": (1.0 - second.exp()) / total, "gap": -second}
        found |= {name: values for name, values in pair.items() if name in names}
    if "entropy" in names:
        found["entropy"] = total.log() - (weight * z).sum(dim=1) / total
    if "others" in names:
        found["others"] = weight.scatter(1, token[:, None], 0.0).sum(dim=1) / total
    if previous is not None:
        posterior = weight / total[:, None]
        smooth = (posterior + SMOOTHING).log()
        before = previous[slots]
        if first is not None:
            before = before.masked_fill(first[:, None], torch.tensor(SMOOTHING).log())
        found["kl"] = (posterior * (smooth - before)).sum(dim=1)
        previous[slots] = smooth.to(previous.dtype)
    return found


def contrast(
    logits: Tensor, rows: Tensor, reference: Tensor, slots: Tensor, token: Tensor, weight: float, *, fine: bool = False
) -> Tensor:
    """The probability of the proposal on the line from the logits (weight 0) to the reference (1): [C], see `share`.

    Weight 1 gives the reference posterior p_ref(x̂), -w the contrast readout q(x̂) of z + w (z - reference).
    logits float [N, V] are read at `rows` int64 [C], reference float [slots, V] at `slots` int64 [C]; both may be
    shifted by a constant per position.
    """
    z, reference = widened(logits[rows]), widened(reference[slots])
    z, reference = z - z.amax(dim=1, keepdim=True), reference - reference.amax(dim=1, keepdim=True)
    return share((z + weight * (reference - z)).softmax(dim=1), token, fine=fine)


def follow(
    store: Tensor, slots: Tensor, values: Tensor, rows: Tensor, offset: Tensor | None, first: Tensor | None, beta: float
) -> None:
    """EMA in place: store[slots] <- beta * store[slots] + (1 - beta) * (values - offset)[rows]; a copy where `first`.

    store float [slots, V or H]; values float [N, V or H]
    slots, rows int64 [K], the targets and sources; offset float [K] or None, first bool [K] or None
    """
    fresh = widened(values[rows])
    if offset is not None:
        fresh = (fresh - offset[:, None]).clamp_min(SUPPRESSED)
    old = store[slots].to(fresh.dtype)
    if first is not None:
        old = torch.where(first[:, None], fresh, old)
    store[slots] = (beta * old + (1.0 - beta) * fresh).to(store.dtype)


def probability(logits: Tensor, token: Tensor) -> Tensor:
    """The probability of the given token at each position: logits [P, V], token int64 [P] -> [P]."""
    z = widened(logits)
    return (at(z, token) - z.logsumexp(dim=1)).exp()


def share(posterior: Tensor, token: Tensor, *, fine: bool) -> Tensor:
    """The probability of each token in its posterior [P, V] -> [P]; `fine`: via all other tokens, in float64."""
    if not fine:
        return at(posterior, token)
    return from_others(posterior.scatter(1, token[:, None], 0.0).sum(dim=1))


def from_others(others: Tensor) -> Tensor:
    """1 minus the probability of all other tokens, in float64 if the device has it: near 1, float32 stops at 6e-8."""
    return 1.0 - (others if others.device.type == "mps" else others.double())


def lowest(dtype: torch.dtype) -> float:
    """The logit of a suppressed token: a finite number, because -inf cannot be averaged."""
    return max(SUPPRESSED, torch.finfo(dtype).min)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the arithmetic: at least float32."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def widened(values: Tensor) -> Tensor:
    """The values in at least float32, with -inf replaced by a finite number."""
    return values.to(wide_dtype(values.dtype)).clamp_min(SUPPRESSED)


def at(values: Tensor, token: Tensor) -> Tensor:
    """values[i, token[i]]."""
    return values.gather(1, token[:, None]).squeeze(1)
