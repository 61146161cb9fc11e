"""Answers of a given form: the references satisfy their constraints and are right; what is wrong is not."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

import tacg
from tacg.constraint import pattern_of
from tacg.experiments.evaluate import evaluate
from tacg.tasks import get_task, structured_names


@pytest.mark.parametrize("name", structured_names())
def test_references_have_the_form_and_are_right(name: str) -> None:
    task = get_task(name)
    for problem in task.problems("dev", 12):
        assert re.fullmatch(pattern_of(problem.held) or "", problem.answer)
        assert task.grade(problem, problem.answer).correct
        if "schema" in problem.held:
            value = json.loads(problem.answer)
            jsonschema.validate(value, problem.held["schema"])
            inner = value.get("arguments", value)
            inner["count" if "count" in inner else "answer"] += 1
            wrong = task.grade(problem, json.dumps(value))
            assert (wrong.correct, wrong.valid) == (False, True)
            assert not task.grade(problem, problem.answer[:-1]).valid
        else:
            before, after = re.split("⟨24⟩", problem.prompt)
            assert problem.answer.startswith(before)
            assert problem.answer.endswith(after)
            assert not task.grade(problem, f"{before}pass{after}").correct


@pytest.mark.parametrize("name", structured_names())
def test_a_model_that_has_learned_nothing_answers_in_the_form(llm: tacg.LLM, name: str) -> None:
    task = get_task(name)
    done = evaluate(llm, task, "confidence", n=2, settings={"threshold": 0.05})
    for problem, item in zip(task.problems("test", 2), done.items, strict=True):
        assert re.fullmatch(pattern_of(problem.held) or "", item.text)
