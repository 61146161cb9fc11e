"""A decode on disk: one JSON line for the start, one a step, one for the end. A cut-off trace can still be read.

start  {"kind": "start", "model", "policy", "prompt", "gen_length", "contrast": [w, beta], "settings", "tacg"}
step   {"kind": "step", "step", "block", "names": [signals…], "committed": [[position, token, reason]…],
        "proposals": [[position, token, confidence, signals…]…], "pieces": {token: text}}   (pieces: new ones only)
end    {"kind": "end", "text", "tokens", "steps", "forwards", "finish_reason"}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacg.engine.events import Finished, Step
from tacg.engine.request import resolve
from tacg.errors import TacgError
from tacg.policies.probe import Probe
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tacg.engine.events import Event
    from tacg.llm import LLM

Line = dict[str, Any]


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


def record(
    llm: LLM, prompt: str, policy: str, path: Path, *, settings: Mapping[str, Any] | None = None
) -> Iterator[Event]:
    """Decode a prompt and write the trace on the way; the events pass through. Every signal is measured."""
    made, decode = resolve(policy, dict(settings or {}))
    probe = Probe(base=made)
    contrast = probe.needs.contrast
    assert contrast is not None
    ends, told = llm.model.spec.eos_ids, set[int]()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:

        def write(line: Line) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        write({
            "kind": "start", "model": llm.model.spec.name, "policy": made.label, "prompt": prompt, "tacg": __version__,
            "gen_length": decode.gen_length, "contrast": [contrast.w, contrast.beta], "settings": decode.values(),
        })  # fmt: skip
        for event in llm.stream(prompt, probe, suppress=decode.suppress, **decode.values()):
            if isinstance(event, Step):
                fresh = {each.token for each in event.proposals} - told
                told |= fresh
                write(
                    _step(
                        event, {str(token): "∎" if token in ends else llm.tokenizer.decode([token]) for token in fresh}
                    )
                )
            elif isinstance(event, Finished):
                output = event.output
                write({
                    "kind": "end", "text": output.text, "tokens": output.tokens, "steps": output.steps,
                    "forwards": output.forwards, "finish_reason": output.finish_reason,
                })  # fmt: skip
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
    lines: list[Line] = []
    try:
        for text in path.read_text(encoding="utf-8").splitlines():
            lines.append(json.loads(text))
    except OSError as error:
        raise TacgError(f"The trace {str(path)!r} cannot be read: {error}.") from None
    except json.JSONDecodeError:
        pass  # cut off in the middle of a line
    if not lines or not isinstance(lines[0], dict) or lines[0].get("kind") != "start":
        raise TacgError(f'{path} is not a trace; make one with `tacg trace "a prompt"`.')
    end = lines[-1] if lines[-1]["kind"] == "end" else None
    return Trace(lines[0], tuple(line for line in lines if line["kind"] == "step"), end)
