"""Any policy that fits a block, as the scheduler of diffusers' pipeline: `LLaDA2Pipeline(model, TacgScheduler())`.

It replaces `BlockRefinementScheduler`. The pipeline runs the model, keeps the canvas and stops at the end of an answer;
it asks the scheduler what to write. Nothing here relies on the pipeline's step numbers, which are about to change
(diffusers #14741): a row whose masks are not those that the last step left has begun another block.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from diffusers import BlockRefinementScheduler
from diffusers.configuration_utils import register_to_config
from diffusers.schedulers import scheduling_block_refinement, scheduling_utils
from torch import nn

from tacg.errors import LogitsError, TacgError, unknown
from tacg.integrations.blocks import Block, Blocks, stable_seed
from tacg.integrations.settings import read_settings
from tacg.models.base import whole
from tacg.scan import lowest

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.llm import LLM
    from tacg.types import Commit

# What `step` returns, and its order as a tuple: the output that discrete schedulers will share, where there is one.
OUTPUT: Any = getattr(
    scheduling_utils, "DiscreteSchedulerOutput", scheduling_block_refinement.BlockRefinementSchedulerOutput
)
# Arguments that the pipeline passes to every step although they belong to the replaced rule. Defaults are accepted;
# other values would have no effect, so they are refused.
REPLACED = {"threshold": (0.7,), "editing_threshold": (0.5, 0.0), "minimal_topk": (1,), "top_p": (1.0,), "top_k": (0,)}
HEARD = ("mask_token_id", "temperature", "sampling_method", "prompt_mask")


class TacgScheduler(BlockRefinementScheduler):
    """Decides in `step` which proposals are written.

    settings       names and values as in SGLang's file (docs/engines.md): policy, base, preset, knobs, seed, memory, …
    mask_token_id  the mask's id, if the pipeline does not pass it to `step`

    The pipeline's `num_inference_steps` are the steps that a block may take. A call's `generator` seeds the samples.
    """

    @register_to_config
    def __init__(
        self,
        block_length: int = 32,
        num_inference_steps: int = 32,
        settings: dict[str, Any] | None = None,
        mask_token_id: int | None = None,
    ) -> None:
        theirs = {
            "block_length": block_length,
            "num_inference_steps": num_inference_steps,
            "mask_token_id": mask_token_id,
        }
        known = inspect.signature(BlockRefinementScheduler.__init__).parameters
        super().__init__(**{name: value for name, value in theirs.items() if name in known})
        self.policy, self.settings = read_settings(settings or {})
        self._decoding: _Decoding | None = None

    def set_timesteps(self, num_inference_steps: int, device: Any = None, **named: Any) -> None:
        """Another decode begins."""
        super().set_timesteps(num_inference_steps, device=device, **named)
        self._decoding = None

    @property
    def commits(self) -> list[list[Commit]]:
        """By row, what was committed in the current block, when and why, if `step_map` is set."""
        return [] if self._decoding is None else [block.commits for block in self._decoding.rows]

    def step(
        self, model_output: Tensor, timestep: Any, sample: Tensor, *,
        generator: torch.Generator | None = None, return_dict: bool = True, **asked: Any,
    ) -> Any:  # fmt: skip
        """One step of a batch of blocks: logits float [B, W, V] and ids int64 [B, W]. Neither is changed."""
        _refuse_replaced(asked)
        mask_id = asked.get("mask_token_id")
        mask_id = self.config.mask_token_id if mask_id is None else mask_id
        if mask_id is None:
            raise TacgError("A model without a mask has nothing to gate: TacgScheduler needs `mask_token_id`.")
        masked = sample == mask_id
        if (prompt := asked.get("prompt_mask")) is not None:
            masked = masked & ~prompt
        if self._decoding is None or self._decoding.left.shape != masked.shape:
            self._decoding = self._begin(masked, mask_id, generator, asked)
        logits = model_output.flatten(0, 1).clone()
        told = self._decoding.step(logits, masked, sample)
        self._count(timestep)
        values = {**told, "pred_logits": logits.view(model_output.shape)}
        ordered = {each.name: values[each.name] for each in fields(OUTPUT)}
        return OUTPUT(**ordered) if return_dict else tuple(ordered.values())

    @staticmethod
    def check_eos_finished(
        *, cur_x: Tensor, finished: Tensor, eos_token_id: int, mask_token_id: int, prompt_length: int, **_: Any
    ) -> Tensor:
        """bool [B]: rows in which everything up to the first end of text is written, whenever that was.

        diffusers' own check looks only in steps that write one, and also counts one in the prompt.
        """
        answer = cur_x[:, prompt_length:]
        settled = (answer == mask_token_id).cumsum(dim=1) == 0
        return finished | ((answer == eos_token_id) & settled).any(dim=1)

    def check_block_should_continue(self, *, finished: Tensor, **_: Any) -> bool:
        """Whether an unfinished row has masks left. Otherwise the pipeline would forward every full block once more."""
        return self._decoding is not None and bool((self._decoding.left.any(dim=1) & ~finished).any())

    def _begin(
        self, masked: Tensor, mask_id: int, generator: torch.Generator | None, asked: dict[str, Any]
    ) -> _Decoding:
        heat = 0.0 if asked.get("sampling_method") == "greedy" else asked.get("temperature") or 0.0
        most = min(self.num_inference_steps, self.settings.steps or self.num_inference_steps)
        settings = replace(self.settings, temperature=float(heat) or self.settings.temperature, steps=most)
        seed = 0 if generator is None else int(torch.randint(1 << 62, (), generator=generator, device=generator.device))
        rows, width = masked.shape
        return _Decoding(Blocks(self.policy, settings, width, [mask_id], most=rows), seed, torch.zeros_like(masked))

    def _count(self, timestep: Any) -> None:
        """Schedulers that number their steps themselves do so here."""
        if hasattr(self, "_init_step_index"):
            if self._step_index is None:
                self._init_step_index(timestep)
            self._step_index += 1


class _Decoding:
    """The rows of one call of the pipeline. `left`: bool [B, W], masks that the last step left."""

    def __init__(self, blocks: Blocks, seed: int, left: Tensor) -> None:
        self.blocks, self.seed, self.left = blocks, seed, left
        self.rows: list[Block] = [Block() for _ in left]
        self.begun = [0] * len(left)

    def step(self, logits: Tensor, masked: Tensor, sample: Tensor) -> dict[str, Tensor]:
        """What is written, under the names that diffusers uses now and those that it will use."""
        self._begin_blocks((masked & ~self.left).any(dim=1).tolist())
        at_work = {row: self.rows[row] for row in masked.any(dim=1).nonzero().squeeze(1).tolist()}
        commit, tokens, sure = torch.zeros_like(masked), sample, torch.ones_like(sample, dtype=torch.float32)
        if at_work:
            written = self.blocks.step(logits, masked, at_work)
            if written.failed:
                raise LogitsError(
                    f"Unusable logits (NaN, +inf or only -inf) in row {written.failed[0]}: check the model's dtype.",
                    [(row, 0) for row in written.failed],
                )
            commit = written.commit
            tokens, sure = torch.where(masked, written.tokens, sample), torch.where(masked, written.confidence, 1.0)
        self.left = masked & ~commit
        edited = torch.zeros_like(commit)
        return {
            "prev_sample": torch.where(commit, tokens, sample), "sampled_probs": sure,
            "sampled_tokens": tokens, "pred_original_sample": tokens,
            "transfer_index": commit, "committed_mask": commit, "editing_transfer_index": edited, "edited_mask": edited,
        }  # fmt: skip

    def _begin_blocks(self, begins: list[bool]) -> None:
        for row, begin in enumerate(begins):
            if begin:
                self.begun[row] += 1
                self.blocks.release(self.rows[row])
                self.rows[row] = Block(stable_seed(self.blocks.settings.seed, self.seed, row, self.begun[row]))


def _refuse_replaced(asked: dict[str, Any]) -> None:
    """Raise for arguments that only apply to the rule that is replaced here."""
    for name, value in asked.items():
        if name not in REPLACED and name not in HEARD:
            raise unknown("argument", name, [*REPLACED, *HEARD])
        if value is not None and value not in REPLACED.get(name, (value,)):
            raise TacgError(
                f"`{name}` is BlockRefinementScheduler's and has no effect here; put knobs into `settings`."
            )


@dataclass(frozen=True, slots=True)
class Logits:
    """The part of a model's output that the pipeline reads: float [B, W, V]."""

    logits: Tensor


class PipelineModel(nn.Module):
    """A model loaded by `tacg`, with the call that the pipeline expects.

    The networks on the hub ignore the pipeline's block-causal mask, and do not load in transformers 5. This one is
    block-causal, as it was trained, and computes logits for one block only, which is all that is read.

    block_length  positions whose logits are returned, the last ones
    """

    def __init__(self, llm: LLM, block_length: int | None = None) -> None:
        super().__init__()
        width = block_length or llm.model.spec.causal_block
        if width is None:
            raise TacgError("PipelineModel() needs `block_length`: this model is not block-causal.")
        self.network, self.unwritable, self.block_length = llm.model, list(llm.model.spec.unwritable), width

    @property
    def device(self) -> torch.device:
        """The model's device, which the pipeline uses, too."""
        return self.network.device

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Any = None) -> Logits:
        """int64 [B, T] -> float [B, W, V]. Positions after the answer are visible, as in LLaDA2's own loop."""
        if attention_mask is not None and bool((attention_mask.diff(dim=1) > 0).any()):
            raise TacgError("Prompts of unequal length must not be padded: call the pipeline once for each length.")
        rows, length = input_ids.shape
        width = min(self.block_length, length)
        places = torch.arange(rows * length, device=input_ids.device).view(rows, length)[:, -width:]
        logits = self.network(input_ids.flatten(), whole([length] * rows), places.flatten())
        logits[:, self.unwritable] = lowest(logits.dtype)
        return Logits(logits.view(rows, width, -1))
