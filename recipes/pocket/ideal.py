"""How many steps an ideal model needs: exact probabilities of every token, over all wordings of an answer.

    python recipes/pocket/ideal.py --task free-math --n 6

A problem's answers are the paths through a small graph whose edges are sentences. Forward and backward sums over it
give each position's distribution, given what is committed. So how free a wording is can be seen before training.
"""

from __future__ import annotations

import argparse
import random
import re
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np

from tacg.tasks import free_code, free_math, get_task
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


def math_edges(rng: Any, story: Any) -> list[Edge]:
    """One sentence for each event, in their order."""
    facts = {"he": free_math.PEOPLE[story.name], "things": story.things, "start": story.start, "end": story.end}
    steps = [each for step in free_math.STEP for each in sentences(step, 1 / len(free_math.STEP))]
    said = [(sentences(free_math.OPENING), facts)]
    said += [(steps, facts | event._asdict()) for event in story.events]
    said.append((sentences(free_math.CLOSING), facts))
    edges = []
    for place, (templates, told) in enumerate(said):
        after, space = "end" if place + 1 == len(said) else place + 1, " " if place else ""
        edges += [(place, after, space + template.format(**told), p) for template, p in templates]
    return edges


def code_edges(rng: Any, argument: str, steps: Any, first: int, end: str) -> list[Edge]:
    """A node is the loop's variable, the series of names, and how many steps are written."""
    edges: list[Edge] = []
    for v, series in product(free_code.LOOP_NAMES, free_code.NAMES):
        names = series.split()[first - 1 :]
        share = 1 / len(free_code.LOOP_NAMES) / len(free_code.NAMES)
        edges.append(("start", (v, series, 0), f"def {free_code.FUNCTION}({argument}):", share))
        for place, (kind, told, codes) in enumerate(steps):
            xs, forms = [argument, *names][place], free_code.FORMS[kind]
            shares = {"": 1 - free_code.COMMENTED, _lines(f"# {told}"): free_code.COMMENTED}
            for code, form, (comment, p) in product(codes, forms, shares.items()):
                body = _lines(form.format(t=names[place], v=v, xs=xs, code=code.format(v=v, xs=xs)))
                nodes = (v, series, place), (v, series, place + 1)
                edges.append((*nodes, comment + body, p / len(codes) / len(forms)))
        ends = free_code.RETURNS[end]
        nodes = (v, series, len(steps)), "end"
        edges += [(*nodes, _lines(form.format(xs=names[len(steps) - 1])), 1 / len(ends)) for form in ends]
    return edges


def _lines(text: str) -> str:
    return "".join(f"\n    {line}" for line in text.splitlines())


WRITERS = {
    "free-math": (free_math, "_reasoning", math_edges),
    "free-code": (free_code, "_written", code_edges),
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
