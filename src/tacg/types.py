"""What is handed from room to room: `Needs`, `Signals`, `Decision`, `Commit`, `Output`. All frozen.

Shapes: R rows of a batch, L positions of an answer (or of whatever a caller decodes), K alternatives.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONTRASTED = ("reference", "readout")
BY_ENGINE = ("noise", "recheck")  # what only an engine can tell, which knows seeds and lays out forwards
LOOKING_BACK = ("reverse_kl", "drift")
MEASURED = ("margin", "gap", "entropy", "kl", "others", "sharp", *LOOKING_BACK, *CONTRASTED, *BY_ENGINE)
SCOPES = ("block", "open", "answer")


@dataclass(frozen=True, slots=True)
class EmaContrast:
    """A V-sized history that the scan keeps: an EMA of past logits with decay `beta`, held against the present ones.

    `w` is the weight of that contrast in the readout z + w (z - reference). With `fine` reference and readout are made
    of what all other tokens have, in float64, so that they have an order where float32 calls them 1.
    """

    w: float
    beta: float
    fine: bool = False


@dataclass(frozen=True, slots=True)
class Credit:
    """A V-sized history that the scan keeps: credit that a token earns by being the top one (CreditDecoding).

    Each step C <- decay C, then C[top] += p(top)^power; the logits become z + weight log(1 + C) *before* they are read,
    so this one changes which token is proposed.
    """

    weight: float
    decay: float
    power: float


@dataclass(frozen=True, slots=True)
class Mix:
    """How logits are mixed with those of the engine's verifier: weight z + (1 - weight) z_verifier (APD)."""

    weight: float


@dataclass(frozen=True, slots=True)
class Past:
    """A V-sized history that the scan keeps: the posteriors of the last `steps` steps, held against the present one.

    Their divergences are averaged with weights that fall by exp(-decay) from step to step (AHD).
    """

    steps: int
    decay: float


@dataclass(frozen=True, slots=True, init=False)
class Needs:
    """What a policy reads beyond token and confidence. A policy that reads nothing else needs nothing.

    names      signals out of `MEASURED`
    contrast   the EMA of logits behind reference and readout
    credit     credit that is added to the logits before they are read
    past       the posteriors of the last steps behind drift
    scope      positions in view: the active block, all open blocks, or every mask of the answer
    committed  committed positions in view are scanned as well, so that they can be re-masked or edited; "recheck" asks
               for that, too
    suffix     of the masks behind the open blocks only so many are computed, and the last position; None: all of them
    samples    how many tokens to sample from the posterior of each position, beside the proposal
    branches   how many alternative canvases the policy may propose for the next step (`Decision.branches`)
    attention  share of the model's layers, the last ones, whose attention is averaged (0: nobody looks)
    verifier   the draft is scored by the engine's verifier, mixed in like this
    """

    names: frozenset[str]
    contrast: EmaContrast | None
    credit: Credit | None
    past: Past | None
    scope: str
    committed: bool
    samples: int
    branches: int
    suffix: int | None
    attention: float
    verifier: Mix | None

    def __init__(
        self, *names: str, contrast: EmaContrast | None = None, credit: Credit | None = None, past: Past | None = None,
        scope: str = "block", committed: bool = False, samples: int = 0, branches: int = 0, suffix: int | None = None,
        attention: float = 0.0, verifier: Mix | None = None,
    ) -> None:  # fmt: skip
        for name in names:
            if name not in MEASURED:
                raise TacgError(f"`needs` must name signals out of {', '.join(MEASURED)}; got {name!r}.")
        if scope not in SCOPES:
            raise TacgError(f"`scope` must be one of {', '.join(SCOPES)}; got {scope!r}.")
        if contrast is None and set(CONTRASTED) & set(names):
            raise TacgError("`needs` of reference or readout must come with contrast=EmaContrast(w, beta).")
        if contrast is not None and contrast.fine:
            names = (*names, "others")
        if past is None and "drift" in names:
            raise TacgError("`needs` of drift must come with past=Past(steps, decay).")
        if branches and scope == "block":
            raise TacgError('`scope` must be "open" or "answer" for a policy that proposes branches; got "block".')
        if branches and (attention or verifier):
            raise TacgError("A policy that proposes branches can neither look at attention nor be verified.")
        for name, value in (
            ("names", frozenset(names)), ("contrast", contrast), ("credit", credit), ("past", past), ("scope", scope),
            ("committed", committed or "recheck" in names), ("samples", samples), ("branches", branches),
            ("suffix", suffix), ("attention", attention), ("verifier", verifier),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def __or__(self, other: Needs) -> Needs:
        for kind in ("contrast", "credit", "past", "attention", "verifier"):
            mine, theirs = getattr(self, kind), getattr(other, kind)
            if mine and theirs and mine != theirs:
                raise TacgError(f"Two kinds of {kind} in one policy: {mine} and {theirs}; keep one of them.")
        suffixes = [each for each in (self.suffix, other.suffix) if each is not None]
        return Needs(
            *(self.names | other.names), contrast=self.contrast or other.contrast, credit=self.credit or other.credit,
            past=self.past or other.past, scope=max(self.scope, other.scope, key=SCOPES.index),
            committed=self.committed or other.committed,
            samples=max(self.samples, other.samples), branches=max(self.branches, other.branches),
            suffix=max(suffixes) if suffixes else None, attention=self.attention or other.attention,
            verifier=self.verifier or other.verifier,
        )  # fmt: skip

    def __contains__(self, name: str) -> bool:
        return name in self.names


@dataclass(frozen=True, slots=True)
class Signals:
    """All that a policy knows about a step. Values are meaningful where `observed`, elsewhere neutral.

    observed    bool  [R, L]  positions that were scanned: masks in view, and committed ones if a policy asks for them
    eligible    bool  [R, L]  those that may be committed now: masks of the open blocks
    first       bool  [R, L]  observed for the first time: no trajectory yet
    token       int64 [R, L]  the proposal: argmax of the base posterior, or a sample (-1 where not observed)
    confidence  float [R, L]  its probability under the base posterior
    step        int64 [R]     steps already taken in this block
    steps       int64 [R]     steps that this block may take
    measured    the signals that were asked for, by name, float [R, L] each:
        margin     probability of the top token minus that of the second
        gap        logit of the top token minus that of the second
        entropy    of the posterior, in nats
        kl         divergence of the posterior from that of the previous step, KL(p_t || p_{t-1})
        others     probability of all other tokens together: 1 - confidence, with digits where that is all but 1
        sharp      probability of the top token at temperature 0.2
        reverse_kl the other way round, KL(p_{t-1} || p_t); a first observation comes after the uniform distribution
        drift      divergence of the posterior from those of the last steps, on average (`Past`); steps in which a
                   position was not observed count as in `kl`: as a posterior of nothing at all
        reference  probability of the proposal under the EMA reference, p_ref(x̂)
        readout    probability of the proposal under the contrast readout, q(x̂)
        noise      uniform in [0, 1), a function of the row's seed, step and position
        recheck    probability of the written token where a mask stands in its place: a shadow (see `Span`); 1 at masks.
                   All else that is told of committed positions is the shadow's, too
    samples     int64 [R, L, K]  sampled tokens, with `draws` float [R, L, K], uniform numbers that belong to them
    measure     measures reference and readout where somebody asks: see `with_contrast`
    attention   float [R, L, L]  how much each position (query) attends to each (key), averaged over heads and layers;
                between positions of the open blocks, 0 elsewhere
    verified    int64 [R, L]  what the mixture with the verifier would write here if everything before it were written
                as proposed (-1 where nothing is eligible)

    Beyond the active block, for policies that ask:
    masked      bool  [R, L]  not committed yet
    written     int64 [R, L]  what the canvas holds; the mask id where `masked`
    grid        int64 [R, L]  the number of the block in which a position lies; `current` int64 [R]: the active one
    active      bool  [R, L]  masks of the active block, where more than that is eligible (None: all that is eligible)
    opened      int64 [R]     how many blocks are open, counted from the active one
    length      int64 [R]     positions of the answer
    due         int64 [R]     what `quota` says, if the engine knows it already
    """

    observed: Tensor
    eligible: Tensor
    first: Tensor
    token: Tensor
    confidence: Tensor
    step: Tensor
    steps: Tensor
    measured: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))
    measure: Callable[[Tensor, str], Tensor] | None = None
    samples: Tensor | None = None
    draws: Tensor | None = None
    attention: Tensor | None = None
    verified: Tensor | None = None
    masked: Tensor | None = None
    written: Tensor | None = None
    grid: Tensor | None = None
    current: Tensor | None = None
    active: Tensor | None = None
    opened: Tensor | None = None
    length: Tensor | None = None
    due: Tensor | None = None

    def __getattr__(self, name: str) -> Tensor:
        if name not in MEASURED:
            raise AttributeError(name)
        if name in self.measured:
            return self.measured[name]
        if name in CONTRASTED and self.measure is not None:
            return self.measure(self.observed, name)
        if name == "others":
            return 1.0 - self.confidence
        raise TacgError(f"The signal `{name}` was not measured: name it in the policy's `needs`.")

    def with_contrast(self, where: Tensor, *names: str) -> Signals:
        """These signals with reference and readout, or those named, measured where `where`, bool [R, L]; 0 elsewhere.

        They cost far more than the others, and few positions need them. Signals that have them everywhere stay so.
        """
        if self.measure is None:
            return self
        return replace(self, measured={**self.measured, **{n: self.measure(where, n) for n in names or CONTRASTED}})

    @property
    def block(self) -> Tensor:
        """int64 [R, L]: blocks from the active one (0) to that of each position; those behind it are negative."""
        assert self.grid is not None
        assert self.current is not None
        return self.grid - self.current[:, None]

    @property
    def left(self) -> Tensor:
        """int64 [R]: masks left in the whole answer."""
        return (self.eligible if self.masked is None else self.masked).sum(dim=1)

    def quota(self) -> Tensor:
        """int64 [R]: how many positions to commit now so that the block ends within its steps without a rush.

        The even share of what is left, larger shares first: n0 masks over S steps give n0 // S per step and one more
        in the first n0 mod S steps, which is LLaDA's schedule. With as many steps as positions it is at most 1, and
        in the last step it is everything.
        """
        if self.due is not None:
            return self.due
        remaining = (self.steps - self.step).clamp(min=1)
        return -(-(self.eligible if self.active is None else self.active).sum(dim=1) // remaining)


class Reason(enum.IntEnum):
    """Why a position was written."""

    NONE = 0
    BASE = 1
    EXTRA = 2
    FALLBACK = 3
    FINISH = 4
    BRANCH = 5
    EDIT = 6
    REMASK = 7
    FORCED = 8


REASONS = tuple(reason.name.lower() for reason in Reason)


@dataclass(frozen=True, slots=True)
class Branches:
    """Alternative next canvases of each row: K of them are forwarded, one goes on (`Policy.choose`).

    commit  bool  [R, K, L]  what each branch writes beyond what this step commits
    tokens  int64 [R, K, L]  with which tokens
    count   int64 [R]        how many of the K are forwarded: 0 for a row without branches in this step
    """

    commit: Tensor
    tokens: Tensor
    count: Tensor


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants: its accepted set, the promotions beyond it, and its order for everything else.

    base      bool  [R, L]  accepted by the policy's own rule
    rank      float [R, L]  larger is readier; used when a row must commit more than the policy accepted
    extra     bool  [R, L]  promoted beyond the base set (None: nothing)
    quota     int64 [R]     commits that this step should reach, if need be by rank (None: `Signals.quota`)
    notes     float [R, L] values worth showing in a trace, by name: streak, support, …

    Policies that do more than fill masks of one block:
    remask    bool  [R, L]  committed positions of open blocks that become masks again; fewer than are committed
    edit      bool  [R, L]  committed positions of open blocks that get `signals.token` instead
    open      int64 [R]     how many blocks are open in the next step, counted from the one that is active now (None: 1)
    stay      bool  [R]     if the active block is full it is not done yet; heeded in steps that write something
    finish    bool  [R]     write every remaining mask with its proposal, and end
    branches  alternatives for the next step
    reach     int64 [R]     the next forward computes, and shows, positions of the answer below this only; heeded within
                            the active block, as long as there are masks before it and further steps behind it
    """

    base: Tensor
    rank: Tensor
    extra: Tensor | None = None
    quota: Tensor | None = None
    notes: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))
    remask: Tensor | None = None
    edit: Tensor | None = None
    open: Tensor | None = None
    stay: Tensor | None = None
    finish: Tensor | None = None
    branches: Branches | None = None
    reach: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """One position being written. `position` counts from the first generated position, `step` from 1.

    A re-masked position is told as a commit of the mask's id with the reason "remask".
    """

    position: int
    token: int
    step: int
    reason: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Output:
    """A decoded answer.

    tokens     the generated ids: all `gen_length` of them, or up to and with the first EOS under early stopping
    forwards   how often the model was called for this row; each branch of a step counts
    positions  how many positions these forwards computed
    auxiliary  how often another model (the verifier) was called, and `auxiliary_positions` what that computed
    commits    every commit in the order it happened
    error      why it ended early, with finish_reason "error"; else empty
    holes      of a canvas: the texts that its holes were filled with
    given      how many of the tokens a canvas gave; the others were generated
    forced     how many of the tokens a constraint left no choice about; they were written without being asked for
    cut        of a constrained answer: the probability that its constraint took away, on average over the tokens that
               the model chose
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    steps: int
    forwards: int
    finish_reason: str
    policy: str
    commits: tuple[Commit, ...]
    error: str = ""
    positions: int = 0
    auxiliary: int = 0
    auxiliary_positions: int = 0
    holes: tuple[str, ...] = ()
    given: int = 0
    forced: int = 0
    cut: float = 0.0

    @property
    def tpf(self) -> float:
        """Generated tokens per forward."""
        return (len(self.tokens) - self.given) / self.forwards if self.forwards else 0.0


def top(score: Tensor, among: Tensor, k: Tensor | int) -> Tensor:
    """The `k` best of each row: bool [R, L], a subset of `among`. Ties go to the lowest position.

    score float [R, L], among bool [R, L], k an int or int64 [R].
    """
    score = torch.where(among, score.clamp(min=torch.finfo(score.dtype).min), -torch.inf)
    order = score.sort(dim=1, descending=True, stable=True).indices
    rank = order.argsort(dim=1)
    return among & (rank < (k[:, None] if isinstance(k, Tensor) else k))
