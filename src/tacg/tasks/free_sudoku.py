"""Small sudokus whose rows are given in free wording; every row must be stated, every cell right."""

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
    """Two 4 by 4 sudokus, solved in either order, from the top or the bottom. Difficulty: how many clues are left."""

    min_clues: int = knob(5, "fewest clues of a puzzle", low=4, high=15)
    max_clues: int = knob(7, "most clues of a puzzle", low=4, high=15)
    grids: int = knob(2, "number of sudokus", low=1, high=2)

    name: ClassVar[str] = "free-sudoku"

    @property
    def decode(self) -> Mapping[str, int]:
        """A block and a half for each sudoku."""
        return {"gen_length": {1: 64, 2: 96}[self.grids], "block_length": 32}

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """Puzzles with letters for their rows; equal solutions are the same problem."""
        first = rng.randint(0, 2 - self.grids) * SIZE  # so that every letter is trained, even with one sudoku
        letters = ROWS[first : first + self.grids * SIZE]
        solutions, puzzles = zip(*(self._puzzle(rng) for _ in range(self.grids)), strict=True)
        solution, puzzle = list(chain(*solutions)), list(chain(*puzzles))
        asked = "\n".join(f" {row}:{_digits(cells)}" for row, cells in zip(letters, _rows(puzzle), strict=True))
        prompt = f"Solve {'this sudoku' if self.grids == 1 else 'these sudokus'}:\n{asked}"
        most = self.decode["gen_length"]
        answer = fitting(lambda: _told(rng, letters, solution, puzzle), most * 5 // 6, most - 1)
        facts = {"letters": letters, "solution": solution, "puzzle": puzzle}
        return _digits(solution), Problem("", prompt, answer, facts)

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
        letters: str = problem.data["letters"]
        right = {row: [cells] for row, cells in zip(letters, _rows(problem.data["solution"]), strict=True)}
        open_cells = hits = 0
        for row, clues in zip(letters, _rows(problem.data["puzzle"]), strict=True):
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


def _told(rng: random.Random, letters: str, solution: list[int], puzzle: list[int]) -> str:
    """One grid and then the other, in random order; the rows of each from the top or from the bottom."""
    lines = list(zip(letters, _rows(solution), _rows(puzzle), strict=True))
    grids = [lines[start : start + SIZE] for start in range(0, len(lines), SIZE)]
    sentences = []
    for grid in rng.sample(grids, len(grids)):
        for row, cells, clues in grid[:: rng.choice([1, -1])]:
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
