"""A request to the engine: a prompt, a policy, and the length and blocks to decode."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from tacg.cache import MODES, resolve_mode
from tacg.engine.checks import check_branches, check_canvas, check_constraint, check_steps
from tacg.errors import TacgError, unknown
from tacg.knobs import Knobs, knob
from tacg.models.base import NO_MASK
from tacg.policies import Policy, find_preset, get_policy
from tacg.scan.memory import KINDS
from tacg.scan.step_scan import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from tacg.constraint import Automaton
    from tacg.models.base import ModelSpec


@dataclass(frozen=True)
class Decode(Knobs):
    """Settings of a decode that do not belong to the policy."""

    gen_length: int = knob(128, "positions to generate", low=1)
    block_length: int | None = knob(
        None, "positions of a block, from left to right (none: the model's own, or 32)", low=1
    )
    steps: int | None = knob(None, "denoising steps at most, over all blocks (none: one per position)", low=1)
    temperature: float = knob(0.0, "0: most probable token; above 0: random sampling", symbol="T", low=0)
    seed: int = knob(0, "random seed of this answer", low=0)
    early_stop: bool = knob(True, "end once everything up to the first EOS is committed (the paper: off)")
    observe: str = knob(
        "block",
        "where trajectories are tracked: in the active block, or at all masks",
        choices=("block", "sequence"),
    )
    cache: str = knob("auto", "which keys and values are kept; auto: the exact mode (block or none)", choices=MODES)
    memory: str = knob(
        "fp32", "what the reference is kept of: logits in fp32 or bf16, or hidden states", choices=tuple(KINDS)
    )
    scan: str = knob("auto", "implementation that reads the logits; auto: the fastest on this device", choices=BACKENDS)
    suppress: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        ids = self.suppress if isinstance(self.suppress, list | tuple) else [self.suppress]
        if not all(type(each) is int for each in ids):
            raise TacgError(f"`suppress` must be token ids, got {self.suppress!r}.")
        object.__setattr__(self, "suppress", tuple(ids))
        blocks = -(-self.gen_length // self.block_length) if self.block_length else 1
        if self.steps is not None and blocks > self.steps:
            raise TacgError(f"`steps` must be at least the number of blocks, {blocks}, got {self.steps}.")

    def blocks(self, edges: Sequence[int], holes: Sequence[bool]) -> tuple[tuple[int, int, int], ...]:
        """(start, stop, steps) of each block. Steps are divided in proportion to masks, rounded to whole numbers.

        holes  positions that are masks at the start; a block without masks takes no steps
        """
        masks = [0, *accumulate(holes)]
        total = masks[-1] if self.steps is None else self.steps
        spent = [total * masks[edge] // masks[-1] for edge in edges]
        steps = [after - before for before, after in pairwise(spent)]
        filled = [masks[stop] > masks[start] for start, stop in pairwise(edges)]
        while min(own for own, some in zip(steps, filled, strict=True) if some) < 1 < max(steps):
            steps[steps.index(max(steps))] -= 1  # a short block needs a step too
            steps[min((own, at) for at, (own, some) in enumerate(zip(steps, filled, strict=True)) if some)[1]] += 1
        return tuple((start, stop, each) for (start, stop), each in zip(pairwise(edges), steps, strict=True))

    def structure(self) -> Hashable:
        """What rows must share to be in one batch; lengths, steps, temperature and seed may differ."""
        return self.temperature > 0, self.early_stop, self.observe, self.cache, self.memory, self.scan, self.suppress


@dataclass(frozen=True, slots=True)
class Request:
    """One row to decode.

    canvas  what follows the prompt: ids, and the mask id at positions to fill. Empty: `gen_length` masks.
            Given ids are never overwritten
    constraint  what the answer must match (None: anything); `state`: the automaton's initial state, if it is not
                the default
    """

    prompt: tuple[int, ...]
    policy: Policy
    decode: Decode
    canvas: tuple[int, ...] = ()
    constraint: Automaton | None = None
    state: int | None = None

    @property
    def start(self) -> int:
        """The state of the constraint before the first position."""
        assert self.constraint is not None
        return self.constraint.start if self.state is None else self.state

    def holes(self, mask_id: int) -> list[bool]:
        """Which of the `gen_length` positions are to be filled."""
        return [token == mask_id for token in self.canvas] or [True] * self.decode.gen_length

    def blocks(self, spec: ModelSpec) -> tuple[tuple[int, int, int], ...]:
        """(start, stop, steps) of each block."""
        edges = spec.edges(len(self.prompt), self.decode.block_length, self.decode.gen_length)
        return self.decode.blocks(edges, self.holes(spec.mask_id))

    def check(self, spec: ModelSpec) -> None:
        """Raise if this model cannot serve the request."""
        if spec.mask_id == NO_MASK:
            raise TacgError(
                f"{spec.name!r} writes from left to right and has no mask to fill: use it as the `verifier` of a "
                "diffusion model."
            )
        length = len(self.prompt) + self.decode.gen_length
        resolve_mode(self.decode.cache, self.decode.observe, spec, self.policy.needs)
        if spec.causal_block is not None and spec.causal_block % spec.block_length(self.decode.block_length):
            raise TacgError(
                f"`block_length` must be {spec.causal_block} or a divisor, because {spec.name!r} has causal blocks of "
                f"that length; got {self.decode.block_length}. The default is {spec.block_length(None)}."
            )
        if self.policy.needs.branches:
            check_branches(self)
        if self.constraint is not None:
            check_constraint(self)
        if not self.prompt and not self.canvas:
            raise TacgError("The prompt is empty; give at least one token.")
        if length > spec.max_length:
            raise TacgError(
                f"Prompt and answer must fit {spec.max_length} positions of {spec.name!r}, got {len(self.prompt)} + "
                f"{self.decode.gen_length} = {length}; shorten the prompt or `gen_length`."
            )
        if self.canvas:
            check_canvas(self, spec)
        if self.decode.steps is not None:
            check_steps(self, spec, self.decode.steps)
        for what, ids in (("prompt", self.prompt), ("canvas", self.canvas), ("suppress", self.decode.suppress)):
            wrong = [each for each in ids if not 0 <= each < spec.vocab_size]
            if wrong:
                raise TacgError(f"`{what}` must hold ids in [0, {spec.vocab_size}), got {wrong[0]}.")


def resolve(policy: str | Policy, settings: dict[str, Any]) -> tuple[Policy, Decode]:
    """A policy and decode settings from a policy's name and keywords, which may belong to either.

    Keywords override the settings of a preset (`name:preset`), which override the defaults.
    """
    made, decode = get_policy(policy), Decode()
    if isinstance(policy, str) and ":" in policy:
        decode = decode.replace(**find_preset(*policy.split(":", 1))["decode"])
    ours, theirs = {f.name for f in fields(Decode)}, made.knobs().keys()
    if twice := ours & theirs:
        raise TacgError(f"`{made.name}` has a knob named `{min(twice)}`, as has the decode: rename the policy's.")
    for name in settings:
        if name not in ours | theirs:
            raise unknown("setting", name, ours | theirs)
    decode = replace(decode, **{name: value for name, value in settings.items() if name in ours})
    return made.replace(**{name: value for name, value in settings.items() if name in theirs}), decode
