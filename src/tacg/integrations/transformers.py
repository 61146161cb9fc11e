"""TACG for models that `transformers` has loaded: `model.generate(..., custom_generate=tacg_generate)`.

The model must be bidirectional (LLaDA and similar models with `trust_remote_code`, or any network made bidirectional);
our engine does the rest. Rows of equal length share a forward, so there is no padding.
"""

from __future__ import annotations

import shutil
import sys
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tacg.engine.events import Finished, Step
from tacg.engine.loop import Engine, refuse_failures
from tacg.engine.request import Request, resolve
from tacg.errors import TacgError
from tacg.models.base import ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from tacg.models.base import Span
    from tacg.policies import Policy
    from tacg.types import Output


@dataclass(frozen=True, slots=True)
class Generated:
    """What `return_dict_in_generate=True` returns: the sequences [B, T], and for each row its counts and commits."""

    sequences: Tensor
    outputs: tuple[Output, ...]


class HubModel:
    """A `transformers` model behind our engine's interface: packed rows in, logits of the selected positions out."""

    def __init__(self, model: Any, spec: ModelSpec) -> None:
        self.model, self.spec = model, spec
        self.device: torch.device = model.device

    def __call__(self, tokens: Tensor, spans: Sequence[Span], select: Tensor) -> Tensor:
        """One forward for all rows of a length."""
        rows = torch.split(tokens, [len(span) for span in spans])
        starts = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0).tolist()
        found: Tensor | None = None
        for length in sorted({len(row) for row in rows}):
            same = [number for number, row in enumerate(rows) if len(row) == length]
            logits = self._aligned(torch.stack([rows[number] for number in same]))
            if found is None:
                found = logits.new_empty(len(select), logits.shape[-1])
            for number, row in zip(same, logits, strict=True):
                mine = (select >= starts[number]) & (select < starts[number] + length)
                found[mine] = row[select[mine] - starts[number]]
        assert found is not None
        return found

    def _aligned(self, ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, V]; for models that predict the next token, the prediction made one position earlier."""
        logits: Tensor = self.model(input_ids=ids).logits
        return logits if not self.spec.logit_shift else torch.cat([logits[:, :1], logits[:, :-1]], dim=1)


@torch.no_grad()
def tacg_generate(
    model: Any,
    input_ids: Tensor,
    generation_config: Any = None,
    *,
    policy: str | Policy = "tacg",
    settings: Mapping[str, Any] | None = None,
    mask_id: int | None = None,
    shifted: bool = False,
    drafts: Any = None,
    **model_inputs: Any,
) -> Tensor | Generated:
    """Decode a batch. Called by `generate`, or directly where a model has none: tacg_generate(model, input_ids, …).

    generation_config  `max_new_tokens` positions are generated; `do_sample` and `temperature`, `eos_token_id`,
                       `pad_token_id` and `return_dict_in_generate` mean what they say; what would have no effect
                       (top_p, penalties, beams, stop strings, …) is refused
    policy, settings   as in `llm.generate`: a name, and knobs such as block_length, steps, seed, k_extra; row n
                       samples with seed + n, so that `num_return_sequences` gives different ones
    mask_id            the mask token's id, if the model's config does not have a `mask_token_id`
    shifted            position i predicts token i + 1 (Dream)
    drafts             a streamer with `put_draft`, see `DraftStreamer`. It has its own name: `generate` does not pass
                       `streamer` on
    model_inputs       `attention_mask` marks padding; other inputs that `generate` prepares are not used
    """
    generation_config = generation_config or getattr(model, "generation_config", None)
    spec = _spec(model, generation_config, mask_id, shifted)
    _refuse_one_way(model, spec)
    _refuse_unheard(generation_config, model_inputs)
    made, decode = resolve(policy, {**_asked(generation_config, input_ids), **(settings or {})})
    rows = [row.tolist() for row in _unpadded(input_ids, model_inputs.get("attention_mask"))]
    engine = Engine(HubModel(model, spec), max_rows=len(rows))
    outputs: dict[int, Output] = {}
    requests = [Request(tuple(row), made, replace(decode, seed=decode.seed + n)) for n, row in enumerate(rows)]
    for event in engine.stream(requests, detail=drafts is not None):
        if isinstance(event, Finished):
            outputs[event.row] = event.output
        elif isinstance(event, Step):
            _show(drafts, event, spec.mask_id)
    ordered = tuple(outputs[number] for number in range(len(rows)))
    refuse_failures(ordered)
    if drafts is not None:
        drafts.put(torch.tensor(ordered[0].tokens))
        drafts.end()
    sequences = _padded(input_ids, ordered, _option(generation_config, "pad_token_id", (*spec.eos_ids, 0)[0]))
    return Generated(sequences, ordered) if _option(generation_config, "return_dict_in_generate", False) else sequences


class DraftStreamer:
    """Shows a decode in a terminal: committed tokens in plain text, proposals dimmed.

    Any other streamer with `put_draft`, such as transformers' TextDiffusionStreamer, can be used as well.
    """

    def __init__(self, tokenizer: Any, file: Any = None) -> None:
        self.tokenizer, self.file = tokenizer, file or sys.stdout
        self._lines = 0

    def put_draft(self, value: Tensor, committed: Tensor | None = None, **_: Any) -> None:
        """Replace the line: ids int64 [1, L] or [L], and which of them are committed.

        Only `put` is final: a policy that revises may still change what it has committed.
        """
        ids = value.view(-1).tolist()
        sure = [True] * len(ids) if committed is None else committed.view(-1).tolist()
        words = [self.tokenizer.decode([token]) for token in ids]
        text = "".join(word if plain else f"\033[2m{word}\033[0m" for word, plain in zip(words, sure, strict=True))
        self._clear()
        columns = shutil.get_terminal_size().columns
        self._lines = sum(max(1, -(-len(line) // columns)) for line in "".join(words).split("\n"))
        print(text, file=self.file, flush=True)

    def put(self, value: Tensor) -> None:
        """The answer itself, in place of the last draft."""
        self._clear()
        print(self.tokenizer.decode(value.view(-1).tolist()), file=self.file, flush=True)

    def end(self) -> None:
        """The end of the stream."""

    def _clear(self) -> None:
        if self._lines:
            print(f"\033[{self._lines}F\033[J", end="", file=self.file)
            self._lines = 0


def _show(streamer: Any, step: Step, mask_id: int) -> None:
    """Send the canvas of a step, with the proposals filled in, to a streamer of one row."""
    if step.row != 0:
        raise TacgError("A streamer shows one row; decode one prompt at a time, or without a streamer.")
    guesses = {each.position: each.token for each in step.proposals}
    draft = [guesses.get(place, token) if token == mask_id else token for place, token in enumerate(step.canvas)]
    committed = [token != mask_id for token in step.canvas]
    streamer.put_draft(torch.tensor([draft]), committed=torch.tensor([committed]))


def _spec(model: Any, config: Any, mask_id: int | None, shifted: bool) -> ModelSpec:
    mask_id = getattr(model.config, "mask_token_id", None) if mask_id is None else mask_id
    if type(mask_id) is not int:
        raise TacgError("The model's config has no `mask_token_id`: pass mask_id=… to generate().")
    ends = _option(config, "eos_token_id", getattr(model.config, "eos_token_id", None))
    return ModelSpec(
        name=getattr(model, "name_or_path", "") or type(model).__name__,
        family=str(model.config.model_type),
        vocab_size=int(model.config.vocab_size),
        mask_id=mask_id,
        eos_ids=() if ends is None else tuple(ends) if isinstance(ends, list) else (int(ends),),
        unwritable=(mask_id,),
        max_length=int(getattr(model.config, "max_position_embeddings", None) or 1 << 30),
        logit_shift=int(shifted),
    )


def _asked(config: Any, input_ids: Tensor) -> dict[str, Any]:
    """Our settings from a generation config."""
    asked: dict[str, Any] = {}
    length = _option(config, "max_new_tokens", _option(config, "max_length", 0) - input_ids.shape[1])
    if length > 0:
        asked["gen_length"] = length
    if _option(config, "do_sample", False):
        asked["temperature"] = float(_option(config, "temperature", 1.0))
    return asked


USUAL_TOP_K = 50  # the default that `generate` fills in for top_k
HEARD = {"TemperatureLogitsWarper", "MaxLengthCriteria", "EosTokenCriteria"}


def _refuse_unheard(config: Any, inputs: Mapping[str, Any]) -> None:
    """Raise for logits processors and stopping criteria, which this function does not apply."""
    asked = [*(inputs.get("logits_processor") or ()), *(inputs.get("stopping_criteria") or ())]
    heard = HEARD | ({"TopKLogitsWarper"} if _option(config, "top_k", 0) == USUAL_TOP_K else set())
    names = [type(each).__name__ for each in asked if type(each).__name__ not in heard]
    if _option(config, "num_beams", 1) > 1:
        names.append("num_beams")
    if names:
        raise TacgError(f"tacg_generate cannot do what {names[0]} asks for: call generate() without that setting.")


def _option(config: Any, name: str, otherwise: Any) -> Any:
    """A field of a generation config; None if it or the config is missing."""
    found = getattr(config, name, None)
    return otherwise if found is None else found


_looks_ahead: weakref.WeakSet[Any] = weakref.WeakSet()  # models that were tried


def _refuse_one_way(model: Any, spec: ModelSpec) -> None:
    """Raise for a causal model, whose answer would be noise: do the first logits depend on the last token?"""
    if model in _looks_ahead:
        return
    ids = torch.full((2, 4), spec.mask_id, device=model.device)
    ids[1, -1] = 0 if spec.mask_id else 1
    one, other = model(input_ids=ids).logits[:, 0]
    if bool((one != other).any()):
        _looks_ahead.add(model)
    else:
        raise TacgError(
            f"{spec.name!r} has causal attention, so it cannot fill in masks. Load a masked diffusion model "
            "(or, for an experiment, set `config.is_causal = False`)."
        )


def _unpadded(ids: Tensor, valid: Tensor | None) -> list[Tensor]:
    return list(ids) if valid is None else [row[mask.bool()] for row, mask in zip(ids, valid, strict=True)]


def _padded(ids: Tensor, outputs: Sequence[Output], padding: int) -> Tensor:
    """The prompts as given, followed by the answers."""
    longest = max(len(output.tokens) for output in outputs)
    answers = torch.full((len(ids), longest), padding, dtype=ids.dtype)
    for row, output in zip(answers, outputs, strict=True):
        row[: len(output.tokens)] = torch.tensor(output.tokens)
    return torch.cat([ids, answers.to(ids.device)], dim=1)
