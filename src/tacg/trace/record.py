"""A decode on disk: one JSON line for the start, one a step, one for the end. A cut-off trace can still be read.

start  {"kind": "start", "model", "policy", "prompt", "gen_length", "contrast": [w, beta], "settings", "tacg",
        "blocks": [[start, stop, steps]…]}
step   {"kind": "step", "step", "block", "names": [signals…], "committed": [[position, token, reason]…],
        "proposals": [[position, token, confidence, signals…]…], "pieces": {token: text}}   (pieces: new ones only)
end    {"kind": "end", "text", "tokens", "steps", "forwards", "finish_reason"}
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacg.engine.events import Finished, Started, Step
from tacg.engine.request import resolve
from tacg.errors import TacgError
from tacg.files import parse_json, read_text
from tacg.policies.probe import Probe
from tacg.shapes import COUNT, Number, misfit
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tacg.engine.events import Event
    from tacg.engine.request import Decode
    from tacg.llm import LLM
    from tacg.policies import Policy
    from tacg.types import Output

Line = dict[str, Any]
REAL = Number()
SHAPES: dict[str, Any] = {
    "start": {
        "model": str, "policy": str, "prompt": str, "gen_length": Number(1, 1 << 20, whole=True),
        "contrast": (REAL, REAL), "blocks": [(COUNT, COUNT, COUNT)],
    },
    "step": {
        "step": COUNT, "block": COUNT, "names": [str], "committed": [(COUNT, COUNT, str)], "proposals": [list],
        "pieces": dict,
    },
    "end": {"text": str, "tokens": list, "steps": COUNT, "forwards": COUNT, "finish_reason": str},
}  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """A recorded decode. `end` is None if it was cut off."""

    start: Line
    steps: tuple[Line, ...]
    end: Line | None

    def document(self) -> Line:
        """Everything as one JSON document, the texts of tokens gathered."""
        pieces: dict[str, str] = {}
        for step in self.steps:
            pieces |= step["pieces"]
        return {"start": self.start, "steps": self.steps, "end": self.end, "pieces": pieces}


class Lines:
    """Makes the lines of a trace out of the events of one row. Decode with `probe`: it measures every signal."""

    def __init__(self, llm: LLM, prompt: str, policy: Policy, decode: Decode) -> None:
        self.probe = Probe(base=policy)
        self._llm, self._prompt, self._decode = llm, prompt, decode
        self._told: set[int] = set()  # tokens whose text has been given

    def start(self, event: Started) -> Line:
        """The first line."""
        contrast, decode, grid = self.probe.needs.contrast, self._decode, self._llm.model.spec.causal_block
        assert contrast is not None
        return {
            "kind": "start", "model": self._llm.model.spec.name, "policy": self.probe.label, "prompt": self._prompt,
            "tacg": __version__, "gen_length": decode.gen_length, "contrast": [contrast.w, contrast.beta],
            "settings": decode.values(), "blocks": decode.blocks(len(event.prompt) % grid if grid else 0),
        }  # fmt: skip

    def step(self, event: Step) -> Line:
        """The line of a step."""
        fresh = {each.token for each in event.proposals} - self._told
        self._told |= fresh
        return _step(event, {str(token): self._piece(token) for token in fresh})

    def end(self, output: Output) -> Line:
        """The last line; the output has its text."""
        return {
            "kind": "end", "text": output.text, "tokens": output.tokens, "steps": output.steps,
            "forwards": output.forwards, "finish_reason": output.finish_reason,
        }  # fmt: skip

    def _piece(self, token: int) -> str:
        return "∎" if token in self._llm.model.spec.eos_ids else self._llm.tokenizer.decode([token])


def record(
    llm: LLM, prompt: str | list[dict[str, str]], policy: str, path: Path, *, settings: Mapping[str, Any] | None = None
) -> Iterator[Event]:
    """Decode a prompt and write the trace on the way; the events pass through. Every signal is measured."""
    made, decode = resolve(policy, dict(settings or {}))
    lines = Lines(llm, prompt if isinstance(prompt, str) else prompt[-1]["content"], made, decode)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:

        def write(line: Line) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        for event in llm.stream(prompt, lines.probe, suppress=decode.suppress, **decode.values()):
            if isinstance(event, Started):
                write(lines.start(event))
            elif isinstance(event, Step):
                write(lines.step(event))
            elif isinstance(event, Finished):
                write(lines.end(event.output))
            yield event


def _step(event: Step, pieces: dict[str, str]) -> Line:
    names = list(event.proposals[0].signals) if event.proposals else []
    return {
        "kind": "step", "step": event.step, "block": event.block, "names": names,
        "committed": [[each.position, each.token, each.reason] for each in event.committed],
        "proposals": [
            [each.position, each.token, _short(each.confidence), *(_short(each.signals[name]) for name in names)]
            for each in event.proposals
        ],
        "pieces": pieces,
    }  # fmt: skip


def _short(value: float) -> float:
    """Seven digits: as much as float32 has."""
    return float(f"{value:.7g}")


def read_trace(path: Path) -> Trace:
    """Read a trace back."""
    hint = 'make one with `tacg trace "a prompt"`'
    *texts, rest = read_text(path, "trace", hint).split("\n")
    lines = [parse_json(text, f"{path}, line {number}", hint) for number, text in enumerate(texts, start=1)]
    with contextlib.suppress(TacgError):
        lines += [parse_json(rest, str(path))] if rest else []  # or it was cut off in the middle of the line
    try:
        return trace_of(lines)
    except TacgError as error:
        raise TacgError(f"{path} is not a trace: {error} {hint[0].upper()}{hint[1:]}.") from None


def trace_of(lines: Sequence[Any]) -> Trace:
    """The trace that lines make. Only as much is checked as its readers rely on."""
    if not lines or not all(isinstance(line, dict) for line in lines) or lines[0].get("kind") != "start":
        raise TacgError('A trace must begin with a line of the kind "start".')
    for number, line in enumerate(lines, start=1):
        if wrong := misfit(line, SHAPES.get(str(line.get("kind")), {})) or _outside(line, lines[0]):
            raise TacgError(f"Line {number} of the trace: {wrong}.")
    steps = tuple(line for line in lines if line.get("kind") == "step")
    return Trace(lines[0], steps, lines[-1] if lines[-1].get("kind") == "end" else None)


def _outside(line: Line, start: Line) -> str:
    """Which place a line names that the canvas does not have, in words."""
    length, blocks = start["gen_length"], start["blocks"]
    if line.get("kind") == "start":
        wrong = [each for each in blocks if not each[0] < each[1] <= length]
        return f"a block must lie within the {length} positions, got {wrong[0]}" if wrong else ""
    if line.get("kind") != "step":
        return ""
    places = [each[0] if each else -1 for each in (*line["committed"], *line["proposals"])]
    if line["block"] >= len(blocks) or not all(COUNT.takes(place) and place < length for place in places):
        return f"blocks and positions must be those of a canvas of {length} positions in {len(blocks)} blocks"
    width = 3 + len(line["names"])
    if not all(
        len(each) == width and COUNT.takes(each[1]) and all(map(REAL.takes, each)) for each in line["proposals"]
    ):
        return f"a proposal must be position, token, confidence and {width - 3} signals, all of them numbers"
    return ""
