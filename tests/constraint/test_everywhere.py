"""Constraints with real networks of every layout, in every cache, and one per prompt."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import tacg
from tacg.constraint.pattern import patterns_of, some_of
from tacg.models.tiny import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

CASES = {
    **{(family, cache): 8 for family in ("llada", "dream", "llada-moe") for cache in ("none", "prefix", "dual")},
    **{(family, cache): 32 for family in ("llada2",) for cache in ("none", "block")},
}
DATE, WORDS = r"\d{4}-\d{2}-\d{2}", "[a-z]{2,9}( [a-z]{2,9}){3,}"
OBJECT: dict[str, Any] = {
    "type": "object", "required": ["name", "size"], "additionalProperties": False,
    "properties": {"name": {"type": "string", "maxLength": 9}, "size": {"enum": [1, 20]}, "old": {"type": "boolean"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tacg.LLM]:
    families = {family for family, _ in CASES}
    paths = {family: tmp_path_factory.mktemp(family) for family in families}
    return {
        family: tacg.load(write_checkpoint(path, family=family, seed=2, liveliness=4.0))
        for family, path in paths.items()
    }


@pytest.mark.parametrize("policy", ["tacg", "d3llm"])
@pytest.mark.parametrize(("family", "cache"), CASES)
def test_every_cache_and_layout(models: dict[str, tacg.LLM], family: str, cache: str, policy: str) -> None:
    """Different constraints and none in one batch; each answer is as if it were alone, and caches change no promise."""
    llm, prompts = models[family], [[7 + row, 9, 11 + row][: 1 + row] * (row + 3) for row in range(4)]
    held: dict[str, Any] = {"regex": [DATE, None, WORDS, None], "schema": [None, OBJECT, None, None]}
    settings: dict[str, Any] = {"gen_length": 44, "block_length": CASES[family, cache], "cache": cache}
    outputs = llm.generate(prompts, policy, **settings, **held)
    assert re.fullmatch(DATE, outputs[0].text)
    assert {"name", "size"} <= json.loads(outputs[1].text).keys()
    assert re.fullmatch(WORDS, outputs[2].text)
    for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        own = {name: values[number] for name, values in held.items() if values[number] is not None}
        assert llm.generate(prompt, policy, **settings, **own) == output, "also if it has no constraint"


def test_one_constraint_per_prompt(llm: tacg.LLM) -> None:
    asked = {"regex": [None, "a|b", None], "choices": [["yes", "no"], None, None]}
    assert patterns_of(asked, 3) == ["yes|no", "a|b", None]
    assert patterns_of({"choices": ["yes", "no"], "schema": None}, 2) == ["yes|no"] * 2
    assert some_of({**asked, "seed": 1}, [2, 0], 3) == {
        "regex": [None, None],
        "choices": [None, ["yes", "no"]],
        "seed": 1,
    }
    assert some_of({"choices": ["yes", "no"]}, [0], 2) == {"choices": ["yes", "no"]}
    with pytest.raises(
        tacg.TacgError, match="`regex` must be one for all prompts or a list with one per prompt, 2; got 1"
    ):
        llm.generate(["Hello", "there"], regex=["a"])
    with pytest.raises(tacg.TacgError, match="got schema and regex"):
        llm.generate(["Hello", "there"], regex="a", schema=[None, {"type": "null"}])
    with pytest.raises(tacg.TacgError, match="`schema` must be a JSON schema"):
        llm.generate(["Hello", "there"], schema=[None, 3])


def test_files_of_prompts_say_what_each_answer_must_look_like(llm: tacg.LLM, tmp_path: Path) -> None:
    """Without a cluster: how each line is read, and lines that make no sense."""
    pytest.importorskip("ray")
    import numpy as np

    from tacg.scale.bulk import BulkReplica, _asked

    source = tmp_path / "in.jsonl"
    rows = [
        {"id": 4, "prompt": "a", "regex": DATE}, {"id": 2, "prompt": "b"}, {"id": 7, "prompt": "c", "schema": OBJECT},
        {"id": 1, "prompt": "d", "schema": json.dumps({"type": "null"})}, {"id": 3, "prompt": "e", "choices": ["yes"]},
    ]  # fmt: skip
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names, held = _asked(source, "id", "prompt")
    assert (names, sorted(held)) == ([4, 2, 7, 1, 3], [1, 3, 4, 7])
    settings = {"gen_length": 40, "block_length": 8, "regex": "[0-9]{3}"}
    replica = BulkReplica("tiny", "float32", "cpu", 1, "tacg", settings, "id", "prompt", held)
    batch = {"id": np.array(names), "prompt": np.array([row["prompt"] for row in rows])}
    texts = replica(batch)["text"]
    for pattern, text in zip((DATE, "[0-9]{3}", ".*", "null", "yes"), texts, strict=True):
        assert re.fullmatch(pattern, text)
    assert "size" in json.loads(texts[2])
    for wrong, told in (({"regex": "("}, "row 1: The regular"), ({"schema": "{"}, "row 1: `schema` is not valid JSON")):
        source.write_text(json.dumps({"id": 1, "prompt": "a", **wrong}))
        with pytest.raises(tacg.TacgError, match=told):
            _asked(source, "id", "prompt")
