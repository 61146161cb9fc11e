"""lm-evaluation-harness through our model: it gets what `tacg eval` gets."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tacg
from tacg import TacgError
from tacg.experiments.evaluate import evaluate
from tacg.experiments.likelihood import monte_carlo
from tacg.models.tiny import write_checkpoint
from tacg.tasks import get_task


@pytest.mark.filterwarnings("default")
def test_the_harness_gets_what_eval_gets() -> None:
    """Word problems on the trained model, with the task's own grader in the harness."""
    lm_eval = pytest.importorskip("lm_eval")
    datasets = pytest.importorskip("datasets")
    from tacg.integrations.lm_eval import TacgLM

    llm, task, n = tacg.load("pocket"), get_task("pocket-math"), 12
    problems = {problem.prompt: problem for problem in task.problems("test", n)}
    ours = evaluate(llm, task, "confidence", n=n, settings={"threshold": 0.5})
    assert 0 < ours.row["accuracy"] < 1, "or the comparison would prove little"
    config: dict[str, Any] = {
        "task": task.name, "output_type": "generate_until", "test_split": "test",
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list([{"prompt": asked} for asked in problems])},
        "doc_to_text": "{{prompt}}", "doc_to_target": "",
        "process_results": lambda doc, said: {"acc": float(task.grade(problems[doc["prompt"]], said[0]).correct)},
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "generation_kwargs": {"until": ["\\never"], "max_gen_toks": task.decode["gen_length"]},
    }  # fmt: skip
    model = TacgLM(llm, "confidence", batch_size=4, block_length=task.decode["block_length"], threshold=0.5)
    found = lm_eval.simple_evaluate(model=model, tasks=[config], apply_chat_template=True, bootstrap_iters=0)
    assert found["results"][task.name]["acc,none"] == ours.row["accuracy"]
    told = sorted(found["samples"][task.name], key=lambda sample: sample["doc_id"])
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
    held = TacgLM(llm, "tacg", regex="[0-9]{3}")
    kinds = [{}, {"choices": ["yes", "no"]}, {"regex": "[a-z]{2}"}]
    asked = [Instance("generate_until", {}, ("one ", {"max_gen_toks": 8, **more}), 0) for more in kinds]
    for pattern, text in zip(("[0-9]{3}", "yes|no", "[a-z]{2}"), held.generate_until(asked), strict=True):
        assert re.fullmatch(pattern, text), "a task's own constraint wins over the model's"
    with pytest.raises(TacgError, match=r"The JSON schema 'nowhere\.json' cannot be read"):
        TacgLM(llm, "tacg", schema="nowhere.json")
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


@pytest.mark.filterwarnings("default")
def test_a_model_with_a_qwen_body(tmp_path: Path) -> None:
    """A Tiny-A2D that sees by blocks, named by its directory as on the harness's command line."""
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance

    from tacg.integrations.lm_eval import TacgLM

    place = write_checkpoint(tmp_path / "tiny-bd3lm", family="a2d")
    model, llm = TacgLM(str(place), "tacg", mc_num=2), tacg.load(place)
    assert llm.model.spec.causal_block == 32
    asked = [Instance("generate_until", {}, (f"{word} ", {"until": [], "max_gen_toks": 40}), 0) for word in "abc"]
    alone = [llm.generate(f"{word} ", "tacg", chat=False, gen_length=40).text for word in "abc"]
    assert model.generate_until(asked) == alone
    with pytest.raises(TacgError, match="is block-causal"):
        model.loglikelihood([Instance("loglikelihood", {}, ("Hello", " you"), 0)])


@pytest.mark.filterwarnings("default")
def test_a_machine_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness asks for cuda:0 if the user names no device; a user who names it gets an error."""
    pytest.importorskip("lm_eval")
    from tacg.integrations.lm_eval import TacgLM

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert TacgLM("tiny", device="cuda:0").llm.model.device.type == "cpu"
    if not torch.backends.cuda.is_built():
        with pytest.raises(TacgError, match=r"The device 'cuda' cannot be used here: .*`tacg doctor`"):
            TacgLM("tiny", device="cuda")
    for wrong in ({"batch_size": 0}, {"batch_size": "many"}, {"mc_num": "x"}, {"max_batch_size": -1}):
        with pytest.raises(TacgError, match=f"`{next(iter(wrong))}` must be"):
            TacgLM("tiny", **wrong)  # type: ignore[arg-type]


def test_a_mistake_in_the_harness_is_one_line() -> None:
    pytest.importorskip("lm_eval")
    words = ["-m", "tacg.integrations.lm_eval", "run", "--model", "tacg", "--tasks", "arc_easy", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, *words, "--model_args", "pretrained=tiny,policy=tagc"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.splitlines()[-1].startswith("error: Unknown policy 'tagc'. Did you mean 'tacg'?")


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
