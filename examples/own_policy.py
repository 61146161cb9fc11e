"""A policy of your own: one small class, then it works everywhere, also under the gate as `tacg+bold`."""

from __future__ import annotations

from dataclasses import dataclass

import tacg


@tacg.register("bold")
@dataclass(frozen=True)
class Bold(tacg.Policy):
    """Commit whatever is clearly ahead of the second most probable token."""

    lead: float = tacg.knob(0.5, "margin to commit", low=0, high=1)

    @property
    def needs(self) -> tacg.Needs:
        """The scan measures only what is named here."""
        return tacg.Needs("margin")

    def decide(self, signals: tacg.Signals, state: tacg.State) -> tuple[tacg.Decision, tacg.State]:
        """What is ready now, and in which order the rest would follow."""
        return tacg.Decision(signals.eligible & (signals.margin >= self.lead), rank=signals.margin), state


if __name__ == "__main__":
    llm = tacg.load("pocket")
    story = (
        "Ivy has 52 pencils. On Monday she sells 9. On Tuesday she gets 4 from Zoe. "
        "On Wednesday she leaves 9 at school. On Thursday she finds 6 more. How many pencils does Ivy have now?"
    )
    for policy in ("bold", "tacg+bold"):
        out = llm.generate(story, policy=policy, lead=0.7, gen_length=64)
        print(f"{out.policy:32} {out.steps:3} steps, {out.tpf:.2f} tokens per forward")
