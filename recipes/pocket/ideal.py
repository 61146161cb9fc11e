"""How many steps an ideal model needs: exact probabilities of every token, over all wordings of an answer.

    python recipes/pocket/ideal.py --task free-math --n 6

A problem's answers are the paths through a small graph whose edges are sentences. Forward and backward sums over it
give each position's distribution, given what is committed. So how free a wording is can be seen before training.
"""

from __future__ import annotations

import argparse
import random
import re
from typing import Any
from unittest.mock import patch

import numpy as np

from tacg.tasks import free_code, free_math, free_sudoku, get_task
from tacg.tasks.wording import PIECES

Edge = tuple[Any, Any, str, float]  # from, to, what is said, how likely; edges are listed in the order of their nodes
BLOCK = 32


def sentences(template: str, share: float = 1.0) -> list[tuple[str, float]]:
    """Every sentence that a template of `say` stands for, with its probability."""
    found = re.search(r"\(([^()]*)\)", template)
    if not found:
        return [(template, share)]
    words, before, after = found[1].split("|"), template[: found.start()], template[found.end() :]
    return [each for word in words for each in sentences(before + word + after, share / len(words))]


def math_edges(rng: Any, name: str, start: Any, events: Any, counts: Any) -> list[Edge]:
    """Four orders: by day or by kind, either kind first."""
    edges, he, kinds = [], free_math.PEOPLE[name], list(start)
    for order in (kinds, kinds[::-1]):
        for chapters in ([order], [[kind] for kind in order]):
            said = []
            for chapter in chapters:
                facts = {"he": he, "start": " and ".join(f"{start[kind]} {kind}" for kind in chapter)}
                said.append([(text.format(**facts), p) for text, p in sentences(free_math.OPENING)])
                for event in (each for each in events if each.things in chapter):
                    steps = [each for step in free_math.STEP for each in sentences(step, 1 / len(free_math.STEP))]
                    said.append([(text.format(he=he, **event._asdict()), p) for text, p in steps])
            ends = [" and ".join(f"{counts[kind]} {kind}" for kind in each) for each in (kinds, kinds[::-1])]
            said.append([(t.format(he=he, end=end), p / 2) for end in ends for t, p in sentences(free_math.CLOSING)])
            nodes = ["start", *((len(chapters), *order, place) for place in range(1, len(said))), "end"]
            for place, choices in enumerate(said):
                share, space = (1.0, " ") if place else (0.25, "")
                edges += [(nodes[place], nodes[place + 1], space + text, p * share) for text, p in choices]
    return edges


def code_edges(rng: Any, argument: str, steps: Any, first: int, end: str) -> list[Edge]:
    """A node is the loop's variable, how many steps are written, and the name of the last list."""
    edges: list[Edge] = []
    for v in free_code.LOOP_NAMES:
        head, sources = f"def {free_code.FUNCTION}({argument}):", [argument]
        edges.append(("start", (v, 0, argument), head, 1 / len(free_code.LOOP_NAMES)))
        for place, (kind, told, codes) in enumerate(steps):
            names = [series.split()[place + first - 1] for series in free_code.NAMES]
            share = 1 / len(names) / len(codes) / len(free_code.FORMS[kind])
            for xs in sources:
                for t in names:
                    for code in codes:
                        for form in free_code.FORMS[kind]:
                            body = _lines(form.format(t=t, v=v, xs=xs, code=code.format(v=v, xs=xs)))
                            shares = {"": 1 - free_code.COMMENTED, _lines(f"# {told}"): free_code.COMMENTED}
                            edges += [
                                ((v, place, xs), (v, place + 1, t), c + body, share * p) for c, p in shares.items()
                            ]
            sources = names
        forms = free_code.RETURNS[end]
        edges += [
            ((v, len(steps), xs), "end", _lines(f.format(xs=xs)), 1 / len(forms)) for xs in sources for f in forms
        ]
    return edges


def _lines(text: str) -> str:
    return "".join(f"\n    {line}" for line in text.splitlines())


def sudoku_edges(rng: Any, solution: Any, puzzle: Any) -> list[Edge]:
    """A node is the set of rows that have been told; a grid that is begun is finished first."""
    told, edges = [], []
    for row, cells, clues in zip(free_sudoku.ROWS, _rows(solution), _rows(puzzle), strict=True):
        missing = sorted(cell for cell, clue in zip(cells, clues, strict=True) if not clue)
        forms = free_sudoku.STATEMENT if 0 < len(missing) < 4 else free_sudoku.STATEMENT[:-1]
        facts = {"row": row, "digits": " ".join(map(str, cells)), "missing": " and ".join(map(str, missing))}
        told.append([(t.format(**facts), p) for form in forms for t, p in sentences(form, 1 / len(forms))])
    for done in sorted(range(255), key=int.bit_count):
        begun = [grid for grid in (0x0F, 0xF0) if done & grid not in (0, grid)]
        if len(begun) < 2:
            left = [row for row in range(8) if not done >> row & 1 and (not begun or begun[0] >> row & 1)]
            for row in left:
                after = "end" if done | 1 << row == 255 else done | 1 << row
                space = " " if done else ""
                edges += [(done or "start", after, space + text, p / len(left)) for text, p in told[row]]
    return edges


def _rows(grid: list[int]) -> list[list[int]]:
    return [grid[place : place + 4] for place in range(0, len(grid), 4)]


WRITERS = {
    "free-math": (free_math, "_reasoning", math_edges),
    "free-code": (free_code, "_written", code_edges),
    "free-sudoku": (free_sudoku, "_told", sudoku_edges),
}


class Ideal:
    """The distribution of answers with `least` to L - 1 tokens; the rest is padding (token 0)."""

    def __init__(self, edges: list[Edge], length: int, least: int) -> None:
        self.length = length
        numbers: dict[str, int] = {"": 0}
        places: dict[Any, int] = {}
        texts: dict[str, int] = {}
        for start, _, text, _ in edges:
            places.setdefault(start, len(places))
            texts.setdefault(text, len(texts))
            for piece in re.findall(PIECES, text):
                numbers.setdefault(piece, len(numbers))
        places["end"] = len(places)
        self.pieces = list(numbers)
        self.said = [np.array([numbers[piece] for piece in re.findall(PIECES, text)]) for text in texts]
        self.nodes = len(places)
        table = [(places[a], places[b], texts[text], len(self.said[texts[text]]), p) for a, b, text, p in edges]
        self.leaving = [
            [np.array(column) for column in zip(*rows, strict=True)] for rows in _by_first(table, self.nodes)
        ]
        self.fits = (np.arange(length + 1) >= least) & (np.arange(length + 1) < length)

    def chances(self, seen: np.ndarray) -> np.ndarray:
        """[L, V] the probability of every token at every position, given those that are seen (-1: masked)."""
        length = self.length
        match = np.zeros((len(self.said), length + 1), bool)
        for number, words in enumerate(self.said):
            if len(words) <= length:
                window = np.lib.stride_tricks.sliding_window_view(seen, len(words))
                match[number, : length - len(words) + 1] = ((window == -1) | (window == words)).all(1)
        padded = self.fits & np.array([(seen[stop:] <= 0).all() for stop in range(length + 1)])
        ahead, behind = (np.zeros((self.nodes, length + 1)) for _ in range(2))
        ahead[0, 0], behind[-1] = 1, padded
        for node, (stop, said, size, share) in enumerate(self.leaving):
            for at in np.nonzero(ahead[node])[0]:
                ok = match[said, at]
                np.add.at(ahead, (stop[ok], at + size[ok]), ahead[node, at] * share[ok])
        weight = np.zeros(match.shape)
        for node, (stop, said, size, share) in reversed(list(enumerate(self.leaving))):
            for at in np.nonzero(ahead[node])[0]:
                ok = match[said, at]
                after = share[ok] * behind[stop[ok], at + size[ok]]
                behind[node, at] = after.sum()
                np.add.at(weight, (said[ok], at), ahead[node, at] * after)
        found = np.zeros((length, len(self.pieces)))
        for number, at in zip(*np.nonzero(weight), strict=True):
            words = self.said[number]
            found[np.arange(at, at + len(words)), words] += weight[number, at]
        for stop in np.nonzero(padded)[0]:
            found[stop:, 0] += ahead[-1, stop]
        return found / found.sum(1, keepdims=True).clip(1e-300)

    def decode(self, threshold: float) -> tuple[list[int], str]:
        """Steps of each block under a confidence threshold, and the text."""
        seen, steps = np.full(self.length, -1), []
        for start in range(0, self.length, BLOCK):
            block, count = seen[start : start + BLOCK], 0
            while (block == -1).any():
                chances = self.chances(seen)[start : start + BLOCK]
                sure = np.where(block == -1, chances.max(1), -1)
                taken = (sure > threshold) | ((sure <= threshold).all() & (np.arange(len(block)) == sure.argmax()))
                block[taken] = chances.argmax(1)[taken]
                count += 1
            steps.append(count)
        return steps, "".join(self.pieces[token] for token in seen)


def _by_first(table: list[tuple[Any, ...]], nodes: int) -> list[list[tuple[Any, ...]]]:
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(nodes - 1)]
    for node, *rest in table:
        rows[node].append(tuple(rest))
    return rows


def ideal(task: str, seed: int) -> tuple[Ideal, Any]:
    """A problem and the distribution of its answers."""
    module, name, edges = WRITERS[task]
    asked = get_task(task)
    with patch.object(module, name, wraps=getattr(module, name)) as writer:
        _, problem = asked.draw(random.Random(seed))
    length = asked.decode["gen_length"]
    return Ideal(edges(*writer.call_args.args), length, length * 5 // 6), problem


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(WRITERS), required=True)
    parser.add_argument("--n", type=int, default=3)
    parser.add_argument("--threshold", type=float, default=0.9)
    asked = parser.parse_args()
    steps, right = [], 0
    for seed in range(asked.n):
        model, problem = ideal(asked.task, seed)
        counts, text = model.decode(asked.threshold)
        steps.append(counts)
        right += get_task(asked.task).grade(problem, text).correct
    mean = float(np.mean(steps))
    print(
        f"{asked.task}: {mean:.1f} steps per block, {BLOCK / mean:.2f} tokens per forward, {right} of {asked.n} right"
    )


if __name__ == "__main__":
    main()
