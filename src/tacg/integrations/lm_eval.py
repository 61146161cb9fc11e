"""A model for lm-evaluation-harness (EleutherAI), named `tacg`. Needs the extra `lm-eval`.

    python -m tacg.integrations.lm_eval run --model tacg --model_args pretrained=./LLaDA,policy=tacg --tasks gsm8k

runs `lm_eval` with this model registered: the harness finds models by import, not by entry point. In a program,
importing this module is enough.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval.models  # noqa: F401 (registers the harness's own models; ours alone would hide them)
import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from tacg.constraint.pattern import NAMES as CONSTRAINTS
from tacg.constraint.pattern import own_or, pattern_of
from tacg.engine.request import Decode
from tacg.errors import TacgError
from tacg.experiments.likelihood import monte_carlo
from tacg.files import read_json
from tacg.llm import LLM, load
from tacg.policies import get_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lm_eval.api.instance import Instance

    from tacg.types import Output

UNTOLD = "cuda:0"
LOG = logging.getLogger("tacg.lm_eval")


@register_model("tacg")
class TacgLM(LM):
    """A diffusion language model and the policy that it is decoded with.

    pretrained    a built-in name, a directory or a hub id; or an `LLM`
    policy        as everywhere: "tacg", "tacg+klass", "tacg:llada/gsm8k"
    mc_num        samples of the Monte-Carlo estimate of a log-likelihood (LLaDA's evaluation: 128)
    check_greedy  also report whether one token per step writes the answer: as many forwards as it has tokens
    settings      knobs of decode and policy; `gen_length` overrides a task's `max_gen_toks`. Also constraints on the
                  answers: `schema` (a JSON schema or the name of its file), `regex` or `choices`, unless the task's
                  `generation_kwargs` have one
    """

    def __init__(
        self, pretrained: str | LLM = "pocket", policy: str = "tacg", batch_size: int | str = 32, mc_num: int = 128,
        check_greedy: bool = False, dtype: str = "float32", device: str | None = None,
        max_batch_size: int | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        place = _place(device)
        self.llm = pretrained if isinstance(pretrained, LLM) else load(pretrained, dtype=dtype, device=place)
        self.llm.refuse_fill_only("lm_eval")
        self.policy, self.check_greedy, self.settings = policy, check_greedy, settings
        self.mc_num = _count("mc_num", mc_num)
        most = _count("max_batch_size", 32 if max_batch_size is None else max_batch_size)
        self.rows = most if str(batch_size).startswith("auto") else _count("batch_size", batch_size)
        pattern_of(_constraint(settings))
        ours = {*Decode().knobs(), *CONSTRAINTS}
        Decode().replace(**{name: value for name, value in settings.items() if name in Decode().knobs()})
        get_policy(policy, **{name: value for name, value in settings.items() if name not in ours})

    # -- text ------------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers, cut at the first stop string. Requests with the same settings are decoded as one batch."""
        groups: dict[tuple[int, float], list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(self._wants(request.args[1]), []).append(number)
        found: dict[int, str] = {}
        for (length, temperature), numbers in groups.items():
            prompts = [requests[number].args[0] for number in numbers]
            asked = [_constraint(requests[number].args[1]) for number in numbers]
            held = own_or(_constraint(self.settings), asked)
            settings = {"gen_length": length, "temperature": temperature, **self.settings, **held}
            outputs = self.llm.generate(prompts, self.policy, chat=False, batch_size=self.rows, **settings)
            for number, output in zip(numbers, outputs, strict=True):
                found[number] = cut(output.text, requests[number].args[1].get("until"))
                self.cache_hook.add_partial("generate_until", requests[number].args, found[number])
            _tell(outputs)
        return [found[number] for number in range(len(requests))]

    def _wants(self, asked: dict[str, Any]) -> tuple[int, float]:
        """Length and temperature of a request."""
        length = self.settings.get("gen_length") or asked.get("max_gen_toks") or Decode().gen_length
        sampled = asked.get("do_sample", True)
        return int(length), float(asked.get("temperature") or 0.0) if sampled else 0.0

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text, including special tokens."""
        return self.llm.tokenizer.render(chat_history, open_turn=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The checkpoint's template, for the harness's record."""
        return self.llm.tokenizer.chat_template or ""

    @property
    def tokenizer_name(self) -> str:
        """Distinguishes request caches."""
        return f"{self.llm.model.spec.name}-{self.llm.tokenizer.digest}".replace("/", "__")

    # -- log-likelihood --------------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Estimated log p(continuation | context) by `mc_num` samples, and whether it is the greedy answer."""
        found = []
        for request in requests:
            context, answer = self._encode_pair(*request.args)
            value = monte_carlo(self.llm, context, answer, self.mc_num, self.rows)
            found.append((value, self.check_greedy and self._greedy(context, answer)))
            self.cache_hook.add_partial("loglikelihood", request.args, found[-1])
        return found

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of both, cut where the context ends; its trailing spaces belong to the continuation."""
        kept = context.rstrip()
        continuation = context[len(kept) :] + continuation
        both, first = self.llm.tokenizer.encode(kept + continuation), self.llm.tokenizer.encode(kept)
        if both[: len(first)] != first or len(both) == len(first):  # a token spans the boundary
            return first or [self.llm.model.spec.eos_ids[0]], self.llm.tokenizer.encode(continuation)
        return first or [self.llm.model.spec.eos_ids[0]], both[len(first) :]

    def _greedy(self, context: list[int], answer: list[int]) -> bool:
        length = len(answer)
        written = self.llm.generate(context, "schedule", gen_length=length, block_length=length, early_stop=False)
        return written.tokens == tuple(answer)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Not offered: a diffusion model has no left-to-right perplexity."""
        raise NotImplementedError("tacg: perplexity over a whole text is not defined here; use loglikelihood tasks.")


def _count(name: str, value: int | str) -> int:
    """A whole number of at least 1; the harness passes on what the user typed."""
    if not str(value).isdecimal() or int(value) < 1:
        raise TacgError(f"`{name}` must be >= 1, got {value!r}.")
    return int(value)


def _place(device: str | None) -> str:
    """The device. The harness defaults to cuda:0, whatever the machine has."""
    if device == UNTOLD and not torch.cuda.is_available():
        LOG.warning("There is no CUDA here, so the model runs on the CPU; --device cpu avoids this warning.")
        return "cpu"
    return device or "cpu"


def _constraint(settings: dict[str, Any]) -> dict[str, Any]:
    """The constraint in a model's or a task's settings; a schema may be the name of a file."""
    own = {name: settings[name] for name in CONSTRAINTS if settings.get(name) is not None}
    if isinstance(own.get("schema"), str):
        own["schema"] = read_json(Path(own["schema"]), "JSON schema")
    return own


def cut(text: str, until: str | Sequence[str] | None) -> str:
    """The text up to the first of the stop strings."""
    for stop in [until] if isinstance(until, str) else until or []:
        if stop:
            text = text.partition(stop)[0]
    return text


def _tell(outputs: Sequence[Output]) -> None:
    mean = sum(output.tpf for output in outputs) / len(outputs)
    steps = sum(output.steps for output in outputs) / len(outputs)
    LOG.info("%s: %d answers, %.1f steps, %.2f tokens per forward", outputs[0].policy, len(outputs), steps, mean)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except TacgError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
