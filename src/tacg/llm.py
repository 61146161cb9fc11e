"""The object that users hold: a model with its tokenizer, and `generate`, `stream`, `logits`."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import torch

from tacg.engine.events import Event, Finished
from tacg.engine.loop import Engine, refuse_failures
from tacg.engine.request import Request, resolve
from tacg.errors import TacgError
from tacg.models.base import whole
from tacg.models.loading import load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from tacg.models.base import Denoiser
    from tacg.policies import Policy
    from tacg.text import Message, Tokenizer
    from tacg.types import Output

# One prompt: a text, a conversation, or ids.
Prompt = str | list["Message"] | list[int]


class LLM:
    """A diffusion language model ready to decode. Make one with `tacg.load`."""

    def __init__(self, model: Denoiser, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    @overload
    def generate(
        self, prompts: str | list[Message] | list[int], policy: str | Policy = ..., *, chat: bool | None = ...,
        batch_size: int = ..., on_output: Callable[[int, Output], None] | None = ..., **settings: Any,
    ) -> Output: ...  # fmt: skip

    @overload
    def generate(
        self, prompts: list[str] | list[list[Message]] | list[list[int]], policy: str | Policy = ..., *,
        chat: bool | None = ..., batch_size: int = ..., on_output: Callable[[int, Output], None] | None = ...,
        **settings: Any,
    ) -> list[Output]: ...  # fmt: skip

    def generate(
        self,
        prompts: Any,
        policy: str | Policy = "tacg",
        *,
        chat: bool | None = None,
        batch_size: int = 32,
        on_output: Callable[[int, Output], None] | None = None,
        **settings: Any,
    ) -> Output | list[Output]:
        """Decode one prompt, or a list of them in batches.

        prompts    a text, a conversation (list of messages) or ids; or a list of these
        policy     a spelling such as "tacg", "tacg+klass", "confidence:llada/gsm8k", or a Policy
        chat       wrap texts in the chat template (default: if the checkpoint has one)
        seed       of the random numbers: one for all prompts alike, or a list with one each
        on_output  called with (number, output) as soon as a prompt is done
        settings   knobs of the decode (gen_length, block_length, seed, …) and of the policy (threshold, k_extra, …)
        """
        many, single = _listed(prompts)
        outputs: dict[int, Output] = {}
        for event in self._events(many, policy, chat, batch_size, settings, detail=False):
            if isinstance(event, Finished):
                outputs[event.row] = event.output
                if on_output is not None:
                    on_output(event.row, event.output)
        ordered = [outputs[number] for number in range(len(many))]
        refuse_failures(ordered)
        return ordered[0] if single else ordered

    def stream(
        self,
        prompts: Any,
        policy: str | Policy = "tacg",
        *,
        chat: bool | None = None,
        batch_size: int = 32,
        **settings: Any,
    ) -> Iterator[Event]:
        """As `generate`, step by step: `Started`, `Step` and `Finished` events; `row` is the prompt's number."""
        many, _ = _listed(prompts)
        return self._events(many, policy, chat, batch_size, settings, detail=True)

    @torch.no_grad()
    def logits(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """Aligned logits of whole canvases: int64 [B, T] -> float32 [B, T, V]; position i predicts token i.

        valid bool [B, T] marks real tokens; padding on either side is left out of the model and gets zeros.
        """
        if ids.dim() != 2 or ids.dtype != torch.int64:
            raise TacgError(f"`ids` must be int64 [B, T], got {ids.dtype} {tuple(ids.shape)}.")
        valid = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        if valid.shape != ids.shape or valid.dtype != torch.bool:
            raise TacgError(f"`valid` must be bool {tuple(ids.shape)}, got {valid.dtype} {tuple(valid.shape)}.")
        device = self.model.device
        tokens = ids[valid].to(device)
        lengths = [length for length in valid.sum(dim=1).tolist() if length]
        found = self.model(tokens, whole(lengths), torch.arange(len(tokens), device=device)).float()
        board = found.new_zeros(*ids.shape, found.shape[1])
        board[valid.to(device)] = found
        return board

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """What tells this model from any other: its name, dtype, and digests of weights, config and tokenizer.

        Of the weights a few values of every tensor are looked at, so that it takes no time for large models either.
        """
        tensors = list(getattr(self.model, "parameters", list)())
        weights = hashlib.sha256(self.model.spec.name.encode())
        for tensor in tensors:
            weights.update(str(tensor.dtype).encode())
            weights.update(tensor.flatten()[:64].to("cpu", torch.float32).numpy().tobytes())
        config = replace(self.model.spec, name=""), getattr(self.model, "config", None)
        return {
            "model": self.model.spec.name,
            "dtype": str(tensors[0].dtype).removeprefix("torch.") if tensors else "none",
            "weights": weights.hexdigest()[:12],
            "config": hashlib.sha256(repr(config).encode()).hexdigest()[:12],
            "tokenizer": self.tokenizer.digest,
        }

    def encode(self, prompt: Prompt, chat: bool | None = None) -> list[int]:
        """Ids of one prompt."""
        if isinstance(prompt, str):
            if chat or (chat is None and self.tokenizer.chat_template):
                return self.tokenizer.chat([{"role": "user", "content": prompt}])
            return self.tokenizer.encode(prompt)
        try:
            messages = [each for each in prompt if isinstance(each, dict)]
            ids = [operator.index(each) for each in prompt if not isinstance(each, dict)]
        except TypeError:
            messages, ids = [{}], [0]
        if messages and ids:
            raise TacgError(f"A prompt must be a text, a list of messages or a list of ids, got {prompt!r}.")
        return self.tokenizer.chat(messages) if messages else ids

    def text(self, tokens: Sequence[int]) -> str:
        """The answer that ids spell: up to the first EOS."""
        ends = [place for place, token in enumerate(tokens) if token in self.model.spec.eos_ids]
        return self.tokenizer.decode(tokens[: ends[0]] if ends else tokens)

    def _events(
        self, prompts: Sequence[Any], policy: str | Policy, chat: bool | None, batch_size: int,
        settings: dict[str, Any], *, detail: bool,
    ) -> Iterator[Event]:  # fmt: skip
        seeds = settings.get("seed", 0)
        seeds = list(seeds) if isinstance(seeds, Sequence) else [seeds] * len(prompts)
        if len(seeds) != len(prompts):
            raise TacgError(f"`seed` must be one number or one per prompt, {len(prompts)}; got {len(seeds)}.")
        made, decode = resolve(policy, {name: value for name, value in settings.items() if name != "seed"})
        requests = [
            Request(tuple(self.encode(prompt, chat)), made, decode.turn(seed=seed))
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        for event in Engine(self.model, batch_size).stream(requests, detail=detail):
            if isinstance(event, Finished):
                yield replace(event, output=replace(event.output, text=self.text(event.output.tokens)))
            else:
                yield event


def load(
    source: str | Path = "pocket", *, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu",
    revision: str | None = None, offline: bool = False, tell: Callable[[int, int], None] | None = None,
) -> LLM:  # fmt: skip
    """Load a model.

    source    a built-in name, a local directory, or a hub id
    dtype     "float32", "bfloat16", "float16", one of torch's own, or "auto": the checkpoint's own, where the device is
              good at it, otherwise float32
    device    "cpu", "cuda", "cuda:1", "mps", …, or "auto": cuda if there is one, then mps, then cpu
    revision  branch, tag or commit of a hub id; `offline` takes only what was downloaded before
    tell      called with (bytes loaded, bytes in all) on the way
    """
    return LLM(*load_checkpoint(source, dtype=dtype, device=device, revision=revision, offline=offline, tell=tell))


def _listed(prompts: Any) -> tuple[list[Any], bool]:
    """The prompts as a list, and whether there was just one."""
    if isinstance(prompts, str):
        return [prompts], True
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes) or not prompts:
        raise TacgError(f"`prompts` must be a text, messages, ids, or a non-empty list of these; got {prompts!r}.")
    single = isinstance(prompts[0], dict | int)
    return ([prompts], True) if single else (list(prompts), False)
