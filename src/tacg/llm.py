"""The main object of the library: a model with its tokenizer, and `generate`, `stream`, `logits`."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, overload

import torch

from tacg.canvas import Canvas, Hole
from tacg.constraint import compile_pattern, patterns_of
from tacg.constraint.pattern import NAMES as CONSTRAINTS
from tacg.engine.events import Event, Finished, Started, Step
from tacg.engine.loop import Engine, refuse_failures
from tacg.engine.request import Request, resolve
from tacg.errors import TacgError
from tacg.models.base import NO_MASK, whole
from tacg.models.loading import BUILT_IN, load_checkpoint, locate
from tacg.notebook import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from tacg.engine.request import Decode
    from tacg.models.base import Denoiser
    from tacg.policies import Policy
    from tacg.text import Message, Tokenizer
    from tacg.types import Output

# One prompt: a text, a conversation, ids, or a canvas with holes.
Prompt = str | list["Message"] | list[int] | Canvas


class LLM:
    """A diffusion language model ready to decode. Create one with `tacg.load`.

    verifier  an autoregressive model with the same tokenizer; the policy `apd` needs it
    engine    makes an engine from the arguments of `Engine`: that itself, or `graphs.engine_with_graphs`
    """

    def __init__(self, model: Denoiser, tokenizer: Tokenizer, verifier: Denoiser | None = None) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.verifier = verifier
        self.engine: Callable[..., Engine] = Engine

    def __repr__(self) -> str:
        model, tensors = self.model, _tensors(self.model)
        size = sum(tensor.numel() for tensor in tensors) / 1e6
        dtype = f" {str(tensors[0].dtype).removeprefix('torch.')}" if tensors else ""
        return f"<LLM {model.spec.name}: {type(model).__name__}, {size:,.1f} M parameters,{dtype} on {model.device}>"

    @overload
    def generate(
        self, prompts: str | list[Message] | list[int] | Canvas, policy: str | Policy = ..., *, chat: bool | None = ...,
        batch_size: int = ..., on_output: Callable[[int, Output], None] | None = ..., progress: bool = ...,
        **settings: Any,
    ) -> Output: ...  # fmt: skip

    @overload
    def generate(
        self, prompts: list[str] | list[list[Message]] | list[list[int]] | list[Canvas], policy: str | Policy = ..., *,
        chat: bool | None = ..., batch_size: int = ..., on_output: Callable[[int, Output], None] | None = ...,
        progress: bool = ..., **settings: Any,
    ) -> list[Output]: ...  # fmt: skip

    def generate(
        self, prompts: Any, policy: str | Policy = "tacg", *, chat: bool | None = None, batch_size: int = 32,
        on_output: Callable[[int, Output], None] | None = None, progress: bool = False, **settings: Any,
    ) -> Output | list[Output]:  # fmt: skip
        """Decode one prompt, or a list of them in batches.

        prompts    a text, a conversation (list of messages), ids or a `Canvas`; or a list of these
        policy     a name such as "tacg", "tacg+klass", "confidence:llada/gsm8k", or a Policy
        chat       wrap texts in the chat template (default: if the checkpoint has one)
        seed       random seed: one for all prompts, or a list with one per prompt
        on_output  called with (number, output) as soon as a prompt is done
        progress   show a progress bar
        schema, regex, choices  the form every answer must have: a JSON schema or pydantic model, a regular expression,
                   or a list of possible answers; or a list with one of these per prompt, None for no constraint
        settings   knobs of the decode (gen_length, block_length, seed, …) and of the policy (threshold, k_extra, …)
        """
        many, single = _listed(prompts)
        outputs: dict[int, Output] = {}
        steps = dict.fromkeys(range(len(many)), False) if progress else False  # events without proposals
        events = self._events(many, policy, chat, batch_size, settings, detail=steps)
        for event in _shown(events, len(many), self.model.spec.mask_id) if progress else events:
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
        """Like `generate`, step by step: yields `Started`, `Step`, `Finished` events; `row` is the prompt's number."""
        many, _ = _listed(prompts)
        return self._events(many, policy, chat, batch_size, settings, detail=True)

    def fill(
        self, canvas: str | Canvas | list[int], policy: str | Policy = "tacg", *, prompt: str | None = None,
        **settings: Any,
    ) -> Output:  # fmt: skip
        """Fill the holes of a text: `llm.fill("def f(x):\\n    ⟨20⟩\\n    return y")`, where ⟨20⟩ is 20 tokens.

        canvas  a text with holes, a `Canvas`, or ids with the mask id at the holes. `out.text` is the whole text and
                `out.holes` the texts of the holes. Given text is never changed
        prompt  a prompt that the model reads before the canvas
        """
        if isinstance(canvas, str):
            canvas = Canvas.parse(canvas, prompt)
        elif not isinstance(canvas, Canvas):
            canvas = replace(Canvas.of_ids(canvas, self.model.spec.mask_id), prompt=prompt)
        return self.generate(canvas, policy, **settings)

    @torch.no_grad()
    def logits(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """Aligned logits of whole canvases: int64 [B, T] -> float32 [B, T, V]; position i predicts token i.

        valid bool [B, T] marks real tokens; padding on either side is not passed to the model and gets zeros.
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
        """What distinguishes this model from others: its name, dtype, and digests of weights, config and tokenizer,
        of the verifier's weights if there is one, and how it is quantized if it is."""
        tensors = _tensors(self.model)
        verifier = {} if self.verifier is None else {"verifier": _digest(self.verifier)}
        config = replace(self.model.spec, name=""), getattr(self.model, "config", None)
        return {
            "model": self.model.spec.name,
            "dtype": str(tensors[0].dtype).removeprefix("torch.") if tensors else "none",
            "weights": _digest(self.model),
            "config": hashlib.sha256(repr(config).encode()).hexdigest()[:12],
            "tokenizer": self.tokenizer.digest,
            **verifier,
            **({"quantize": quantize} if (quantize := getattr(self.model, "quantize", None)) else {}),
        }

    @property
    def causal_block(self) -> int | None:
        """See `ModelSpec.causal_block`."""
        return self.model.spec.causal_block

    def encode(self, prompt: str | list[Message] | list[int], chat: bool | None = None) -> list[int]:
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

    def refuse_fill_only(self, what: str) -> None:
        """Raise if the model can only fill in text: masked language models have no end of text and no chat turns."""
        spec = self.model.spec
        if spec.before or spec.after:
            raise TacgError(
                f"{what} needs a model that answers prompts; {spec.name!r} is a masked language model, which fills "
                "texts: use `llm.fill`, or `tacg eval` with a task of `tacg judges`."
            )

    def text(self, tokens: Sequence[int]) -> str:
        """Decode ids to the answer's text, up to the first EOS."""
        ends = [place for place, token in enumerate(tokens) if token in self.model.spec.eos_ids]
        return self.tokenizer.decode(tokens[: ends[0]] if ends else tokens)

    def _events(
        self, prompts: Sequence[Any], policy: str | Policy, chat: bool | None, batch_size: int,
        settings: dict[str, Any], *, detail: bool | Mapping[int, bool],
    ) -> Iterator[Event]:  # fmt: skip
        seeds = settings.get("seed", 0)
        seeds = list(seeds) if isinstance(seeds, Sequence) else [seeds] * len(prompts)
        if len(seeds) != len(prompts):
            raise TacgError(f"`seed` must be one number or one per prompt, {len(prompts)}; got {len(seeds)}.")
        plain = {name: value for name, value in settings.items() if name not in ("seed", *CONSTRAINTS)}
        made, decode = resolve(policy, plain)
        requests = [
            self.request(prompt, made, decode.replace(seed=seed), chat)
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        if settings.keys() & {*CONSTRAINTS}:
            asked = zip(patterns_of(settings, len(prompts)), requests, prompts, strict=True)
            requests = [self.held_to(*each) for each in asked]
        for event in self.engine(self.model, batch_size, self.verifier).stream(requests, detail=detail):
            if isinstance(event, Finished):
                prompt, output = prompts[event.row], event.output
                if isinstance(prompt, Canvas):
                    output = self._filled(output, prompt, requests[event.row])
                else:
                    output = replace(output, text=self.text(output.tokens))
                yield replace(event, output=replace(output, pieces=self._pieces(output)))
            else:
                yield event

    def _pieces(self, output: Output) -> dict[int, str]:
        """The text of every token of an output; the end of the answer is ∎."""
        spec = self.model.spec
        tokens = {*output.tokens, *(each.token for each in output.commits)} - {spec.mask_id}
        return {token: "∎" if token in spec.eos_ids else self.tokenizer.decode([token]) for token in tokens}

    def request(self, prompt: Prompt, policy: Policy, decode: Decode, chat: bool | None = None) -> Request:
        """The engine request for one prompt or canvas."""
        if isinstance(prompt, Canvas):
            return self._canvas_request(prompt, policy, decode, chat)
        given = tuple(self.encode(prompt, chat))
        if self.model.spec.before or self.model.spec.after:
            return self._canvas_request(Canvas((given, Hole(decode.gen_length))), policy, decode, chat)
        return Request(given, policy, decode)

    def _canvas_request(self, prompt: Canvas, policy: Policy, decode: Decode, chat: bool | None) -> Request:
        """Put the special tokens that the model expects around a text (such as [CLS]) around the canvas, if missing."""
        spec = self.model.spec
        mask = spec.mask_id
        ids = prompt.ids(self.tokenizer.encode, mask)
        before = [] if prompt.prompt is None else self.encode(prompt.prompt, chat)
        if spec.before and tuple((before or ids)[: len(spec.before)]) != spec.before:
            before, ids = ([*spec.before, *before], ids) if before else (before, [*spec.before, *ids])
        if spec.after and tuple(ids[-len(spec.after) :]) != spec.after:
            ids = [*ids, *spec.after]
        start = 0 if before else ids.index(mask)
        decode = decode.replace(gen_length=len(ids) - start, early_stop=False)  # text given after a hole must stay
        return Request((*before, *ids[:start]), policy, decode, tuple(ids[start:]))

    def held_to(self, pattern: str | None, request: Request, prompt: Prompt = "") -> Request:
        """The request, constrained so that the answer (or a canvas's whole text) matches a regular expression."""
        if pattern is None:
            return request
        spec, suppress = self.model.spec, request.decode.suppress
        made = compile_pattern(pattern, self.tokenizer, spec, suppress, holes=bool(request.canvas))
        # The text before a canvas's first hole is matched too, although it is not written.
        before = request.prompt if isinstance(prompt, Canvas) and prompt.prompt is None else ()
        return replace(request, constraint=made, state=made.after(before))

    def _filled(self, output: Output, prompt: Canvas, request: Request) -> Output:
        """The output with the whole canvas as its text, and with the texts of its holes."""
        spec, ids = self.model.spec, list(() if prompt.prompt is not None else request.prompt)
        holes: list[list[int]] = []
        for place, token in enumerate(output.tokens):
            hole = request.canvas[place] == spec.mask_id
            if hole and (place == 0 or request.canvas[place - 1] != spec.mask_id):
                holes.append([])
            if hole and token in spec.eos_ids:
                continue  # left empty
            ids.append(token)
            if hole:
                holes[-1].append(token)
        return replace(output, text=self.tokenizer.decode(ids), holes=tuple(map(self.tokenizer.decode, holes)))


def _shown(events: Iterator[Event], answers: int, mask_id: int) -> Iterator[Event]:
    """Events with a progress bar on the way; steps need not have proposals."""
    masks: dict[int, int] = {}
    with Progress(answers) as progress:
        for event in events:
            if isinstance(event, Started):
                masks[event.row] = event.canvas.count(mask_id)
            elif isinstance(event, Step):
                written = 1 - event.canvas.count(mask_id) / masks[event.row]
                progress.tell(event.row, written, steps=event.step)
            else:
                progress.tell(event.row, 1.0, steps=event.output.steps)
            yield event


def _tensors(model: Denoiser) -> list[Tensor]:
    return list(getattr(model, "parameters", list)())


def _digest(model: Denoiser) -> str:
    """Digest of the first values of every tensor, so that it is fast for large models too."""
    digest = hashlib.sha256(model.spec.name.encode())
    for tensor in _tensors(model):
        digest.update(str(tensor.dtype).encode())
        first = tensor[0] if tensor.dim() > 2 else tensor  # only a few experts: all of them may be gigabytes
        digest.update(first.flatten()[:64].to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()[:12]


def load(
    source: str | Path = "pocket", *, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu",
    revision: str | None = None, offline: bool = False, tell: Callable[[int, int], None] | None = None,
    verifier: str | Path | None = None, compile: bool = False, quantize: str | None = None,
    graphs: bool = False,
) -> LLM:  # fmt: skip
    """Load a model.

    source    a built-in name, a local directory, a .gguf file, or a hub id
    dtype     "float32", "bfloat16", "float16", a torch dtype, or "auto": the checkpoint's own if it is fast on the
              device, otherwise float32
    device    "cpu", "cuda", "cuda:1", "mps", …, or "auto": cuda if there is one, then mps, then cpu; "cuda:0,cuda:1"
              splits the layers over several
    revision  branch, tag or commit of a hub id; with `offline` only files downloaded earlier are used
    tell      progress callback, called with (bytes loaded, total bytes)
    verifier  a directory or hub id of an autoregressive model with the same tokenizer, for the policy `apd`; pocket
              includes one
    compile   pass the layers through `torch.compile` on the first forward, which takes a while: fewer kernels on a GPU
    graphs    capture steps as CUDA graphs and replay them: a step is then one launch. Ignored, with a warning, where
              that is not possible
    quantize  "int8" or "int4": store the weights of all matrix products in 8 or 4 bits (see `tacg.models.quantized`)
    """
    llm = LLM(
        *load_checkpoint(
            source, dtype=dtype, device=device, revision=revision, offline=offline, tell=tell, quantize=quantize
        )
    )
    if graphs:
        from tacg.engine.graphs import engine_with_graphs

        llm.engine = engine_with_graphs
    if compile:
        from tacg.models.compiling import compile_layers

        compile_layers(cast("Any", llm.model))
    if verifier is None and source in BUILT_IN:
        own = locate(source) / "verifier"
        verifier = own if own.is_dir() else None
    if verifier is not None:
        llm.verifier = _verifier(verifier, llm, dtype, device, offline, quantize)
    return llm


def _verifier(
    source: str | Path, llm: LLM, dtype: str | torch.dtype, device: str | torch.device, offline: bool,
    quantize: str | None,
) -> Denoiser:  # fmt: skip
    """Load a model that can verify what this one drafts."""
    model, tokenizer = load_checkpoint(source, dtype=dtype, device=device, offline=offline, quantize=quantize)
    if model.spec.mask_id != NO_MASK:
        raise TacgError(f"`verifier` must be an autoregressive model, such as Qwen2.5-0.5B; {str(source)!r} is not.")
    if not tokenizer.agrees_with(llm.tokenizer):
        raise TacgError(
            f"`verifier` must have the tokenizer of {llm.model.spec.name!r}, so that ids mean the same; that of "
            f"{str(source)!r} differs."
        )
    return model


def _listed(prompts: Any) -> tuple[list[Any], bool]:
    """The prompts as a list, and whether a single prompt was passed."""
    if isinstance(prompts, str | Canvas):
        return [prompts], True
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes) or not prompts:
        raise TacgError(f"`prompts` must be a text, messages, ids, or a non-empty list of these; got {prompts!r}.")
    single = isinstance(prompts[0], dict | int)
    return ([prompts], True) if single else (list(prompts), False)
