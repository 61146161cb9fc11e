"""Signals that only some policies need: random numbers, attention, a verifier. Other policies skip them.

Each is a function (batch, logits, scan, signals) -> signals; `Batch` keeps a list of those that its policy needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacg.cache import Store
from tacg.engine.draws import NOISE, PROPOSAL, SAMPLES, sample, uniform
from tacg.engine.plan import open_blocks
from tacg.engine.verify import verify
from tacg.models.base import AttentionMap, Spans
from tacg.scan import StepScan, probability
from tacg.scan.step_scan import backend_for
from tacg.types import Signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.engine.batch import Batch
    from tacg.engine.row import Row
    from tacg.models.base import Denoiser
    from tacg.types import Mix

Further = Callable[["Batch", Tensor, StepScan, Signals], Signals]


def add_draws(batch: Batch, logits: Tensor, scan: StepScan, signals: Signals) -> Signals:
    """Add those of noise, sampled tokens and the recheck of written tokens that the policy needs."""
    needs, measured, more = batch.needs, dict(signals.measured), dict[str, Any]()
    if "noise" in needs:
        measured["noise"] = _uniform(batch, NOISE, 1).squeeze(2)
    if "recheck" in needs:
        share = scan.spread(probability(logits, _at_places(batch, batch.answer)), 1)
        measured["recheck"] = torch.where(batch.boards.masked, 1.0, share)
    if needs.samples:
        more["draws"] = _uniform(batch, SAMPLES, 2 * needs.samples)
        picks, heat = _at_places(batch, more["draws"])[:, needs.samples :], _heat(batch)
        tokens = sample(logits, torch.where(heat > 0, heat, 1.0), picks)
        more["samples"] = scan.spread(tokens.T, -1).permute(1, 2, 0)
    return replace(signals, measured=measured, **more)


def drawn_proposals(batch: Batch, logits: Tensor) -> Tensor:
    """int64 [P]: tokens sampled at each row's temperature."""
    if hasattr(backend_for(batch.decode.scan, logits.device, logits.dtype, batch.decode.memory), "scan"):
        from tacg.engine.triton_draws import drawn

        assert batch.view is not None
        at = batch.boards
        return drawn(logits, batch.view.places, batch.length, at.seed, at.block, at.step, at.temperature)
    return sample(logits, _heat(batch), _at_places(batch, _uniform(batch, PROPOSAL, 1))).squeeze(1)


def _uniform(batch: Batch, first: int, draws: int) -> Tensor:
    boards = batch.boards
    count = boards.block * (1 << 32) + boards.step  # never repeats within a row
    return uniform(boards.seed, count, batch.length, first, draws)


def _heat(batch: Batch) -> Tensor:
    return _at_places(batch, batch.boards.temperature[:, None].expand(-1, batch.length))


def _at_places(batch: Batch, board: Tensor) -> Tensor:
    """[S, L, …] -> [P, …]: the values at positions that have logits."""
    assert batch.view is not None
    flat = board.flatten(0, 1)
    return flat if batch.view.places is None else flat[batch.view.places]


class Attended:
    """How positions of the open blocks attend to each other: requested from the forward, returned as a signal."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.maps: list[AttentionMap] = []  # of the active rows, by slot

    def asked_of(self, rows: Sequence[Row], spans: Spans) -> Spans:
        """The spans, with a request for attention."""
        self.maps = [AttentionMap(*open_blocks(row), self.share) for row in rows]
        return Spans(replace(span, attention=each) for span, each in zip(spans, self.maps, strict=True))

    def __call__(self, batch: Batch, logits: Tensor, scan: StepScan, signals: Signals) -> Signals:
        """float [S, L, L]: the attention of the rows' forwards, 0 elsewhere."""
        found = [each.mean() for each in self.maps]
        board = found[0].new_zeros(len(batch.rows), batch.length, batch.length)
        for row, each, mean in zip(batch.live(), self.maps, found, strict=True):
            here = slice(each.start - len(row.request.prompt), each.stop - len(row.request.prompt))
            board[row.slot, here, here] = mean
        return replace(signals, attention=board)


class Verified:
    """The tokens that the mixture with the verifier would write."""

    def __init__(self, verifier: Denoiser, mix: Mix, suppressed: Sequence[int], device: torch.device) -> None:
        self.verifier, self.mix = verifier, mix
        known = [each for each in suppressed if each < verifier.spec.vocab_size]  # its vocabulary may be smaller
        self.never = torch.tensor(known, dtype=torch.int64, device=device)
        self.drafts = Store()  # the verifier's keys and values

    def __call__(self, batch: Batch, logits: Tensor, scan: StepScan, signals: Signals) -> Signals:
        """int64 [S, L]; -1 where nothing is eligible."""
        drafts = batch.canvas.clone()
        answers = drafts[:, batch.prompt : batch.prompt + batch.length]
        answers.copy_(torch.where(signals.eligible, signals.token, answers))
        places = (batch.origins + batch.ruler).view(-1) if scan.places is None else scan.places
        target = verify(
            self.verifier, self.mix, batch.rows, drafts, batch.prompt, batch.length, places, scan.logits, self.never,
            None if batch.policy.revises else self.drafts,
        )  # fmt: skip
        return replace(signals, verified=torch.where(signals.eligible, scan.spread(target, -1), -1))
