"""Small sudokus, several per problem, each with one solution that can be found by elimination."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

from tacg.knobs import knob
from tacg.tasks.base import Grade, Problem, Task

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

Grid = list[int]  # row by row; 0 is empty
BOX = {4: (2, 2), 6: (2, 3)}  # rows and columns of a box


@dataclass(frozen=True)
class PocketSudoku(Task):
    """Small sudokus. Difficulty: the size, how many puzzles, and the minimum number of clues of each.

    Fewer clues need longer chains of deduction. By default an answer has four grids, one per block.
    """

    size: str = knob("4", "cells along a side", choices=("4", "6"))
    puzzles: int = knob(4, "puzzles in a problem", low=1, high=9)
    clues: int | None = knob(None, "minimum number of clues (none: 7 of 16, 16 of 36)", low=0)

    name: ClassVar[str] = "pocket-sudoku"

    @property
    def decode(self) -> Mapping[str, int]:
        """One block per grid: its cells, a line break after each row, and one between grids."""
        size = int(self.size)
        block = size * (size + 1) + 1
        return {"gen_length": block * self.puzzles, "block_length": block}

    def draw(self, rng: random.Random) -> tuple[str, Problem]:
        """Several puzzles; equal solutions are the same problem."""
        size = int(self.size)
        least = self.clues if self.clues is not None else {4: 7, 6: 16}[size]
        solutions = [full_grid(size, rng) for _ in range(self.puzzles)]
        puzzles = [thin_out(solution, size, least, rng) for solution in solutions]
        rows, columns = BOX[size]
        asked, answer = ("\n\n".join(show(grid, size) for grid in grids) for grids in (puzzles, solutions))
        what = "these" if self.puzzles > 1 else "this"
        several = "s" if self.puzzles > 1 else ""
        prompt = f"Solve {what} {size} by {size} sudoku{several} with {rows} by {columns} boxes:\n{asked}"
        facts = {"solution": list(chain(*solutions)), "puzzle": list(chain(*puzzles))}
        return answer, Problem("", prompt, answer, facts)

    def grade(self, problem: Problem, answer: str) -> Grade:
        """Every cell must be right; the score is the share of the empty cells that are."""
        solution, puzzle = problem.data["solution"], problem.data["puzzle"]
        cells = [int(cell) for cell in re.findall(r"\d+", answer)]
        pairs = list(zip(solution, cells, strict=False))
        open_cells = [place for place, clue in enumerate(puzzle) if not clue]
        hits = sum(place < len(pairs) and pairs[place][0] == pairs[place][1] for place in open_cells)
        return Grade(cells == solution, hits / len(open_cells) if open_cells else float(cells == solution))


def show(grid: Grid, size: int) -> str:
    """The grid as text: one line per row, dots for empty cells."""
    rows = [grid[start : start + size] for start in range(0, size * size, size)]
    return "\n".join("".join(f" {cell or '.'}" for cell in row) for row in rows)


def _box(place: int, size: int) -> int:
    rows, columns = BOX[size]
    row, column = divmod(place, size)
    return row // rows * (size // columns) + column // columns


def full_grid(size: int, rng: random.Random) -> Grid:
    """A random solved grid, by trying digits in random order."""
    grid = [0] * (size * size)
    rows, columns, boxes = ([0] * size for _ in range(3))

    def fill(place: int) -> bool:
        if place == size * size:
            return True
        r, c, b = place // size, place % size, _box(place, size)
        for digit in rng.sample(range(1, size + 1), size):
            bit = 1 << digit
            if not (rows[r] | columns[c] | boxes[b]) & bit:
                grid[place], rows[r], columns[c], boxes[b] = digit, rows[r] | bit, columns[c] | bit, boxes[b] | bit
                if fill(place + 1):
                    return True
                grid[place], rows[r], columns[c], boxes[b] = 0, rows[r] ^ bit, columns[c] ^ bit, boxes[b] ^ bit
        return False

    fill(0)
    return grid


def thin_out(solution: Grid, size: int, least: int, rng: random.Random) -> Grid:
    """Remove clues in random order as long as elimination alone still solves the puzzle."""
    puzzle = list(solution)
    left = size * size
    for place in rng.sample(range(size * size), size * size):
        if left <= least:
            break
        puzzle[place] = 0
        if solved_by_elimination(puzzle, size):
            left -= 1
        else:
            puzzle[place] = solution[place]
    return puzzle


def solved_by_elimination(puzzle: Grid, size: int) -> bool:
    """Whether repeatedly filling cells that have only one possible digit fills the grid.

    Every such step is forced, so a puzzle that passes has exactly one solution.
    """
    rows, columns, boxes = ([0] * size for _ in range(3))
    empty = []
    for place, digit in enumerate(puzzle):
        spot = place // size, place % size, _box(place, size)
        if digit:
            rows[spot[0]] |= 1 << digit
            columns[spot[1]] |= 1 << digit
            boxes[spot[2]] |= 1 << digit
        else:
            empty.append(spot)
    every = (1 << size + 1) - 2
    while empty:
        still = []
        for spot in empty:
            r, c, b = spot
            possible = every & ~(rows[r] | columns[c] | boxes[b])
            if possible and not possible & (possible - 1):
                rows[r] |= possible
                columns[c] |= possible
                boxes[b] |= possible
            else:
                still.append(spot)
        if len(still) == len(empty):
            return False
        empty = still
    return True
