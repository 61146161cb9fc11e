"""TACG, and any other policy that fits a block, as an algorithm of SGLang (>= 0.5.16).

`--dllm-algorithm TACG --dllm-algorithm-config tacg.yaml`

SGLang finds `register` through the entry point `sglang.srt.plugins` and calls it in every process. An algorithm has one
method, `step`, whose state SGLang keeps with the request. Four things to know. A block is done when it was complete
before the forward, so each block costs one forward more than its steps. Rounds have no upper limit, so every step has
to commit something. A round may be several steps of the same batch, in which `step` is also called for blocks that are
done. The logits lie in a buffer that the next forward overwrites.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from tacg.errors import TacgError
from tacg.integrations.blocks import Block, Blocks, stable_seed
from tacg.integrations.settings import read_settings

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.types import Commit

logger = logging.getLogger(__name__)

NAME = "TACG"
THEIRS = ("block_size",)  # keys of the YAML file that SGLang reads itself
RESULTS = "sglang.srt.dllm.mixin.scheduler.SchedulerDllmMixin.process_batch_result_dllm"


class Algorithm:
    """Our part of the algorithm; `register` adds SGLang's base class.

    maps  step maps of blocks that are done, by request id, until the scheduler adds them to the request
    """

    block_size: int
    mask_id: int
    supports_step_maps = True  # for releases that count steps themselves: every step commits something

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        try:
            policy, self.settings = read_settings(config.algorithm_config, THEIRS)
        except TacgError as error:  # up to 0.5.20, SGLang itself only reports that TACG is unknown
            logger.error("The settings of TACG (--dllm-algorithm-config) are refused: %s", error)
            raise
        self.blocks = Blocks(policy, self.settings, self.block_size, [self.mask_id], config.max_running_requests)
        self.maps: dict[str, list[Commit]] = {}
        logger.info("TACG: %s, %s", policy.label, self.settings)

    def run(self, *args: Any, **named: Any) -> Any:
        """As SGLang runs it; step maps that were not collected are dropped."""
        self.maps.clear()
        return super().run(*args, **named)  # type: ignore[misc]

    def init_step_state(self, forward_batch: Any) -> list[Block]:
        """One neutral trajectory each. A request's random seed depends on its id and the position of the block."""
        count = forward_batch.batch_size
        starts = forward_batch.positions[:: self.block_size][:count].tolist()
        names = forward_batch.rids or [""] * count
        return [Block(stable_seed(self.settings.seed, *each)) for each in zip(names, starts, strict=True)]

    def step(self, forward_batch: Any, logits: Any, states: list[Block]) -> list[bool]:
        """Commit into `forward_batch.input_ids`; returns which blocks were complete already, and may be sent.

        logits  float [B * W, V], or what the model returned, with `full_logits` of that shape
        """
        ids = forward_batch.input_ids.view(forward_batch.batch_size, self.block_size)
        masked = ids == self.mask_id
        prompt = getattr(forward_batch, "dllm_prompt_mask", None)  # a prompt may contain the mask id
        if prompt is not None:
            masked &= ~prompt
        busy = masked.any(dim=1).tolist()
        for row, at in enumerate(busy):
            if not at:
                self._done(states[row], forward_batch, row)
        if any(busy):
            at_work = {row: states[row] for row, at in enumerate(busy) if at}
            written = self.blocks.step(full_logits(logits), masked, at_work)
            ids.copy_(torch.where(written.commit, written.tokens.to(ids.dtype), ids))
            self._tell_failures(forward_batch, written.failed)
        return [not at for at in busy]

    def _done(self, block: Block, forward_batch: Any, row: int) -> None:
        if self.settings.step_map and block.commits and forward_batch.rids:
            self.maps[forward_batch.rids[row]] = sorted(block.commits, key=lambda each: each.position)
            block.commits = []
        self.blocks.release(block)

    def _tell_failures(self, forward_batch: Any, rows: tuple[int, ...]) -> None:
        for row in rows:
            logger.error(
                "Unusable logits (NaN, +inf or only -inf) for request %s: its block is filled up with token %d, the "
                "answer is worthless. Check the model's dtype and the suppressed ids.",
                forward_batch.rids[row] if forward_batch.rids else row,
                self.blocks.filler,
            )


def full_logits(logits: Any) -> Tensor:
    """float [B * W, V] from what SGLang passes to `step`: the logits, in later releases the model's whole output."""
    found = logits if isinstance(logits, torch.Tensor) else getattr(logits, "full_logits", None)
    if found is None:
        error = TacgError(
            "SGLang passed no logits of the whole vocabulary, only a summary of them (`dllm_vocab_state`: the top "
            "token and its probability). The policies here compare whole distributions: start the server without that "
            "summary, or use SGLang's own LowConfidence."
        )
        logger.error("%s", error)
        raise error
    return found


def hand_over_maps(scheduler: Any, batch: Any, *_: Any, **__: Any) -> None:
    """Before the scheduler sends results: put step maps into the requests' `meta_info`, one value per token."""
    algorithm = getattr(scheduler.tp_worker, "dllm_algorithm", None)
    if not isinstance(algorithm, Algorithm) or not algorithm.maps:
        return
    for request in batch.reqs:
        commits = algorithm.maps.pop(request.rid, [])
        if commits:
            told = request.customized_info = request.customized_info or {}
            if not getattr(request, "return_step_maps", False):  # then SGLang itself adds them
                told.setdefault("step_maps", []).extend(each.step for each in commits)
            told.setdefault("tacg_reason", []).extend(each.reason for each in commits)


def register() -> None:
    """Register TACG with SGLang. SGLang only logs what plug-ins raise, so it is also logged here, with what to do."""
    try:
        from sglang.srt.dllm import algorithm as known
        from sglang.srt.dllm.algorithm.base import DllmAlgorithm
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        if not hasattr(DllmAlgorithm, "step"):
            raise TacgError("SGLang must be at least 0.5.16: its algorithms have no `step` yet. pip install -U sglang")
        here = known.algo_name_to_cls.setdefault(NAME, type(NAME, (Algorithm, DllmAlgorithm), {}))
        if not issubclass(here, Algorithm):
            raise TacgError(f"SGLang has an algorithm named {NAME!r} already, {here!r}: uninstall one of the two.")
        HookRegistry.register(RESULTS, hand_over_maps, HookType.BEFORE)
    except Exception as error:
        logger.exception("TACG could not be registered with SGLang, so `--dllm-algorithm TACG` will fail: %s", error)
        raise
