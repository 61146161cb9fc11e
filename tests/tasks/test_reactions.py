"""Reactions with holes: which ones, what is masked, and how an answer is graded."""

from __future__ import annotations

import importlib.util
import re
from typing import TYPE_CHECKING

import pytest

from tacg import Canvas, Hole, TacgError
from tacg.tasks import get_task, judged_names
from tacg.tasks.holes import TextsWithHoles
from tacg.tasks.reactions import _reactions, smiles_tokens, valence_holds, well_formed

if TYPE_CHECKING:
    from pathlib import Path


def test_halves_share_nothing_and_make_up_the_set() -> None:
    task = get_task("reactions")
    dev, test = ({problem.answer for problem in task.problems(split)} for split in ("dev", "test"))
    assert not dev & test
    assert len(dev | test) == len(_reactions(None)) == 6000
    assert min(len(dev), len(test)) > 2800
    first, again, other = (list(task.problems(n=20, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert {each.id for each in first}.isdisjoint(each.id for each in other)
    assert list(task.problems(n=30, seed=1))[:20] == first, "a larger sample begins with the smaller one"
    with pytest.raises(TacgError, match=r"Unknown split of reactions 'train'"):
        next(task.problems("train"))
    with pytest.raises(TacgError, match="`n` must be >= 1, got 0"):
        next(task.problems(n=0))


@pytest.mark.parametrize("name", judged_names())
def test_the_share_that_is_masked(name: str) -> None:
    task = get_task(name)
    assert isinstance(task, TextsWithHoles)
    assert task.name == name
    for problem in task.problems("dev", n=50):
        canvas = problem.asked
        assert isinstance(canvas, Canvas)
        tokens, holes = task.tokens(problem.answer), problem.data["holes"]
        assert len(holes) == round(task.masked * len(tokens))
        assert sum(part.length for part in canvas.parts if isinstance(part, Hole)) == len(holes)
        assert (">>" in problem.prompt) == ("reactions" in name), "the arrow is given"
        runs = len([part for part in canvas.parts if isinstance(part, Hole)])
        assert ("span" in name) == (runs <= 1 + ("⟩>>⟨" in problem.prompt))
        ids = canvas.ids(lambda text: [hash(token) for token in task.tokens(text)], mask_id=-1)
        wanted = [-1 if place in holes else hash(token) for place, token in enumerate(tokens)]
        assert ids == wanted, "what is given is where it was"


def test_the_arrow_may_be_masked_too() -> None:
    task = get_task("reactions-span", arrow=True)
    assert task.name == "reactions-span-arrow"
    prompts = [problem.prompt for problem in task.problems(n=50)]
    assert all(prompt.count("⟨") == 1 for prompt in prompts)
    assert any(">>" not in prompt for prompt in prompts)


def test_graded_whole_by_tokens_and_by_syntax() -> None:
    task = get_task("reactions")
    for problem in task.problems(n=40):
        tokens, holes = smiles_tokens(problem.answer), problem.data["holes"]
        right = task.grade(problem, problem.answer)
        assert (right.correct, right.score, right.valid) == (True, 1.0, True)
        place = next(place for place in holes if tokens[place] not in "()>>0123456789")
        changed = [*tokens[:place], "(", *tokens[place + 1 :]]
        grade = task.grade(problem, "".join(changed))
        assert (grade.correct, grade.valid) == (False, False)
        assert grade.score == pytest.approx((len(holes) - 1) / len(holes))
        assert task.grade(problem, "").score == 0


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("CCO>>CC=O", True),
        ("c1ccccc1.Br>[Pd].O>C%12CC%12", True),
        ("C[C@H](N)C(=O)O>>C1CC1C1CC1", True),
        ("CCO", False),
        ("CCO>>", False),
        ("CCO>>C>>C", False),
        ("C(C>>C", False),
        ("C)C(>>C", False),
        ("C()C>>C", False),
        ("(C)C>>C", False),
        ("C1CC>>C", False),
        ("C1CC.C1>>C", False),
        ("C[NH>>C", False),
        ("C..C>>C", False),
    ],
)
def test_syntax(text: str, fine: bool) -> None:
    assert well_formed(text) is fine


def test_valence_needs_a_library() -> None:
    task = get_task("reactions", check="valence")
    if importlib.util.find_spec("rdkit") is None:
        with pytest.raises(TacgError, match="needs the library rdkit"):
            task.refuse_unready()
        return
    assert valence_holds("CCO>>CC=O")
    assert not valence_holds("CCO>>C=C=O=C")
    problem = next(task.problems(n=1))
    assert task.grade(problem, problem.answer).valid


def test_own_reactions(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("CCO>>CC=O\n\nCCCO>>CCC=O\nCCO>>CC=O\n")
    task = get_task("reactions", data=str(file), masked=0.4)
    assert task.name == "reactions-40"
    found = [*task.problems("dev"), *task.problems("test")]
    assert sorted(problem.answer for problem in found) == ["CCCO>>CCC=O", "CCO>>CC=O"]
    assert all(re.search(r"⟨\d⟩", problem.prompt) for problem in found)
    file.write_text("CCO\n")
    with pytest.raises(TacgError, match="must hold a reaction on each line, such as CCO>>CC=O; got 'CCO'"):
        next(get_task("reactions", data=str(file), masked=0.3).problems())


def test_antibodies(tmp_path: Path) -> None:
    """Two halves of real sequences, which share none; a sequence that is none is refused."""
    task = get_task("antibodies")
    dev, test = ({problem.answer for problem in task.problems(split)} for split in ("dev", "test"))
    assert not dev & test
    assert (len(dev | test), min(len(dev), len(test)) > 800) == (1712, True)
    problem = next(task.problems(n=1))
    wrong = problem.answer[:-1] + ("A" if problem.answer[-1] != "A" else "C")
    assert task.grade(problem, problem.answer).score == 1
    assert not task.grade(problem, wrong).correct
    file = tmp_path / "mine.txt"
    file.write_text("EVQLVE\nEVQL VE\n")
    with pytest.raises(TacgError, match="must hold a sequence of amino acids on each line, got 'EVQL VE'"):
        next(get_task("antibodies", data=str(file)).problems())
