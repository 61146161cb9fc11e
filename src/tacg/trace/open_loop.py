"""Another policy on recorded signals: when would it have committed the recorded proposals?

This is open-loop. The recorded decode wrote its own tokens, and all later signals depend on them, so the result is
exact only up to the first step in which the two policies differ. It shows how a gate would have judged the same
signals; to see what it would have written, decode with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from tacg.engine.commits import resolve_commits
from tacg.errors import TacgError
from tacg.policies import get_policy
from tacg.trace.format import Line, Trace
from tacg.types import MEASURED, EmaContrast, Reason, Signals

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.policies import Policy
    from tacg.types import Needs


def replay(trace: Trace, policy: str | Policy) -> Trace:
    """The trace with the commits that the policy would have made.

    A position is written in the step in which the policy commits it, with the policy's reason. If the recording writes
    it earlier, the reason is "recorded". The recording may re-mask only positions that the policy did not commit
    itself. Fallbacks belong to the engine and are left out.
    """
    made = get_policy(policy)
    _check(trace, made)
    board = _Board(trace.start, made.needs)
    state = made.start(1, trace.start["gen_length"], torch.device("cpu"))
    steps: list[Line] = []
    for line in trace.steps:
        taken = sum(each["block"] == line["block"] for each in steps)
        signals = board.signals(line, taken)
        decision, state = made.decide(signals, state)
        if decision.open is not None:
            board.until = line["block"] + int(decision.open)
        steps.append({**line, "committed": board.write(line, resolve_commits(signals, decision)[0].tolist())})
    about = {"policy": f"{made.label} on the signals of {trace.start['policy']}"}
    return Trace({**trace.start, **about}, tuple(steps), trace.end)


def _check(trace: Trace, policy: Policy) -> None:
    needs, recorded = policy.needs, EmaContrast(*trace.start["contrast"])
    if needs.contrast not in (None, recorded):
        raise TacgError(
            f"`{policy.label}` reads the contrast w={needs.contrast.w}, beta={needs.contrast.beta}; the trace was "
            f"recorded with w={recorded.w}, beta={recorded.beta}, and logits are not in it. Record with those knobs."
        )
    known = set(trace.steps[0]["names"]) if trace.steps else set()
    missing = sorted(needs.names - known) + [
        name for name in ("credit", "past", "samples", "branches") if getattr(needs, name)
    ]
    if missing:
        raise TacgError(f"`{policy.label}` reads `{missing[0]}`, which the trace does not contain.")
    if needs.committed and not trace.start.get("rescans"):
        raise TacgError(
            f"`{policy.label}` looks at committed tokens again; `{trace.start['policy']}` did not, so the trace does "
            "not contain their signals. Record with a policy that revises."
        )


@dataclass
class _Board:
    """The policy's progress on the recorded canvas.

    written  tokens of all positions that are not masked, including given ones; `own`: those the policy committed
    seen     positions whose trajectory continues
    until    blocks before this one are open, in addition to the recording's block
    """

    start: Line
    needs: Needs
    written: dict[int, int] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    until: int = 0

    def __post_init__(self) -> None:
        self.written |= dict(self.start.get("given") or ())
        self.given = frozenset(self.written)
        self.mask = self.start.get("mask") or 0
        self.grid = torch.zeros(1, self.start["gen_length"], dtype=torch.int64)
        for number, (first, stop, _) in enumerate(self.start["blocks"]):
            self.grid[0, first:stop] = number

    def signals(self, line: Line, taken: int) -> Signals:
        """One recorded step as signals [1, L], after `taken` steps in its block."""
        shown = [each for each in line["proposals"] if self.needs.committed or each[0] not in self.written]
        shown = [each for each in shown if each[0] not in self.given]
        places = torch.tensor([each[0] for each in shown], dtype=torch.int64)

        def spread(values: list[float], empty: Tensor) -> Tensor:
            empty[0, places] = torch.tensor(values, dtype=empty.dtype)
            return empty

        nowhere = torch.zeros_like(self.grid, dtype=torch.bool)
        observed = spread([True] * len(shown), nowhere.clone())
        first = spread([each[0] not in self.seen for each in shown], nowhere.clone())
        self.seen = {each[0] for each in shown}
        masked, ahead = ~nowhere, self.grid - line["block"]
        opened = 1 if self.needs.scope == "block" else max(1, self.until - line["block"])
        masked[0, list(self.written)] = False
        written = torch.full_like(self.grid, self.mask)
        for place, token in self.written.items():
            written[0, place] = token
        boards = {
            name: spread([each[2 + offset] for each in shown], torch.zeros_like(self.grid, dtype=torch.float32))
            for offset, name in enumerate(["confidence", *line["names"]])
        }
        eligible = observed & masked & (ahead >= 0) & (ahead < opened)
        return Signals(
            observed, eligible, first, spread([each[1] for each in shown], torch.full_like(self.grid, -1)),
            boards["confidence"],
            torch.tensor([taken]), torch.tensor([self.start["blocks"][line["block"]][2]]),
            MappingProxyType({name: board for name, board in boards.items() if name in MEASURED}), masked=masked,
            written=written, grid=self.grid, current=torch.tensor([line["block"]]),
            active=None if self.needs.scope == "block" else eligible & (ahead == 0), opened=torch.tensor([opened]),
            length=torch.tensor([self.start["gen_length"]]),
        )  # fmt: skip

    def write(self, line: Line, reasons: list[int]) -> list[list[int | str]]:
        """Write the policy's commits, and elsewhere the recording's; returns new commits in the trace's format."""
        proposed = {place: token for place, token, *_ in line["proposals"]}
        recorded = {place: (token, reason) for place, token, reason in line["committed"]}
        found: list[list[int | str]] = []
        for place in sorted(proposed.keys() | recorded.keys()):
            why = Reason(reasons[place])
            if why not in (Reason.NONE, Reason.FALLBACK):
                token, told, mine = proposed[place], why.name.lower(), True
            elif place in recorded and place not in self.own:
                token, told = recorded[place]
                told, mine = told if told == "remask" else "recorded", False
            else:
                continue
            if told == "remask":
                token, mine = self.mask, False
                self.written.pop(place, None)
            else:
                self.written[place] = token
            (self.own.add if mine else self.own.discard)(place)
            found.append([place, token, told])
        if not self.needs.committed:  # a position that is masked again starts a new trajectory
            self.seen -= self.written.keys()
        return found
