"""Tasks with the problems of a published set, read from a file or downloaded with the `datasets` library."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.errors import TacgError, unknown
from tacg.files import parse_json, read_text, what_is
from tacg.knobs import knob
from tacg.shapes import brief, misfit
from tacg.tasks.base import Problem, Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SetItem = dict[str, Any]
HINT = "pass the path of the set with --data"


@dataclass(frozen=True)
class FileTask(Task):
    """A set with one split, `test`. Subclasses define the fields of an item, its prompt, solution and grading.

    needs     required fields of every item, and their shapes (see `tacg.shapes`)
    hub       where `datasets` finds it: repository, configuration, split
    examples  the split with worked examples; empty: the set itself
    """

    data: str | None = knob(None, "file of the benchmark: JSON lines or an array, may be gzipped (none: download)")
    protocol: str = knob("paper", "whose prompts", choices=("paper", "lm-eval"))
    shots: int = knob(0, "worked examples before the question", low=0, high=100)
    shots_data: str | None = knob(None, "file of the examples (none: the benchmark's first items except the one asked)")

    fixed: ClassVar[bool] = False
    needs: ClassVar[Mapping[str, Any]]
    hub: ClassVar[tuple[str, str | None, str]]
    examples: ClassVar[str] = ""

    @property
    def decode(self) -> Mapping[str, int]:
        """The paper's lengths."""
        return {"gen_length": 256, "block_length": 64}

    def question(self, item: SetItem) -> str:
        """The item as a question."""
        raise NotImplementedError

    def worked(self, item: SetItem) -> str:
        """The item's solution in a worked example."""
        raise NotImplementedError

    def make(self, item: SetItem, name: str, prompt: str) -> Problem:
        """The problem; `name` is its index in the set, for sets without ids."""
        raise NotImplementedError

    def items(self) -> list[SetItem]:
        """All items, in order."""
        return self._checked(read_items(self.data) if self.data is not None else download(*self.hub))

    def problems(self, split: str = "test", n: int | None = None, seed: int = 0) -> Iterator[Problem]:
        """The whole set in its own order, or, with a smaller `n`, that many in a random order of this seed.

        For one seed, a larger sample begins with the smaller one.
        """
        if split != "test":
            raise unknown(f"split of {self.name}", split, ("test",))
        if n is not None and n < 1:
            raise TacgError(f"`n` must be >= 1, got {n}.")
        items = self.items()
        order = list(range(len(items)))
        if n is not None and n < len(items):
            random.Random(f"{self.name}/{seed}").shuffle(order)
        seen: set[str] = set()
        for number in order[:n]:
            problem = self.make(items[number], str(number), self.prompt(items[number]))
            if problem.id in seen:
                raise TacgError(f"Two items of the {self.name} set have the id {brief(problem.id)}; {self._right_set}")
            seen.add(problem.id)
            yield problem

    def prompt(self, item: SetItem) -> str:
        """Worked examples, if any, and the question."""
        shown = [each for each in self._examples() if each != item][: self.shots] if self.shots else []
        if len(shown) < self.shots:
            raise TacgError(f"`shots` must be at most {len(shown)}, the number of worked examples; got {self.shots}.")
        asked = [f"{self.question(each)}{self._gap}{self.worked(each)}" for each in shown]
        return "\n\n".join([*asked, self.question(item)])

    @property
    def _gap(self) -> str:
        return " " if self.protocol == "lm-eval" else "\n"

    def _examples(self) -> list[SetItem]:
        if self.shots_data is not None:
            return self._checked(read_items(self.shots_data))
        if self.data is None and self.examples:
            return self._checked(download(*self.hub[:2], self.examples))
        return self._checked(read_items(self.data) if self.data is not None else download(*self.hub))

    def _checked(self, items: tuple[SetItem, ...]) -> list[SetItem]:
        for number, item in enumerate(items):
            if wrong := misfit(item, dict(self.needs)):
                told = f"Item {number} of the {self.name} set: {wrong}; this is {what_is(item)}; {self._right_set}"
                raise TacgError(told)
        return list(items)

    @property
    def _right_set(self) -> str:
        return f"is {self.data or self.hub[0]} the right set?"


def read_items(path: str) -> tuple[SetItem, ...]:
    """Items of a file: one JSON array, or one JSON object per line; gzipped if its name ends in .gz."""
    try:
        file = Path(path).expanduser()
        changed = file.stat().st_mtime_ns if file.is_file() else 0
    except (RuntimeError, ValueError) as error:  # no home directory; a null byte
        raise TacgError(f"The set {path!r} cannot be read: {error}. {HINT}.") from None
    return _read(file, changed)


@functools.lru_cache(maxsize=8)
def _read(file: Path, changed: int) -> tuple[SetItem, ...]:
    """Like `read_items`; cached while the file does not change."""
    text = read_text(file, "set", HINT)
    if text.lstrip().startswith("["):
        found = parse_json(text, str(file), HINT)
    else:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        found = [parse_json(line, f"{file}, line {number}", "is this the right file?") for number, line in lines]
    if not found or not all(isinstance(item, dict) for item in found):
        raise TacgError(f"{file} must hold JSON objects, one per line or in an array; is it the right file?")
    return tuple(found)


@functools.lru_cache(maxsize=8)
def download(repository: str, configuration: str | None, split: str) -> tuple[SetItem, ...]:
    """Items of a set on the Hugging Face hub."""
    try:
        import datasets
    except ImportError:
        raise TacgError(
            f"{repository} is downloaded with the `datasets` library, which is not installed; "
            "pip install 'tacg[bench]', or pass a file of the set with --data."
        ) from None
    try:
        return tuple(dict(row) for row in datasets.load_dataset(repository, configuration, split=split))
    except Exception as error:  # no connection, no such set, no space: the library raises many types
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise TacgError(f"{repository} cannot be downloaded: {first}. Pass a file of the set with --data.") from None
