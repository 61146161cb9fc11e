"""The readable scan: logits -> one scalar per position and signal. The oracle that faster scans must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tacg.errors import LogitsError

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.scan.memory import Memory
    from tacg.types import Contrast, Needs

SUPPRESSED = -1e30  # stands for -inf: its probability is exactly 0, and contrasts of it are still numbers
SMOOTHING = 1e-12  # inside KLASS's logarithms; the previous posterior of a first observation is all zeros


def scan(
    logits: Tensor, slots: Tensor, memory: Memory, needs: Needs, proposal: Tensor | None = None
) -> dict[str, Tensor]:
    """Measure `needs` at P positions and move their history on by one step.

    logits    float [P, V], any float dtype; arithmetic is in float32 at least
    slots     int64 [P], where each position's history is kept in `memory`
    proposal  int64 [P], a sampled token per position; None proposes the argmax

    Returns token (int64), confidence, first (bool) and what was asked for, each of shape [P].
    """
    z = logits.detach().to(torch.promote_types(logits.dtype, torch.float32)).clamp_min(SUPPRESSED)
    if z.shape[0] == 0:
        memory.saw(slots)
        return _nothing(z, needs)
    peak, best = z.max(dim=1)
    _refuse_unusable(peak, slots, memory.width)

    z = z - peak[:, None]  # the gauge: softmax does not change, large offsets no longer cost precision
    weight = z.exp()
    total = weight.sum(dim=1)
    token = best if proposal is None else proposal
    first = ~memory.seen[slots]
    found = {"token": token, "first": first, "confidence": _at(weight, token) / total}
    if "margin" in needs:
        two = weight.topk(min(2, weight.shape[1]), dim=1).values
        found["margin"] = (two[:, 0] - two[:, 1:].sum(dim=1)) / total
    if "entropy" in needs:
        found["entropy"] = total.log() - (weight * z).sum(dim=1) / total
    if "kl" in needs:
        found["kl"] = _divergence(weight / total[:, None], slots, first, memory)
    if needs.contrast is not None:
        found |= _contrast(z, token, slots, first, memory, needs, needs.contrast)
    memory.saw(slots)
    return found


def _contrast(
    z: Tensor, token: Tensor, slots: Tensor, first: Tensor, memory: Memory, needs: Needs, contrast: Contrast
) -> dict[str, Tensor]:
    """The reference posterior and the contrast readout at the proposal, p_ref(x̂) and q(x̂); then the EMA."""
    store = memory.store("reference", z)
    reference = torch.where(first[:, None], z, store[slots])
    found = {}
    if "reference" in needs:
        found["reference"] = _at(reference.softmax(dim=1), token)
    if "readout" in needs:
        found["readout"] = _at((z + contrast.w * (z - reference)).softmax(dim=1), token)
    store[slots] = (contrast.beta * reference + (1.0 - contrast.beta) * z).to(store.dtype)
    return found


def _divergence(posterior: Tensor, slots: Tensor, first: Tensor, memory: Memory) -> Tensor:
    """KL(p_t || p_{t-1}), both smoothed as in KLASS."""
    store = memory.store("previous", posterior)
    previous = store[slots].masked_fill(first[:, None], 0.0)
    ratio = (posterior + SMOOTHING).log() - (previous + SMOOTHING).log()
    store[slots] = posterior.to(store.dtype)
    return (posterior * ratio).sum(dim=1)


def _at(values: Tensor, token: Tensor) -> Tensor:
    return values.gather(1, token[:, None]).squeeze(1)


def _refuse_unusable(peak: Tensor, slots: Tensor, width: int) -> None:
    usable = peak.isfinite() & (peak > SUPPRESSED)
    if bool(usable.all()):
        return
    bad = [(int(slot) // width, int(slot) % width) for slot in slots[~usable].tolist()]
    value = float(peak[~usable][0])
    what = "only -inf" if value <= SUPPRESSED else str(value)
    raise LogitsError(
        f"Logits of row {bad[0][0]}, position {bad[0][1]} hold {what} ({len(bad)} such position(s) in this step). "
        "Every masked position needs at least one finite logit and no NaN or +inf: check the model's dtype "
        "and the suppressed ids.",
        bad,
    )


def _nothing(z: Tensor, needs: Needs) -> dict[str, Tensor]:
    """The empty scan, when no position is observed."""
    empty = z.new_zeros(0)
    found = dict.fromkeys((needs.names - {"noise"}) | {"confidence"}, empty)
    return found | {"token": empty.long(), "first": empty.bool()}
