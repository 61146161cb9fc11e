"""Verify a draft: an autoregressive model scores it in one forward, and its logits are mixed with the model's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacg.engine.plan import extent, open_blocks
from tacg.models.base import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.cache import Store
    from tacg.engine.row import Row
    from tacg.models.base import Denoiser, ModelSpec
    from tacg.types import Mix


def verify(
    verifier: Denoiser, mix: Mix, rows: Sequence[Row | None], drafts: Tensor, prompt: int, length: int,
    places: Tensor, logits: Tensor, suppressed: Tensor, kept: Store | None,
) -> Tensor:  # fmt: skip
    """int64 [P]: what the mixture would write at `places`, given the draft at all earlier positions.

    drafts      int64 [S, M + L + 1], the canvas with proposals in place of masks; answers have `length` positions
                after `prompt` columns
    places      int64 [P], as indices into [S * L]; `logits` float [P, V], the model's
    suppressed  int64, ids (known to both models) that are never written
    kept        where keys and values of settled positions are kept for the next step; None: nowhere

    No other place calls the verifier, so its forwards are counted only here. Its input changes in every step, so on a
    GPU each step costs an upload.
    """
    spans, pack, offset, total = list[Span](), list[Tensor](), torch.zeros(len(rows), dtype=torch.int64), 0
    for row in rows:
        if row is None:
            continue
        span = _span(row, verifier.spec, kept, len(rows))
        before = prompt - len(row.request.prompt) + row.slot * drafts.shape[1]
        pack.append(torch.arange(before + span.start, before + span.stop))
        offset[row.slot] = total - span.start + len(row.request.prompt)
        total += len(span)
        spans.append(span)
        row.auxiliary += 1
        row.auxiliary_positions += len(span)
    slot, shared = places // length, min(logits.shape[1], verifier.spec.vocab_size)
    select = (places - slot * length + offset.to(places.device)[slot]).clamp(0, total - 1)
    tokens = drafts.view(-1)[torch.cat(pack).to(drafts.device)]
    tokens = tokens.clamp(max=verifier.spec.vocab_size - 1)  # ids that it lacks; it never proposes them itself
    theirs = verifier(tokens, spans, select)[:, :shared]
    mixed = mix.weight * logits[:, :shared] + (1 - mix.weight) * theirs
    return mixed.index_fill_(1, suppressed, -torch.inf).argmax(dim=1)


def _span(row: Row, spec: ModelSpec, kept: Store | None, rows: int) -> Span:
    """The draft up to the end of the open blocks; a causal verifier skips the part that is already cached.

    Settled positions were written as drafted, so their keys and values from the last forward are still valid.
    """
    stop = open_blocks(row)[1]
    if spec.causal_block is None or kept is None:
        return Span(0, stop, stop)
    if row.draft_cache is None:
        row.draft_cache = kept.row(row.slot, extent(row, spec), rows)
    known = min(row.drafted, len(row.request.prompt) + row.settled)
    row.drafted = stop
    return Span(max(0, known - spec.logit_shift), stop, stop, row.draft_cache)
