"""The types that the modules pass to each other: `Needs`, `Signals`, `Decision`, `Commit`, `Output`. All are frozen.

Shapes: R rows of a batch, L positions of an answer (or of whatever a caller decodes), K alternatives.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacg import notebook
from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CONTRASTED = ("reference", "readout")
BY_ENGINE = ("noise", "recheck")  # only an engine can measure these: it knows the seeds and lays out the forwards
LOOKING_BACK = ("reverse_kl", "drift")
MEASURED = ("margin", "gap", "entropy", "kl", "others", "sharp", *LOOKING_BACK, *CONTRASTED, *BY_ENGINE)
SCOPES = ("block", "open", "answer")


@dataclass(frozen=True, slots=True)
class EmaContrast:
    """A V-sized history kept by the scan: an EMA of past logits with decay `beta`, compared with the current logits.

    `w` is the weight of the contrast in the readout z + w (z - reference). With `fine`, reference and readout are
    computed from the probability of all other tokens, in float64, so that values that float32 rounds to 1 still differ.
    """

    w: float
    beta: float
    fine: bool = False


@dataclass(frozen=True, slots=True)
class Credit:
    """A V-sized history kept by the scan: credit that a token earns by being the most probable one (CreditDecoding).

    Each step C <- decay C, then C[top] += p(top)^power. The logits become z + weight log(1 + C) *before* they are read,
    so credit changes which token is proposed.
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
    """A V-sized history kept by the scan: the posteriors of the last `steps` steps, compared with the current one.

    The divergences are averaged with weights that fall by exp(-decay) per step (AHD).
    """

    steps: int
    decay: float


@dataclass(frozen=True, slots=True, init=False)
class Needs:
    """What a policy reads beyond token and confidence. The default is nothing.

    names      signals, chosen from `MEASURED`
    contrast   the EMA of logits from which reference and readout are computed
    credit     credit that is added to the logits before they are read
    past       the posteriors of the last steps, from which drift is computed
    scope      positions in view: the active block, all open blocks, or every mask of the answer
    committed  also scan committed positions in view, so that they can be re-masked or edited; "recheck" implies this
    suffix     compute only this many masks after the open blocks, plus the last position; None: all of them
    samples    how many tokens to sample from the posterior of each position, in addition to the proposal
    branches   how many alternative canvases the policy may propose for the next step (`Decision.branches`)
    attention  share of the model's layers, counted from the last, whose attention is averaged (0: not computed)
    verifier   the engine's verifier scores the draft, and its logits are mixed in with this weight
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
            raise TacgError("A policy that proposes branches can neither read attention nor use a verifier.")
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
    """Everything a policy knows about a step. Values are meaningful where `observed` and neutral elsewhere.

    observed    bool  [R, L]  positions that were scanned: masks in view, and committed ones if the policy needs them
    eligible    bool  [R, L]  positions that may be committed now: masks of the open blocks
    first       bool  [R, L]  observed for the first time, so there is no trajectory yet
    token       int64 [R, L]  the proposal: argmax of the base posterior, or a sample (-1 where not observed)
    confidence  float [R, L]  its probability under the base posterior
    step        int64 [R]     steps already taken in this block
    steps       int64 [R]     steps that this block may take
    measured    the requested signals by name, each float [R, L]:
        margin     probability of the top token minus that of the second
        gap        logit of the top token minus that of the second
        entropy    of the posterior, in nats
        kl         divergence of the posterior from that of the previous step, KL(p_t || p_{t-1})
        others     probability of all other tokens: 1 - confidence, but precise where confidence is almost 1
        sharp      probability of the top token at temperature 0.2
        reverse_kl the reverse, KL(p_{t-1} || p_t); at a first observation p_{t-1} is the uniform distribution
        drift      mean divergence of the posterior from those of the last steps (`Past`); for steps in which a
                   position was not observed, every probability counts as almost 0, as in `kl`
        reference  probability of the proposal under the EMA reference, p_ref(x̂)
        readout    probability of the proposal under the contrast readout, q(x̂)
        noise      uniform in [0, 1), a function of the row's seed, step and position
        recheck    probability of the written token when its position is masked, read from a shadow (see `Span`); 1 at
                   masks. All other signals of committed positions then come from the shadow as well
    samples     int64 [R, L, K]  sampled tokens; `draws` float [R, L, K] are uniform random numbers, one per sample
    measure     measures reference and readout on demand: see `with_contrast`
    attention   float [R, L, L]  how much each position (query) attends to each (key), averaged over heads and layers;
                between positions of the open blocks, 0 elsewhere
    verified    int64 [R, L]  the token that the mixture with the verifier would write here, given the proposals at all
                earlier positions (-1 where nothing is eligible)

    Beyond the active block, for policies that need it:
    masked      bool  [R, L]  not committed yet
    written     int64 [R, L]  the tokens on the canvas; the mask id where `masked`
    grid        int64 [R, L]  the block number of each position; `current` int64 [R]: the number of the active block
    active      bool  [R, L]  masks of the active block, if other blocks are eligible too (None: all eligible ones)
    opened      int64 [R]     how many blocks are open, counted from the active one
    length      int64 [R]     positions of the answer
    due         int64 [R]     the result of `quota`, if the engine has computed it already
    """

    observed: Tensor
    eligible: Tensor
    first: Tensor
    token: Tensor
    confidence: Tensor
    step: Tensor
    steps: Tensor
    measured: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))
    measure: Callable[[Tensor, Sequence[str]], Mapping[str, Tensor]] | None = None
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
            return self.measure(self.observed, (name,))[name]
        if name == "others":
            return 1.0 - self.confidence
        raise TacgError(f"The signal `{name}` was not measured: name it in the policy's `needs`.")

    def with_contrast(self, where: Tensor, *names: str) -> Signals:
        """These signals with reference and readout (or only `names`) measured at `where`, bool [R, L]; 0 elsewhere.

        They cost far more than other signals, and few positions need them. If already measured everywhere, no change.
        """
        if self.measure is None:
            return self
        return replace(self, measured={**self.measured, **self.measure(where, names or CONTRASTED)})

    @property
    def block(self) -> Tensor:
        """int64 [R, L]: each position's block number relative to the active block (0); earlier blocks are negative."""
        assert self.grid is not None
        assert self.current is not None
        return self.grid - self.current[:, None]

    @property
    def left(self) -> Tensor:
        """int64 [R]: masks left in the whole answer."""
        return (self.eligible if self.masked is None else self.masked).sum(dim=1)

    def quota(self) -> Tensor:
        """int64 [R]: how many positions to commit now so that the block ends within its steps.

        This is an even share of the remaining masks, with larger shares first: n0 masks over S steps give n0 // S per
        step and one more in the first n0 mod S steps, which is LLaDA's schedule. With as many steps as positions it is
        at most 1. In the last step it is everything.
        """
        if self.due is not None:
            return self.due
        return even_share(self.eligible if self.active is None else self.active, self.step, self.steps)


def even_share(masks: Tensor, step: Tensor, steps: Tensor) -> Tensor:
    """int64 [R]: the masks, bool [R, L], over the steps that are left, rounded up. See `Signals.quota`."""
    return -(masks.sum(dim=1) // (step - steps).clamp(max=-1))


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
    """Alternative next canvases of each row: K of them are forwarded, and one is kept (`Policy.choose`).

    commit  bool  [R, K, L]  positions that each branch writes in addition to this step's commits
    tokens  int64 [R, K, L]  the tokens it writes there
    count   int64 [R]        how many of the K are forwarded: 0 for a row without branches in this step
    """

    commit: Tensor
    tokens: Tensor
    count: Tensor


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy decides: the positions it accepts, promotions beyond these, and a ranking of the others.

    base      bool  [R, L]  accepted by the policy's own rule
    rank      float [R, L]  larger is readier; used when a row must commit more than the policy accepted
    extra     bool  [R, L]  promoted beyond the base set (None: nothing)
    quota     int64 [R]     commits that this step should reach, filled up by rank if necessary (None: `Signals.quota`)
    notes     float [R, L] values worth showing in a trace, by name: streak, support, …

    For policies that do more than fill the masks of one block:
    remask    bool  [R, L]  committed positions of open blocks that become masks again; fewer than are committed
    edit      bool  [R, L]  committed positions of open blocks that get `signals.token` instead
    open      int64 [R]     how many blocks are open in the next step, counted from the block active now (None: 1)
    stay      bool  [R]     keep the active block active even if it is full; ignored in steps that write nothing
    finish    bool  [R]     write every remaining mask with its proposal, and end
    branches  alternatives for the next step
    reach     int64 [R]     the next forward computes and shows only answer positions below this; applies within the
                            active block, while there are masks before `reach` and the next step is not its last
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

    Re-masking a position is reported as a commit of the mask id with the reason "remask".
    """

    position: int
    token: int
    step: int
    reason: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Output:
    """A decoded answer.

    tokens     the generated ids: all `gen_length` of them, or up to and including the first EOS under early stopping
    forwards   how often the model was called for this row; each branch of a step counts
    positions  how many positions these forwards computed
    auxiliary  how often another model (the verifier) was called; `auxiliary_positions`: the positions it computed
    commits    every commit, in order
    error      why decoding ended early, if finish_reason is "error"; otherwise empty
    holes      for a canvas: the texts that fill its holes
    given      how many of the tokens were given by a canvas; the others were generated
    forced     how many tokens were written without a model choice, because the constraint allowed only one
    cut        for a constrained answer: the probability that the constraint removed, averaged over the tokens that
               the model chose
    pieces     the text of every token that was written or given, by id

    In a notebook, an output shows itself as a small player of its decode.
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
    pieces: Mapping[int, str] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        return notebook.short(self)

    def _repr_html_(self) -> str:
        return notebook.player(self)

    @property
    def tpf(self) -> float:
        """Generated tokens per forward."""
        return (len(self.tokens) - self.given) / self.forwards if self.forwards else 0.0


def reads_are_free(tensor: Tensor) -> bool:
    """Whether a question about this tensor costs no synchronization: on a CPU, unless a graph is being traced."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def but_not(these: Tensor, others: Tensor) -> Tensor:
    """`these & ~others` of two masks, in one operation: true is greater than false."""
    return these > others


def top(score: Tensor, among: Tensor, k: Tensor | int) -> Tensor:
    """The `k` best of each row: bool [R, L], a subset of `among`. Ties go to the lowest position.

    score float [R, L], among bool [R, L], k an int or int64 [R].
    """
    if reads_are_free(among):  # most often nobody has to be turned away, or nobody is asked for
        if isinstance(k, Tensor):
            if max(k.tolist(), default=0) <= 0:
                return torch.zeros_like(among)
        elif max(among.sum(dim=1).tolist(), default=0) <= k:
            return among
    score = torch.where(among, score.clamp(min=torch.finfo(score.dtype).min), -torch.inf)
    order = score.sort(dim=1, descending=True, stable=True).indices
    rank = order.argsort(dim=1)
    return among & (rank < (k[:, None] if isinstance(k, Tensor) else k))
