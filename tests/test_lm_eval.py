"""lm-evaluation-harness through our model: it gets what `tacg eval` gets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import tacg
from tacg import TacgError
from tacg.experiments.evaluate import evaluate
from tacg.experiments.likelihood import monte_carlo
from tacg.tasks import Grade, Problem, Task

QUESTIONS = [f"What follows {number}?" for number in range(6)]
SHAPE = {"gen_length": 16, "block_length": 8}


@dataclass(frozen=True)
class Said(Task):
    """Right is what the model says anyway, for every other question: a task that a random model gets half right."""

    answers: tuple[str, ...] = ()
    name: ClassVar[str] = "said"
    decode: ClassVar[dict[str, int]] = SHAPE  # type: ignore[assignment]

    def problems(self, split: str = "test", n: int | None = None, seed: int = 0) -> Iterator[Problem]:
        for number, (asked, answer) in enumerate(zip(QUESTIONS, self.answers, strict=True)):
            yield Problem(str(number), asked, answer if number % 2 else f"not {answer}")

    def grade(self, problem: Problem, answer: str) -> Grade:
        return Grade(answer == problem.answer, float(answer == problem.answer))


@pytest.fixture(scope="module")
def task(llm: tacg.LLM) -> Said:
    return Said(tuple(output.text for output in llm.generate(QUESTIONS, "confidence", **SHAPE)))


@pytest.mark.filterwarnings("default")
def test_the_harness_gets_what_eval_gets(llm: tacg.LLM, task: Said) -> None:
    lm_eval = pytest.importorskip("lm_eval")
    datasets = pytest.importorskip("datasets")
    from tacg.integrations.lm_eval import TacgLM

    ours = evaluate(llm, task, "confidence", n=6)
    assert ours.row["accuracy"] == 0.5
    rows = [{"prompt": each.prompt, "answer": each.answer} for each in task.problems()]
    config: dict[str, Any] = {
        "task": "said", "output_type": "generate_until", "test_split": "test",
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)},
        "doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}",
        "process_results": lambda doc, results: {"acc": float(results[0] == doc["answer"])},
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": {"until": ["\\never"], "max_gen_toks": 16},
    }  # fmt: skip
    model = TacgLM(llm, "confidence", batch_size=4, block_length=8)
    found = lm_eval.simple_evaluate(model=model, tasks=[config], apply_chat_template=True, bootstrap_iters=0)
    assert found["results"]["said"]["acc,none"] == ours.row["accuracy"]
    told = sorted(found["samples"]["said"], key=lambda sample: sample["doc_id"])
    assert [sample["resps"][0][0] for sample in told] == [item.text for item in ours.items]


@pytest.mark.filterwarnings("default")
def test_the_model_is_registered_and_stops(llm: tacg.LLM) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import get_model

    from tacg.integrations.lm_eval import TacgLM, cut

    assert get_model("tacg") is TacgLM
    assert get_model("dummy") is not None, "the harness's own models are still there"
    assert cut("one two three", ["three", "two"]) == "one "
    model = TacgLM(llm, "tacg", batch_size="auto", mc_num=4, check_greedy=True, k_extra=1)
    asked = [Instance("generate_until", {}, (f"{word} ", {"until": [], "max_gen_toks": size}), 0)
             for word, size in (("one", 8), ("two", 12), ("three", 8))]  # fmt: skip
    texts = model.generate_until(asked)
    alone = [llm.generate(f"{word} ", "tacg", chat=False, gen_length=size, k_extra=1).text
             for word, size in (("one", 8), ("two", 12), ("three", 8))]  # fmt: skip
    assert texts == alone
    best = llm.generate("Hello", "schedule", chat=False, gen_length=3, early_stop=False)
    pair = Instance("loglikelihood", {}, ("Hello", llm.tokenizer.decode(best.tokens)), 0)
    ((value, greedy),) = model.loglikelihood([pair])
    assert value < 0
    if 0 not in best.tokens:  # an end of text has no spelling
        assert greedy
    with pytest.raises(TacgError, match="Did you mean 'k_extra'"):
        TacgLM(llm, "tacg", k_xtra=1)
    with pytest.raises(TacgError, match="`mc_num` must be >= 1"):
        TacgLM(llm, mc_num=0)


def test_the_estimate_against_every_way_of_hiding(llm: tacg.LLM) -> None:
    """One token: exact. Three tokens: the mean over all subsets of all sizes, each size equally likely."""
    context, answer = llm.tokenizer.encode("Hello"), llm.tokenizer.encode("abc")
    mask = llm.model.spec.mask_id

    def score(hidden: tuple[int, ...]) -> float:
        row = context + [mask if place in hidden else token for place, token in enumerate(answer)]
        logs = llm.logits(torch.tensor([row]))[0].double().log_softmax(dim=1)
        return sum(float(logs[len(context) + place, answer[place]]) for place in hidden) * len(answer) / len(hidden)

    sizes = [list(itertools.combinations(range(3), size)) for size in (1, 2, 3)]
    exact = sum(sum(map(score, subsets)) / len(subsets) for subsets in sizes) / 3
    assert monte_carlo(llm, context, answer, samples=600) == pytest.approx(exact, rel=0.05)
    assert monte_carlo(llm, context, answer, 12, 5) == pytest.approx(
        monte_carlo(llm, context, answer, 12, 12), rel=1e-6
    )
    answer = answer[:1]
    assert monte_carlo(llm, context, answer, samples=2) == pytest.approx(score((0,)), rel=1e-5)
    with pytest.raises(TacgError, match="The answer is empty"):
        monte_carlo(llm, context, [])
