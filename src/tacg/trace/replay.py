"""Another policy on recorded signals: when would it have committed what it was shown?

This is open-loop. The recorded decode wrote its own tokens, and every later signal follows from them, so the answer is
exact only up to the first step in which the two policies differ. It shows how a gate would have judged the same
evidence; to know what it would have written, decode with it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from tacg.errors import TacgError
from tacg.policies import get_policy
from tacg.trace.record import Line, Trace
from tacg.types import MEASURED, EmaContrast, Signals

if TYPE_CHECKING:
    from tacg.policies import Policy


def replay(trace: Trace, policy: str | Policy) -> Trace:
    """The trace as the policy would have it.

    A position is committed in the step in which the policy accepts its proposal (reason base or extra), or with the
    reason "recorded" when the recording writes it before that. Fallbacks are the engine's, not the policy's.
    """
    made = get_policy(policy)
    _check(trace, made)
    length = trace.start["gen_length"]
    state = made.start(1, length, torch.device("cpu"))
    done: set[int] = set()
    seen: set[int] = set()
    blocks = trace.start["blocks"]
    steps: list[Line] = []
    for line in trace.steps:
        taken = sum(each["block"] == line["block"] for each in steps)
        signals = _signals(line, length, seen, taken, blocks[line["block"]])
        signals.eligible[0, list(done)] = False  # what it has committed already takes no part any more
        seen |= {each[0] for each in line["proposals"]}
        decision, state = made.decide(signals, state)
        extra = decision.extra if decision.extra is not None else torch.zeros_like(decision.base)
        committed = []
        written = {position for position, _, _ in line["committed"]}
        allowed = signals.eligible[0].tolist()
        for position, token, *_ in line["proposals"]:
            if not allowed[position]:
                continue
            reason = "base" if decision.base[0, position] else "extra" if extra[0, position] else ""
            if position not in done and (reason or position in written):
                committed.append([position, token, reason or "recorded"])
                done.add(position)
        steps.append({**line, "committed": committed})
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
    if missing := sorted(needs.names - known):
        raise TacgError(f"`{policy.label}` reads `{missing[0]}`, which the trace does not hold.")


def _signals(line: Line, length: int, seen: set[int], taken: int, block: tuple[int, int, int]) -> Signals:
    """One recorded step as signals [1, length]; `block` is (start, stop, steps), `taken` steps of it are over."""
    places = torch.tensor([each[0] for each in line["proposals"]], dtype=torch.int64)
    observed = torch.zeros(1, length, dtype=torch.bool)
    observed[0, places] = True
    first = torch.zeros_like(observed)
    first[0, [each[0] for each in line["proposals"] if each[0] not in seen]] = True
    token = torch.full((1, length), -1, dtype=torch.int64)
    token[0, places] = torch.tensor([each[1] for each in line["proposals"]], dtype=torch.int64)
    columns = dict.fromkeys(["confidence", *line["names"]])
    boards = {}
    for offset, name in enumerate(columns):
        boards[name] = torch.zeros(1, length)
        boards[name][0, places] = torch.tensor([each[2 + offset] for each in line["proposals"]], dtype=torch.float32)
    place = torch.arange(length)
    eligible = observed & (place >= block[0]) & (place < block[1])
    step, steps = torch.tensor([taken]), torch.tensor([block[2]])
    measured = {name: board for name, board in boards.items() if name in MEASURED}
    return Signals(observed, eligible, first, token, boards["confidence"], step, steps, MappingProxyType(measured))
