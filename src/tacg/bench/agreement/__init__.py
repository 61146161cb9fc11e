"""Do we decode as the authors' code does? Both loops on one model, canvas by canvas.

Their code is not part of this package: point `--sources` at a directory of checkouts, each under its repository's name.

Every pair is run twice. With pocket as it is, many proposals are so confident that float32 cannot tell them apart, and
loops that sort in float64 commit them in a different order than most of ours. With its logits halved, no proposal is
that confident, so two loops that follow the same rule must agree.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tacg.bench.agreement.authors import NOT_COMPARED, PAIRS, Difference, Pair
from tacg.bench.agreement.model import SeenModel
from tacg.bench.agreement.sources import commit_of, load_module
from tacg.engine.request import Decode
from tacg.errors import TacgError, unknown
from tacg.llm import LLM
from tacg.policies import policy_names
from tacg.records.surroundings import surroundings
from tacg.records.tables import Table
from tacg.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

    from torch import Tensor

    from tacg.records.rows import ResultRow
    from tacg.types import Output

TASKS = ("pocket-math", "pocket-code", "pocket-sudoku")
LENGTHS = {"gen_length": 32, "block_length": 16}  # two blocks are enough to show what a rule does
SURE = 1e-5  # closer to 1 than this, float32 can hardly distinguish probabilities
AGREES = ("same_tokens", "same_steps", "rounding", "known")
COLUMNS = (
    "decoder", "policy", "code", "n", "same tokens", "same steps", "differ by rounding", "by a known cause",
    "forwards, ours / theirs", "remark",
)  # fmt: skip
REPORT = f"""# Agreement with the authors' code

Our policies compared with the loops that their authors published, on one model and the same prompts. Both see the same
logits. Every canvas that the model is shown is compared. Prompts are test problems of {", ".join(TASKS)}, in equal
numbers. Answers have {LENGTHS["gen_length"]} positions in blocks of {LENGTHS["block_length"]}.
Drawn from [rows](rows.jsonl).

- **same tokens**: the finished answers are equal. **same steps**: so is every canvas on the way.
- **differ by rounding**: the first difference is among proposals whose probability is within {SURE:g} of 1. Most loops
  sort these in float64. Our confidences are float32, in which many of them are equal; ties go to the lowest position.
  `klass` and `tacg-released` rank by the probability of all other tokens, and do not differ.
- **by a known cause**: the first difference has the cause that the remark gives; a program checks this.
- Forwards that change nothing are counted as forwards, but not as steps.

With halved logits, no proposal is that confident, so rounding plays no role. To run it, check out the repositories,
each under its own name: `tacg bench agreement --sources DIR --out docs/bench/agreement`, and `--only WINO` for one.
"""
Canvases = list[tuple[int, ...]]  # the answer before each step, and at the end


@dataclass(frozen=True)
class Series:
    """One way to run all pairs: what the logits are multiplied by."""

    name: str
    factor: float


SERIES = (Series("pocket", 1.0), Series("pocket, logits halved", 0.5))


def measure(
    llm: LLM, sources: Path, n: int = 7, pairs: Sequence[Pair] = PAIRS, series: Sequence[Series] = SERIES
) -> Iterator[ResultRow]:
    """One row per series and pair: over `n` prompts of each task, how often tokens and steps are the same."""
    absent = NOT_COMPARED if pairs is PAIRS else ()
    for each in series:
        model = _scaled(llm, each.factor)
        yield from ({**row, "bench": "agreement", "series": each.name, "n": 0, **surroundings()} for row in absent)
        for pair in pairs:
            checkout = sources / pair.source.name
            row = {
                "bench": "agreement", "series": each.name, "decoder": pair.label, "policy": pair.policy,
                "source": pair.source.repo,
            }  # fmt: skip
            if skipped := _missing(pair, checkout):
                yield {**row, "n": 0, "skipped": skipped, **surroundings()}
            else:
                figures = _compare(model, pair, checkout, n)
                yield {**row, "commit": commit_of(checkout), **figures, "why": pair.why, **surroundings()}


def chosen_pairs(word: str) -> tuple[Pair, ...]:
    """The pairs with this word in their label; without a word, all of them."""
    found = tuple(pair for pair in PAIRS if word.lower() in pair.label.lower())
    if not found:
        raise unknown("decoder", word, [pair.label for pair in PAIRS])
    return PAIRS if len(found) == len(PAIRS) else found


def _scaled(llm: LLM, factor: float) -> LLM:
    """The same model with its logits multiplied."""
    model = copy.deepcopy(llm.model)
    with torch.no_grad():
        model.table.mul_(factor)  # type: ignore[attr-defined]
    return LLM(model, llm.tokenizer)


def _missing(pair: Pair, checkout: Path) -> str:
    """Why this pair cannot be compared; empty if it can."""
    if not checkout.is_dir():
        return f"no checkout: git clone https://github.com/{pair.source.repo} {checkout}"
    spelled = pair.policy.partition(":")[0].split("+")
    absent = [name for name in spelled if name not in policy_names()]
    return f"no policy named {absent[0]!r} yet" if absent else ""


def _compare(llm: LLM, pair: Pair, checkout: Path, n: int) -> dict[str, Any]:
    began = time.perf_counter()
    theirs = load_module(checkout / pair.source.folder, pair.source.module, pair.source.without)
    total = dict.fromkeys(("n", *AGREES, "forwards", "their_forwards"), 0)
    decode = _decode(pair)
    for name in TASKS:
        prompts = [llm.encode(problem.prompt) for problem in get_task(name).problems("test", n)]
        settings = {key: value for key, value in decode.values().items() if key != "seed"}
        outputs = llm.generate(prompts, pair.policy, **settings, **pair.knobs)
        for prompt, output in zip(prompts, outputs, strict=True):
            for key, value in _judge(llm, pair, theirs, prompt, decode, output).items():
                total[key] += value
    return {**total, "seconds": time.perf_counter() - began}


def _judge(
    llm: LLM, pair: Pair, theirs: ModuleType, prompt: list[int], decode: Decode, output: Output
) -> dict[str, int]:  # fmt: skip
    """The counts for one prompt, which the row sums."""
    model = SeenModel(llm, shift=pair.shift)
    quiet = contextlib.redirect_stdout(io.StringIO())
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), quiet:
        final = pair.call(theirs, model, torch.tensor([prompt]), decode)
    mask = model.spec.mask_id
    mine, other = ours(output, decode, mask), seen([*model.canvases, final[0]], len(prompt), decode, mask)
    difference = first_difference(mine, other, decode, mask)
    rounding = difference is not None and _among_the_sure(llm, prompt, difference)
    return {
        "n": 1, "same_tokens": mine[-1] == other[-1], "same_steps": difference is None, "rounding": rounding,
        "known": difference is not None and not rounding and pair.known is not None and pair.known(difference),
        "forwards": output.forwards, "their_forwards": model.forwards,
    }  # fmt: skip


def _decode(pair: Pair) -> Decode:
    """The settings as the pair wants them."""
    changes, lengths = dict(pair.decode), dict(LENGTHS)
    if changes.pop("whole", False):
        lengths["block_length"] = lengths["gen_length"]
    if changes.get("steps") == "half":
        changes["steps"] = lengths["gen_length"] // lengths["block_length"] * (lengths["block_length"] // 2)
    return Decode(early_stop=False).replace(**lengths, **changes)


def ours(output: Output, decode: Decode, mask_id: int) -> Canvases:
    """The canvases of a decode of ours, from its commits."""
    canvas, canvases, step = [mask_id] * decode.gen_length, list[tuple[int, ...]](), 0
    for commit in output.commits:
        if commit.step != step:
            canvases.append(tuple(canvas))
            step = commit.step
        canvas[commit.position] = commit.token
    return _moves([*canvases, tuple(canvas)])


def seen(shown: Sequence[Tensor], prompt: int, decode: Decode, mask_id: int) -> Canvases:
    """The canvases that a loop of theirs went through, from what the model was shown."""
    answers = [canvas[prompt : prompt + decode.gen_length].tolist() for canvas in shown]
    return _moves([tuple(answer + [mask_id] * (decode.gen_length - len(answer))) for answer in answers])


def _moves(canvases: Canvases) -> Canvases:
    """Without forwards that changed nothing."""
    return [canvas for place, canvas in enumerate(canvases) if place == 0 or canvas != canvases[place - 1]]


def first_difference(mine: Canvases, other: Canvases, decode: Decode, mask_id: int) -> Difference | None:
    """The first step in which the two write different tokens; None if there is none."""
    for place, (here, there) in enumerate(itertools.zip_longest(mine, other)):
        if here != there:  # a decode that has ended keeps its last canvas
            before = mine[max(place - 1, 0)]
            return Difference(
                before, here or mine[-1], there or other[-1], decode.block_length or decode.gen_length, mask_id
            )
    return None


def _among_the_sure(llm: LLM, prompt: list[int], difference: Difference) -> bool:
    """Whether the two differ only in proposals whose probability is nearly 1."""
    logits = llm.logits(torch.tensor([[*prompt, *difference.before]]))[0, len(prompt) :].double()
    logits[:, list(llm.model.spec.unwritable)] = -torch.inf
    confidence = logits.softmax(dim=-1).amax(dim=-1)
    return bool((confidence[list(difference.positions)] > 1 - SURE).all())


def tables(rows: Sequence[ResultRow]) -> list[Table]:
    """One table for each series, one line for each decoder: its newest row."""
    newest = {(row["series"], row["decoder"]): row for row in rows}
    return [
        Table(series, COLUMNS, tuple(_line(row) for (name, _), row in newest.items() if name == series))
        for series in dict.fromkeys(name for name, _ in newest)
    ]


def _line(row: ResultRow) -> tuple[str, ...]:
    code = f"{row['source']} {row.get('commit', '')}".strip()
    if "skipped" in row:
        return row["decoder"], f"`{row['policy']}`", code, *[""] * 6, row["skipped"]
    figures = [str(row[name]) for name in ("n", *AGREES)]
    return (
        row["decoder"],
        f"`{row['policy']}`",
        code,
        *figures,
        f"{row['forwards']} / {row['their_forwards']}",
        row["why"],
    )


def report(rows: Sequence[ResultRow]) -> str:
    """The whole report in Markdown."""
    return REPORT + "\n" + "\n".join(table.markdown() for table in tables(rows))


def refuse_nothing(rows: Sequence[ResultRow], sources: Path) -> None:
    """Raise if there was nothing to compare with."""
    if not any(row["n"] for row in rows):
        wanted = " ".join(dict.fromkeys(f"https://github.com/{row['source']}" for row in rows))
        raise TacgError(f"No checkout was found in {sources}; `git clone` any of these into it: {wanted}")
