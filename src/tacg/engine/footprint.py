"""How much memory a row takes while it is decoded, how much there is, and which errors mean that there was not enough.

Rows are admitted while what they take fits. This is an estimate of the parts that grow with rows: keys and values, the
scan's histories, logits. What a forward needs for itself is not known beforehand, so a part of the memory stays free,
and a step that runs out of memory after all is taken again with fewer rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tacg.cache import resolve_mode

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from tacg.engine.batch import Batch
    from tacg.engine.request import Request
    from tacg.engine.row import Row
    from tacg.models.base import Denoiser
    from tacg.types import Needs

USABLE = 0.8  # of the free memory; the rest is for what a forward computes on the way
# torch has an exception type for accelerator memory; for the CPU and libraries there are only messages.
NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "ALLOC_FAILED")


class Footprint(NamedTuple):
    """Bytes that one row takes.

    cache    keys and values of its prompt and answer
    history  what the scan remembers of the positions in view: the reference, previous posteriors, credit
    logits   of one step
    """

    cache: int
    history: int
    logits: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def footprint(request: Request, model: Denoiser) -> Footprint:
    """What a request takes on this model."""
    spec, needs, decode = model.spec, request.policy.needs, request.decode
    answer = len(request.canvas) or decode.gen_length
    whole = decode.observe == "sequence" or needs.scope != "block"
    view = answer if whole else max(stop - start for start, stop, _ in request.blocks(spec))
    kind, width = _table(model)
    cache = 0
    if resolve_mode(decode.cache, decode.observe, spec, needs) != "none":
        length = len(request.prompt) + answer
        length = length if spec.causal_block is None else spec.block_edge(length, spec.padding(len(request.prompt)))
        cache = length * getattr(model, "kept_bytes", 0)
    history = _history(needs, decode.memory, spec.vocab_size, width)
    return Footprint(cache, view * history, view * max(1, needs.branches) * spec.vocab_size * kind.itemsize)


def _history(needs: Needs, memory: str, vocabulary: int, width: int) -> int:
    """Bytes that the scan remembers of a position."""
    rows = ("kl" in needs) + (needs.credit is not None) + (needs.past.steps if needs.past else 0)
    reference = {"fp32": 4 * vocabulary, "bf16": 2 * vocabulary, "hidden": 4 * width}[memory]
    return 4 * vocabulary * rows + (reference if needs.contrast else 0)


def _table(model: Any) -> tuple[torch.dtype, int]:
    """The type of the logits and the width of the hidden states, as far as the model tells."""
    table = getattr(model, "table", None)
    return (torch.float32, 0) if table is None else (table.dtype, table.shape[-1])


def usable_memory(device: torch.device) -> int | None:
    """Bytes on this device that rows may take. None: not known, as on a CPU, which has to share with others."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's own, and unused
    return int(USABLE * (free + cached))


def fits(batches: Mapping[Hashable, Batch], row: Row, key: Hashable, memory: int) -> bool:
    """Whether this row, which belongs to the batch of this key, fits besides the others.

    A row that would be alone is always tried.
    """
    busy = {each: batch for each, batch in batches.items() if batch.live()}
    mine = busy.pop(key, None)
    if mine is None and not busy:
        return True
    taken = sum(batch.bytes_taken() for batch in busy.values())
    return taken + (row.bytes if mine is None else mine.bytes_taken(row)) <= memory


def shed(batches: Iterable[Batch], torn: Sequence[Row]) -> tuple[list[Row], int]:
    """After a step without enough memory: rows that start again later, the youngest first, and how many to try next.

    torn  rows that the step has lost. If there are none, the youngest row leaves its batch. No row is returned if there
          was only one: fewer are none
    """
    running = [(batch, row) for batch in batches for row in batch.live()]
    count = len(running) + len(torn)
    if count < 2:
        return [], 1
    if torn:
        return sorted(torn, key=lambda row: -row.number), count - 1
    batch, youngest = max(running, key=lambda each: each[1].number)
    batch.leave(youngest)
    return [youngest], count - 1


def out_of_memory(error: BaseException) -> bool:
    """Whether a step failed for lack of memory, so that fewer rows may succeed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)


def free_memory(device: torch.device) -> None:
    """Return memory that torch has cached."""
    if device.type == "cuda" and torch.cuda.is_available():
        torch.cuda.empty_cache()
