"""LoPA: Xu et al., "LoPA: Scaling dLLM Inference via Lookahead Parallel Decoding", 2025."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from tacg.knobs import knob
from tacg.policies.base import Policy, State, opened_next
from tacg.types import Branches, Decision, Needs, top

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Signals


@dataclass(frozen=True)
class Lopa(Policy):
    """Commit above a threshold, then look one forward ahead with several continuations that each write one more token.

    The i-th of `branches` writes the i-th surest remaining position. The branch whose remaining masks are surest is
    kept: its token stays, and its logits are used in the next step. The anchor, which writes nothing more, competes
    too: a step costs `branches` + 1 forwards. With `add`, several blocks are open at once, as in the authors' host D2F.
    """

    name: ClassVar[str] = "lopa"
    frontier: ClassVar = ("threshold", (0.5, 0.7, 0.8, 0.9, 0.95, 0.99))

    threshold: float = knob(0.9, "what a confidence must exceed", symbol="τ", low=0, high=1, per_row=True)
    branches: int = knob(3, "lookahead branches, one forward each plus the anchor's", symbol="b", low=1, high=32)
    sure_by: str = knob("entropy", "what ranks positions and branches", choices=("entropy", "confidence"))
    add: float | None = knob(
        None, "share of the last open block that opens the next one (none: one block at a time)", symbol="θ_add",
        low=0, high=1, per_row=True,
    )  # fmt: skip

    @property
    def needs(self) -> Needs:
        """Branches of the open blocks, and the entropy if positions are ranked by it."""
        names = ("entropy",) if self.sure_by == "entropy" else ()
        return Needs(*names, scope="open", branches=self.branches + 1)

    def start(self, rows: int, width: int, device: torch.device) -> State:
        """About the proposed branches: anchor, bool [rows, width], what the anchor commits; judged, bool [rows, width],
        the masks by which branches are judged; count, int64 [rows]."""
        board = torch.zeros(rows, width, dtype=torch.bool, device=device)
        return {"anchor": board, "judged": board, "count": torch.zeros(rows, dtype=torch.int64, device=device)}

    def decide(self, signals: Signals, state: State) -> tuple[Decision, State]:
        """Commit what is sure, otherwise the surest; then propose branches."""
        rank = self._rank(signals)
        active = signals.eligible if signals.active is None else signals.active
        ready = signals.eligible & (signals.confidence > self.threshold)
        # The engine applies no quota to rows with branches, so the policy keeps pace itself.
        ready = ready | top(rank, active & ~ready, signals.quota() - (ready & active).sum(dim=1))
        judged = rest = signals.eligible & ~ready
        opened = None
        if self.add is not None:
            assert signals.masked is not None
            opened = opened_next(signals, ready, self.add)
            judged = signals.masked & ~ready & (signals.block < opened[:, None])

        left = rest.sum(dim=1)
        count = (left + 1).clamp(max=self.branches + 1) * (left > 0)
        order = rank.masked_fill(~rest, -torch.inf).argsort(dim=1, descending=True, stable=True)
        number = torch.arange(-1, self.branches, device=rank.device)[:, None]  # -1: the anchor, which writes nothing
        commit = rest[:, None] & (order.argsort(dim=1)[:, None] == number)
        tokens = signals.token[:, None].expand(-1, self.branches + 1, -1)
        decision = Decision(ready, rank=rank, open=opened, branches=Branches(commit, tokens, count))
        return decision, {"anchor": ready, "judged": judged, "count": count}

    def choose(self, branches: Signals, state: State) -> Tensor:
        """The branch whose masks are surest on average; a branch without masks beats all others."""
        left = branches.observed & state["judged"][:, None]
        size = left.sum(dim=2)
        score = torch.where(size > 0, (self._rank(branches) * left).sum(dim=2) / size.clamp(min=1), 1.0)
        number = torch.arange(score.shape[1], device=score.device)
        score = score.masked_fill(number >= state["count"][:, None], -torch.inf)
        # If a gate held back everything that was ready, the anchor has not moved and would make no progress.
        stuck = (branches.observed[:, 0] | ~state["anchor"]).all(dim=1, keepdim=True)
        return score.masked_fill(stuck & (number == 0), -torch.inf).argmax(dim=1)

    def _rank(self, signals: Signals) -> Tensor:
        return -signals.entropy if self.sure_by == "entropy" else signals.confidence
