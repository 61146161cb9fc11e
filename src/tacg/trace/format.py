"""A decode on disk: one JSON line for the start, one per step, one for the end. An incomplete trace is still readable.

start  {"kind": "start", "model", "policy", "prompt", "gen_length", "contrast": [w, beta], "settings", "tacg",
        "blocks": [[start, stop, steps]…], "mask", "given": [[position, token]…], "rescans",
        "pieces": {token: text}, "rule", "knobs": {name: value}}
step   {"kind": "step", "step", "block", "forwards", "names": [signals…], "committed": [[position, token, reason]…],
        "proposals": [[position, token, confidence, signals…]…], "pieces": {token: text}}   (pieces: new ones only)
end    {"kind": "end", "text", "tokens", "steps", "forwards", "finish_reason", "grade": {"correct", "score", …}}

A position is "committed" each time it is written: with another token (edit), or with the mask id (remask).
mask     the mask id
given    tokens of the canvas that were there from the start
rescans  whether committed positions were observed as well
rule     what the policy does, in one sentence; `knobs`: the values of its knobs
grade    whether the answer is right, if the prompt is a problem of a task
The first version had none of these, no pieces in the start line and no forwards in steps: it only filled masks.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError
from tacg.files import parse_json, read_text, what_is
from tacg.shapes import COUNT, Number, misfit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Line = dict[str, Any]
REAL = Number()
SHAPES: dict[str, Any] = {
    "start": {
        "model": str, "policy": str, "prompt": str, "gen_length": Number(1, 1 << 20, whole=True),
        "contrast": (REAL, REAL), "blocks": [(COUNT, COUNT, COUNT)], "mask?": COUNT, "given?": [(COUNT, COUNT)],
        "rescans?": bool, "pieces?": dict, "rule?": str, "knobs?": dict,
    },
    "step": {
        "step": COUNT, "block": COUNT, "forwards?": COUNT, "names": [str], "committed": [(COUNT, COUNT, str)],
        "proposals": [list], "pieces": dict,
    },
    "end": {
        "text": str, "tokens": list, "steps": COUNT, "forwards": COUNT, "finish_reason": str,
        "grade?": {"correct": bool, "score": REAL},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """A recorded decode. `end` is None if the trace is incomplete."""

    start: Line
    steps: tuple[Line, ...]
    end: Line | None

    def document(self) -> Line:
        """Everything as one JSON document, with the texts of all tokens."""
        pieces: dict[str, str] = dict(self.start.get("pieces") or {})
        for step in self.steps:
            pieces |= step["pieces"]
        return {"start": self.start, "steps": self.steps, "end": self.end, "pieces": pieces}


def read_trace(path: Path) -> Trace:
    """Read a trace from a file."""
    hint = 'make one with `tacg trace "a prompt"`'
    *texts, rest = read_text(path, "trace", hint).split("\n")
    lines = [parse_json(text, f"{path}, line {number}", hint) for number, text in enumerate(texts, start=1)]
    with contextlib.suppress(TacgError):
        lines += [parse_json(rest, str(path))] if rest else []  # unless the line is incomplete
    try:
        return trace_of(lines)
    except TacgError as error:
        it = "" if not lines or lines[0] == {} else f" It is {what_is(lines[0])}."
        raise TacgError(f"{path} is not a trace: {error}{it} {hint[0].upper()}{hint[1:]}.") from None


def trace_of(lines: Sequence[Any]) -> Trace:
    """Build a trace from lines. Only what its readers rely on is checked."""
    if not lines or not all(isinstance(line, dict) for line in lines) or lines[0].get("kind") != "start":
        raise TacgError('A trace must begin with a line of the kind "start".')
    for number, line in enumerate(lines, start=1):
        if wrong := misfit(line, SHAPES.get(str(line.get("kind")), {})) or _outside(line, lines[0]):
            raise TacgError(f"Line {number} of the trace: {wrong}.")
    steps = tuple(line for line in lines if line.get("kind") == "step")
    return Trace(lines[0], steps, lines[-1] if lines[-1].get("kind") == "end" else None)


def _outside(line: Line, start: Line) -> str:
    """Describe a position or block that the canvas does not have, or return an empty text."""
    length, blocks = start["gen_length"], start["blocks"]
    if line.get("kind") == "start":
        wrong = [each for each in blocks if not each[0] < each[1] <= length]
        wrong += [each for each in line.get("given") or () if each[0] >= length]
        return f"blocks and given tokens must lie within the {length} positions, got {wrong[0]}" if wrong else ""
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
