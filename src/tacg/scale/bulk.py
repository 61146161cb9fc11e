"""Decode whole files of prompts on a Ray cluster, with Ray Data.

Ray Data reads the files, keeps the replicas busy and repeats the work of lost ones. The driver writes each answer once
into a journal. When started again, it continues with the prompts that have no answer.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from tacg.constraint.pattern import NAMES as CONSTRAINTS
from tacg.constraint.pattern import own_or, pattern_of
from tacg.constraint.regex import byte_automaton
from tacg.engine.request import resolve
from tacg.errors import LogitsError, TacgError
from tacg.files import parse_json, refuse_irregular
from tacg.records.journal import Journal, refuse_unwritable
from tacg.scale.fleet import Replica, machines, room, start, told_here
from tacg.shapes import COUNT, brief, misfit
from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

KINDS = (".jsonl", ".parquet")
LENGTH = "_length"
ANSWER = {"text": str, "tokens": COUNT, "steps": COUNT, "forwards": COUNT, "finish_reason": str, "model?": str}


def generate(
    source: Path, out: Path, *, model: str, policy: str = "tacg", key: str = "id", column: str = "prompt",
    address: str = "local", replicas: int | None = None, cores: int = 1, dtype: str = "float32",
    batch_size: int = 32, resume: bool = False, on_row: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> int:  # fmt: skip
    """Answer every prompt of a JSONL or Parquet file; returns the number of answers in `out` at the end.

    key, column  the columns with the rows' names, which must be unique, and the prompts; a row's columns `schema`,
                 `regex` or `choices` constrain its answer, and override settings of the same names
    out          JSONL: a header, then one row per prompt with text, tokens, steps, forwards and the identity of the
                 model that answered, in the order of the source; answers of two models are refused
    resume       continue `out`: only prompts without an answer are decoded
    """
    shared = pattern_of(settings)
    made, decode = resolve(policy, {name: value for name, value in settings.items() if name not in CONSTRAINTS})
    names, held = _asked(source, key, column)
    refuse_unwritable(out, resume=resume)
    ray = start(address)
    place, count = room(machines(ray), cores, replicas, reader=True)
    data = _read(source, key, column, type(names[0]))
    header = {
        "run": {
            "source": source.name, "rows": len(names), "key": key, "column": column,
            "data": hashlib.sha256(source.read_bytes()).hexdigest()[:16],
        },
        "model": {"model": model, "dtype": dtype},
        "policy": {"policy": made.label, **made.values()},
        "decode": {**decode.values(), "suppress": list(decode.suppress)},
        "versions": {"tacg": __version__},
        **({} if shared is None else {"constraint": {"pattern": shared}}),
    }  # fmt: skip
    failed = []
    with Journal(out, header, resume=resume) as journal:
        answers = _answers(journal.rows, key, set(names), out)
        known = set(answers)
        left = data.filter(lambda row: row[key] not in known) if known else data
        lengths = left.map(lambda row: {key: row[key], column: row[column], LENGTH: len(row[column])})
        shares = lengths.sort(LENGTH, descending=True).repartition(target_num_rows_per_block=batch_size)
        answered = shares.map_batches(
            BulkReplica, batch_size=batch_size, num_cpus=place.cores, num_gpus=place.gpus,
            compute=ray.data.ActorPoolStrategy(size=count),
            fn_constructor_args=(model, dtype, place.device, cores, policy, dict(settings), key, column, held),
        )  # fmt: skip
        if len(known) < len(names):
            with told_here():
                for row in answered.iter_rows():
                    if row["finish_reason"] == "error":
                        failed.append(row[key])
                    elif row[key] not in answers:  # a repeated share arrives twice
                        _refuse_another_model(row, next(iter(answers.values()), row), key, out)
                        answers[row[key]] = row
                        journal.append(row)
                        if on_row is not None:
                            on_row(row)
        journal.put_in_order(answers[name] for name in names if name in answers)
    if failed:
        raise LogitsError(f"{len(failed)} prompts have no answer, the first is {failed[0]!r}: unusable logits.", [])
    return len(answers)


class BulkReplica(Replica):
    """A replica for Ray Data's batches: columns of many rows."""

    def __init__(
        self, source: str, dtype: str, device: str, threads: int, policy: str, settings: dict[str, Any], key: str,
        column: str, held: dict[Any, dict[str, Any]],
    ) -> None:  # fmt: skip
        super().__init__(source, dtype, device, threads)
        self.policy, self.settings, self.key, self.column, self.held = policy, settings, key, column, held

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The answers to a batch."""
        prompts = [str(prompt) for prompt in batch[self.column]]
        constraints = own_or(self.settings, [self.held.get(name, {}) for name in batch[self.key].tolist()])
        found = dict(self.decode(list(enumerate(prompts)), self.policy, len(prompts), {**self.settings, **constraints}))
        outputs = [found[number] for number in range(len(prompts))]
        return {
            self.key: list(batch[self.key]),
            "text": [output.text for output in outputs],
            "tokens": [len(output.tokens) for output in outputs],
            "steps": [output.steps for output in outputs],
            "forwards": [output.forwards for output in outputs],
            "finish_reason": [output.finish_reason for output in outputs],
            "model": ["/".join(self.llm.identity.values())] * len(outputs),
        }


def _refuse_another_model(row: dict[str, Any], other: dict[str, Any], key: str, out: Path) -> None:
    """Raise if rows come from different models: nodes or resumed runs may have other files under the same name."""
    if row["model"] != other.get("model", row["model"]):  # older files do not record it
        raise TacgError(
            f"{row[key]!r} was answered by {row['model']}, {other[key]!r} in {out} by {other['model']}: "
            "give every node the same checkpoint, or begin another file."
        )


def _read(source: Path, key: str, column: str, name: type) -> Any:
    """Names (texts or integers) and prompts. Other columns may be anything, so they are not read."""
    import pyarrow.json
    import ray

    if source.suffix == ".parquet":
        return ray.data.read_parquet(str(source.resolve()), columns=[key, column])
    kinds = pyarrow.schema([(key, pyarrow.string() if name is str else pyarrow.int64()), (column, pyarrow.string())])
    options = pyarrow.json.ParseOptions(explicit_schema=kinds, unexpected_field_behavior="ignore")
    return ray.data.read_json(str(source.resolve()), parse_options=options)


def _asked(source: Path, key: str, column: str) -> tuple[list[Any], dict[Any, dict[str, Any]]]:
    """The names of all rows, in order, and the constraints of rows that have any.

    Raises unless there are prompts, all names are unique and all constraints are valid. Read here and not by Ray Data,
    which returns rows in no particular order.
    """
    if source.suffix not in KINDS:
        raise TacgError(f"`source` must end in {' or '.join(KINDS)}, got {source.name!r}.")
    refuse_irregular(source, "file of prompts")
    rows = _table(source, key, column) if source.suffix == ".parquet" else _lines(source)
    names, held = [], {}
    for number, row in enumerate(rows, start=1):
        for name in (key, column):
            if name not in row:
                has = ", ".join(row)[:200] or "nothing"
                raise TacgError(f"{source}, row {number} has no column {name!r}, it has {has}: name the right one.")
        if type(row[key]) not in (str, int) or not isinstance(row[column], str):
            raise TacgError(f"{source}, row {number}: {key!r} must be text or a whole number, {column!r} text.")
        names.append(row[key])
        if own := _constraint(row, f"{source}, row {number}"):
            held[row[key]] = own
    if len({type(name) for name in names}) != 1:
        what = f"texts and numbers in column {key!r}: make them alike" if names else "no prompts"
        raise TacgError(f"{source} has {what}.")
    for name, count in Counter(names).items():
        if count > 1:
            raise TacgError(f"Names must differ, but {brief(name)} of column {key!r} occurs {count} times in {source}.")
    return names, held


@functools.lru_cache(maxsize=1024)
def _readable(pattern: str) -> None:
    """Raise now if the pattern cannot be compiled to an automaton."""
    byte_automaton(pattern)


def _constraint(row: dict[str, Any], where: str) -> dict[str, Any]:
    """The constraint on the row's answer. A schema may be JSON in a text, because a table column has one type."""
    own = {name: row[name] for name in CONSTRAINTS if row.get(name) is not None}
    if isinstance(own.get("schema"), str):
        own["schema"] = parse_json(own["schema"], f"{where}: `schema`")
    try:
        if pattern := pattern_of(own):
            _readable(pattern)
    except TacgError as error:
        raise TacgError(f"{where}: {error}") from None
    return own


def _lines(source: Path) -> Iterator[dict[str, Any]]:
    with source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                row = parse_json(line, f"{source}, line {number}", "is this the right file?")
                if not isinstance(row, dict):
                    raise TacgError(f"{source}, line {number}: must be a JSON object; is this the right file?")
                yield row


def _table(source: Path, key: str, column: str) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        wanted = [name for name in parquet.read_schema(source).names if name in (key, column, *CONSTRAINTS)]
        for batch in parquet.ParquetFile(source).iter_batches(columns=wanted):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise TacgError(f"{source} cannot be read as Parquet: {str(error).splitlines()[0]}.") from None


def _answers(rows: Sequence[dict[str, Any]], key: str, names: set[Any], out: Path) -> dict[Any, dict[str, Any]]:
    """The answers of an interrupted run by name; raises if a row answers an unknown prompt, or one twice."""
    answers: dict[Any, dict[str, Any]] = {}
    for line, row in enumerate(rows, start=2):
        name = row.get(key)
        if type(name) not in (str, int) or name not in names or name in answers:
            wrong = "a second answer to" if type(name) in (str, int) and name in answers else "no prompt has the name"
            raise TacgError(f"{out}, line {line}: {wrong} {brief(name)}; delete the line, or name another file.")
        if wrong := misfit(row, ANSWER):
            raise TacgError(f"{out}, line {line}: {wrong}; delete the line, and it will be computed again.")
        answers[name] = row
    return answers
