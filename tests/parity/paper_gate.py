"""The paper's commit rule, read a second time: float64, one row and one position at a time, NumPy only.

It shares no line with the package. Nothing here is fast or clever, so that it can be checked against the
paper by eye. Where the paper is silent, the choice is said in a comment that starts with "open:".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]


def softmax(scores: Array) -> Array:
    """Probabilities of finite scores."""
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


@dataclass
class PaperSignals:
    """What a base gate that is a function may look at, each [B, L]; neutral where nothing is masked."""

    token: Array
    confidence: Array
    margin: Array
    entropy: Array


class PaperGate:
    """The trajectory of a batch and the rule that reads it; `config` has the fields of `tacg.GateConfig`."""

    def __init__(self, config: Any) -> None:
        self.config = config
        # (row, position) -> the EMA reference, the proposal of the last step, and how long it has stood.
        self.reference: dict[tuple[int, int], Array] = {}
        self.proposal: dict[tuple[int, int], int] = {}
        self.length: dict[tuple[int, int], int] = {}

    def step(
        self,
        logits: Array,
        mask: Array,
        base_ready: Array | Callable[[PaperSignals], Array],
    ) -> dict[str, Array]:
        """One denoising step: logits [B, L, V], mask [B, L]; `base_ready` is the set R^base as bool [B, L].

        Besides the decisions it tells why: `hg_blocked` (base-ready, refused by the History Gate), `escaped`
        (committed although too young, because c >= tau_esc), `preserved` (only the margin let it through),
        `floor_blocked` (persistent, but under the floor), `cap_blocked` (a candidate beyond K_extra).
        `slack` [B] is the distance of the row's closest call: below float precision, neither side is wrong.
        """
        batch, length, _ = logits.shape
        shape = (batch, length)
        tokens = np.full(shape, -1, dtype=np.int64)
        streak = np.ones(shape, dtype=np.int64)
        confidence, support, readiness = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        margin, entropy = np.zeros(shape), np.zeros(shape)

        for b in range(batch):
            for i in range(length):
                # open: history is kept on masked positions only; who leaves the mask is forgotten, and so
                # starts neutral when it comes back, like a position that becomes active late.
                if not mask[b, i]:
                    self._forget(b, i)
                    continue
                tokens[b, i], streak[b, i], confidence[b, i], support[b, i], margin[b, i], entropy[b, i] = (
                    self._observe(b, i, logits[b, i].astype(np.float64))
                )
                # Readiness: s = c + lambda * sigma.
                readiness[b, i] = confidence[b, i] + self.config.support_lambda * support[b, i]

        if callable(base_ready):
            base_ready = base_ready(PaperSignals(tokens, confidence, margin, entropy))

        names = ("base", "extra", "hg_blocked", "escaped", "preserved", "floor_blocked", "cap_blocked")
        out: dict[str, Array] = {name: np.zeros(shape, dtype=bool) for name in names}
        slack = np.full(batch, np.inf)
        for b in range(batch):
            row = (mask[b], base_ready[b], streak[b], confidence[b], readiness[b], margin[b])
            slack[b] = self._decide(b, *row, out)
        # The full gate G = B union E; what it writes is the base proposal.
        out["commit"] = out["base"] | out["extra"]
        return out | {
            "tokens": tokens,
            "confidence": confidence,
            "support": support,
            "readiness": readiness,
            "streak": streak,
            "margin": margin,
            "entropy": entropy,
            "slack": slack,
        }

    def _forget(self, b: int, i: int) -> None:
        for memory in (self.reference, self.proposal, self.length):
            memory.pop((b, i), None)

    def _observe(self, b: int, i: int, z: Array) -> tuple[int, int, float, float, float, float]:
        """Token, streak, confidence, support, margin, entropy of a masked position; updates its history."""
        cfg, key = self.config, (b, i)
        # "When a block or position is first observed, the reference is the current logits."
        z_ref = self.reference.get(key, z)
        # open: a suppressed token (-inf at every step) has probability 0 under p, p_ref and q alike, so all
        # three are computed over the tokens that are left.
        ids = np.flatnonzero(z > -np.inf)
        if not np.array_equal(ids, np.flatnonzero(z_ref > -np.inf)):
            raise ValueError("the rule is not defined for a token that is suppressed at some steps only")
        now, ref = z[ids], z_ref[ids]

        # Base proposal: x_hat = argmax p, c = p(x_hat).
        # open: the lowest id wins a tie (np.argmax does that; z, not p, so that rounding cannot make ties).
        best = int(np.argmax(now))
        x_hat = int(ids[best])
        p = softmax(now)
        c = float(p[best])
        rest = np.delete(p, best)
        margin = c - (float(rest.max()) if rest.size else 0.0)
        likely = p[p > 0]
        entropy = -float((likely * np.log(likely)).sum())

        # History Gate support: one more if the proposal is that of the last step, else 1.
        length = self.length[key] + 1 if self.proposal.get(key) == x_hat else 1

        # TILG: the reference posterior, and the readout q = softmax(z + w * (z - z_ref)).
        p_ref = float(softmax(ref)[best])
        q = float(softmax(now + cfg.w * (now - ref))[best])
        if cfg.support == "gain":
            # b = [q(x_hat) - p_ref(x_hat)]_+
            sigma = max(q - p_ref, 0.0)
        else:
            # g = clip(log(p(x_hat) + eps) - log(p_ref(x_hat) + eps), 0, gamma)
            sigma = min(max(float(np.log(c + cfg.eps) - np.log(p_ref + cfg.eps)), 0.0), cfg.gamma)

        # EMA, after it was read: z_ref <- beta * z_ref + (1 - beta) * z. Suppressed tokens stay at -inf.
        updated = np.full_like(z, -np.inf)
        updated[ids] = cfg.beta * ref + (1.0 - cfg.beta) * now
        self.reference[key], self.proposal[key], self.length[key] = updated, x_hat, length
        return x_hat, length, c, sigma, margin, entropy

    def _decide(
        self,
        b: int,
        mask: Array,
        base_ready: Array,
        streak: Array,
        confidence: Array,
        readiness: Array,
        margin: Array,
        out: dict[str, Array],
    ) -> float:
        """Fill row b of `out`; return the distance of the closest call."""
        cfg = self.config
        slack = np.inf
        candidates: list[int] = []
        young: set[int] = set()
        for i in np.flatnonzero(mask):
            c = confidence[i]
            slack = min(slack, abs(c - cfg.tau_floor), abs(c - cfg.tau_escape))
            escape = c >= cfg.tau_escape
            # open: preserve_base(i) means that the top-1 probability leads the second by preserve_margin.
            preserve = cfg.preserve_margin is not None and margin[i] >= cfg.preserve_margin
            if cfg.preserve_margin is not None:
                slack = min(slack, abs(margin[i] - cfg.preserve_margin))

            # H^base = [h >= m_base] or [c >= tau_esc] or [preserve_base]; B = R^base where H^base.
            persistent = streak[i] >= cfg.m_base
            if base_ready[i] and (persistent or escape or preserve):
                out["base"][b, i] = True
                out["escaped"][b, i] = escape and not persistent and not preserve
                out["preserved"][b, i] = preserve and not persistent and not escape
                continue
            out["hg_blocked"][b, i] = base_ready[i]

            # H^extra = [h >= m_extra] or [c >= tau_esc]; N = not in B, c >= tau_floor, H^extra.
            persistent = streak[i] >= cfg.m_extra
            if persistent or escape:
                if c >= cfg.tau_floor:
                    candidates.append(int(i))
                    if not persistent:
                        young.add(int(i))
                else:
                    out["floor_blocked"][b, i] = True

        # E = the K_extra candidates of the largest readiness. open: the lowest position wins a tie.
        ranked = sorted(candidates, key=lambda i: (-readiness[i], i))
        for i in ranked[: cfg.k_extra]:
            out["extra"][b, i] = True
            out["escaped"][b, i] = i in young
        for i in ranked[cfg.k_extra :]:
            out["cap_blocked"][b, i] = True
        if 0 < cfg.k_extra < len(ranked):
            slack = min(slack, readiness[ranked[cfg.k_extra - 1]] - readiness[ranked[cfg.k_extra]])
        return float(slack)
