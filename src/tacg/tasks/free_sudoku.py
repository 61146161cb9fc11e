"""Two small sudokus whose rows are given in any order and in free wording; every row once, every cell right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from tacg.knobs import knob
from tacg.tasks.base import Grade, Problem, Task
from tacg.tasks.pocket_sudoku import full_grid, thin_out
from tacg.tasks.wording import fitting, say

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

SIZE = 4
ROWS = "ABCDEFGH"
STATEMENT = [
    "Row {row} now reads {digits}.",
    "Row {row} lacks {missing}, so it is {digits}.",
]


@dataclass(frozen=True)
class FreeSudoku(Task):
    """Two 4 by 4 sudokus, with rows in any order and free wording. Difficulty: how many clues are left."""

    min_clues: int = knob(5, "fewest clues of a puzzle", low=4, high=15)
    max_clues: int = knob(7, "most clues of a puzzle", low=4, high=15)

    name: ClassVar[str] = "free-sudoku"

    @property
    def decode(self) -> Mapping[str, int]:
        """Three blocks."""
        return {"gen_length": 96, "block_length": 32}

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """Two puzzles; equal solutions are the same problem."""
        solutions, puzzles = zip(*(self._puzzle(rng) for _ in range(len(ROWS) // SIZE)), strict=True)
        solution, puzzle = list(chain(*solutions)), list(chain(*puzzles))
        asked = "\n".join(f" {row}:{_digits(cells)}" for row, cells in zip(ROWS, _rows(puzzle), strict=True))
        prompt = f"Solve two sudokus, the rows A to D and the rows E to H:\n{asked}"
        answer = fitting(lambda: _told(rng, solution, puzzle), 80, 95)
        return _digits(solution), Problem("", prompt, answer, {"solution": solution, "puzzle": puzzle})

    def _puzzle(self, rng: random.Random) -> tuple[list[int], list[int]]:
        """A solved grid and its puzzle; drawn again until the puzzle has the requested number of clues."""
        clues = rng.randint(self.min_clues, self.max_clues)
        while True:
            solution = full_grid(SIZE, rng)
            puzzle = thin_out(solution, SIZE, clues, rng)
            if SIZE * SIZE - puzzle.count(0) == clues:
                return solution, puzzle

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Every row must be stated, and never wrongly; the score is the share of empty cells that are right."""
        told = statements(answer)
        right = {row: [cells] for row, cells in zip(ROWS, _rows(problem.data["solution"]), strict=True)}
        open_cells = hits = 0
        for row, clues in zip(ROWS, _rows(problem.data["puzzle"]), strict=True):
            (cells,), said = right[row], (told.get(row) or [[0] * SIZE])[-1]
            open_cells += clues.count(0)
            hits += sum(not clue and cell == mine for clue, cell, mine in zip(clues, cells, said, strict=True))
        correct = told.keys() == right.keys() and all(each in right[row] for row in told for each in told[row])
        return Grade(correct, hits / open_cells)


@dataclass(frozen=True)
class FreeSudokuHard(FreeSudoku):
    """The same with the fewest clues that a sudoku of this size can have; not in pocket's training data."""

    min_clues: int = knob(4, "fewest clues of a puzzle", low=4, high=15)
    max_clues: int = knob(4, "most clues of a puzzle", low=4, high=15)

    name: ClassVar[str] = "free-sudoku-hard"


def statements(answer: str) -> dict[str, list[list[int]]]:
    """The statements about each row: sentences that name one row and contain one run of four digits."""
    told: dict[str, list[list[int]]] = {}
    for sentence in answer.split("."):
        rows, runs = re.findall(r"\b[A-H]\b", sentence), re.findall(r"\b\d(?: \d)+\b", sentence)
        if len(rows) == 1 and len(runs) == 1 and len(runs[0].split()) == SIZE:
            told.setdefault(rows[0], []).append([int(digit) for digit in runs[0].split()])
    return told


def _told(rng: random.Random, solution: list[int], puzzle: list[int]) -> str:
    """One grid and then the other, in random order; the rows of each in any order."""
    lines = list(zip(ROWS, _rows(solution), _rows(puzzle), strict=True))
    sentences = []
    for grid in rng.sample([lines[:SIZE], lines[SIZE:]], 2):
        for row, cells, clues in rng.sample(grid, SIZE):
            missing = [cell for cell, clue in zip(cells, clues, strict=True) if not clue]
            some = 0 < len(missing) < SIZE
            facts = {"row": row, "digits": _digits(cells).strip()}
            facts["missing"] = " and ".join(map(str, sorted(missing)))
            sentences.append(say(rng, rng.choice(STATEMENT if some else STATEMENT[:-1]), **facts))
    return " ".join(sentences)


def _rows(grid: list[int]) -> list[list[int]]:
    return [grid[start : start + SIZE] for start in range(0, len(grid), SIZE)]


def _digits(cells: list[int]) -> str:
    return "".join(f" {cell or '.'}" for cell in cells)
