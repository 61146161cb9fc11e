"""Writes traces: from the events of a decode to lines of a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tacg.canvas import Canvas
from tacg.constraint.pattern import NAMES as CONSTRAINTS
from tacg.engine.events import Finished, Started, Step
from tacg.engine.request import Request, resolve
from tacg.policies.probe import Probe
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from tacg.engine.events import Event
    from tacg.engine.request import Decode
    from tacg.llm import LLM
    from tacg.policies import Policy
    from tacg.trace.format import Line
    from tacg.types import Output


class Lines:
    """Turns the events of one row into lines of a trace. Decode with `probe`, which measures every signal.

    prompt  the prompt to show; None: the text before the canvas
    """

    def __init__(self, llm: LLM, prompt: str | None, policy: Policy, decode: Decode) -> None:
        self.probe = Probe(base=policy)
        self._llm, self._prompt, self._decode = llm, prompt, decode
        self._told: set[int] = set()  # tokens whose text was already written

    def start(self, event: Started) -> Line:
        """The first line."""
        spec, needs = self._llm.model.spec, self.probe.needs
        decode = self._decode.replace(gen_length=event.gen_length)  # a canvas has its own length
        prompt = self._llm.tokenizer.decode(event.prompt) if self._prompt is None else self._prompt
        assert needs.contrast is not None
        given = [[at, token] for at, token in enumerate(event.canvas) if token != spec.mask_id]
        return {
            "kind": "start", "model": spec.name, "policy": self.probe.label, "prompt": prompt,
            "rule": (type(self.probe.base).__doc__ or "").strip().partition("\n")[0], "knobs": self.probe.base.values(),
            "tacg": __version__, "gen_length": decode.gen_length, "contrast": [needs.contrast.w, needs.contrast.beta],
            "settings": decode.values(), "blocks": Request(event.prompt, self.probe, decode, event.canvas).blocks(spec),
            "mask": spec.mask_id, "given": given, "rescans": needs.committed,
            "pieces": self._pieces(token for _, token in given),
        }  # fmt: skip

    def step(self, event: Step) -> Line:
        """The line of a step."""
        said = [each.token for each in event.proposals] + [each.token for each in event.committed]
        return _step(event, self._pieces(said))

    def end(self, output: Output, grade: Mapping[str, Any] | None = None) -> Line:
        """The last line; the output must have its text. `grade` is that of an answer to a known problem."""
        return {
            "kind": "end", "text": output.text, "tokens": output.tokens, "steps": output.steps,
            "forwards": output.forwards, "finish_reason": output.finish_reason,
            **({} if grade is None else {"grade": dict(grade)}),
        }  # fmt: skip

    def _pieces(self, tokens: Iterable[int]) -> dict[str, str]:
        """The texts of tokens that were not written yet."""
        spec, fresh = self._llm.model.spec, set(tokens) - self._told - {self._llm.model.spec.mask_id}
        self._told |= fresh
        return {str(each): "∎" if each in spec.eos_ids else self._llm.tokenizer.decode([each]) for each in fresh}


def record(
    llm: LLM, prompt: str | list[dict[str, str]] | Canvas, policy: str | Policy, path: Path, *,
    settings: Mapping[str, Any] | None = None, grade: Callable[[str], Mapping[str, Any]] | None = None,
) -> Iterator[Event]:  # fmt: skip
    """Decode a prompt and write the trace on the way; the events pass through. Every signal is measured.

    grade  grades the answer's text: the trace's `grade`
    """
    given = dict(settings or {})
    held = {name: given.pop(name) for name in CONSTRAINTS if name in given}
    made, decode = resolve(policy, given)
    lines = Lines(llm, _shown(prompt), made, decode)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:

        def write(line: Line) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        for event in llm.stream(prompt, lines.probe, suppress=decode.suppress, **decode.values(), **held):
            if isinstance(event, Started):
                write(lines.start(event))
            elif isinstance(event, Step):
                write(lines.step(event))
            elif isinstance(event, Finished):
                write(lines.end(event.output, grade and grade(event.output.text)))
            yield event


def _shown(prompt: str | list[dict[str, str]] | Canvas) -> str | None:
    if isinstance(prompt, Canvas):
        return prompt.prompt
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def _step(event: Step, pieces: dict[str, str]) -> Line:
    names = list(event.proposals[0].signals) if event.proposals else []
    return {
        "kind": "step", "step": event.step, "block": event.block, "forwards": event.forwards, "names": names,
        "committed": [[each.position, each.token, each.reason] for each in event.committed],
        "proposals": [
            [each.position, each.token, _short(each.confidence), *(_short(each.signals[name]) for name in names)]
            for each in event.proposals
        ],
        "pieces": pieces,
    }  # fmt: skip


def _short(value: float) -> float:
    """Round to seven digits, the precision of float32."""
    return float(f"{value:.7g}")
