"""`LLM`: prompts of every kind, and outputs in their order."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING

import pytest
import torch

import tacg
from tacg import templates
from tacg.experiments.evaluate import evaluate
from tacg.models.tiny import write_checkpoint
from tacg.tasks import get_task

if TYPE_CHECKING:
    from pathlib import Path

SHORT = {"gen_length": 16, "block_length": 8}


def test_prompts_of_every_kind(llm: tacg.LLM) -> None:
    text = llm.generate("Hi", **SHORT)
    chat = llm.generate([{"role": "user", "content": "Hi"}], **SHORT)
    ids = llm.generate(llm.encode("Hi"), **SHORT)
    assert isinstance(text, tacg.Output)
    assert text == chat == ids
    raw = llm.generate("Hi", chat=False, **SHORT)
    assert raw.prompt_tokens == 2 < text.prompt_tokens
    several = llm.generate(["Hi", "Ho", "Hi"], **SHORT, batch_size=2)
    assert several[0] == several[2] == text
    assert several[1] != text


def test_the_template_is_llamas() -> None:
    llm = tacg.load("tiny")
    ids = llm.encode([{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Hi"}])
    assert llm.tokenizer.decode(ids, special=True) == (
        "<|startoftext|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_text_ends_at_the_first_end(llm: tacg.LLM) -> None:
    assert llm.text([*llm.tokenizer.encode("yes"), 5, *llm.tokenizer.encode("no"), 0]) == "yes"


def test_outputs_arrive_as_they_finish(llm: tacg.LLM) -> None:
    seen: dict[int, tacg.Output] = {}
    outputs = llm.generate(["a", "b", "c"], **SHORT, on_output=seen.__setitem__)
    assert outputs == [seen[0], seen[1], seen[2]]
    assert outputs[0].text == llm.text(outputs[0].tokens)


def test_seeds_are_one_for_all_or_one_each(llm: tacg.LLM) -> None:
    same = llm.generate(["Hi", "Hi"], **SHORT, temperature=1.0, seed=3)
    assert same[0] == same[1]
    each = llm.generate(["Hi", "Hi"], **SHORT, temperature=1.0, seed=[3, 4])
    assert each[0] == same[0] != each[1]
    with pytest.raises(tacg.TacgError, match="one per prompt, 2; got 3"):
        llm.generate(["Hi", "Hi"], **SHORT, seed=[1, 2, 3])


def test_streams_end_with_the_text(llm: tacg.LLM) -> None:
    events = list(llm.stream("Hi", **SHORT))
    assert isinstance(events[-1], tacg.Finished)
    assert events[-1].output == llm.generate("Hi", **SHORT)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "non-empty list"),
        ("", None),
        ([{"role": "user"}], "A message must be"),
        ([{"role": "user", "content": "x"}, 3], "A prompt must be"),
        (7, "`prompts` must be"),
        (["a", None], "A prompt must be"),
        ("\udcff", "not valid Unicode"),
    ],
)
def test_bad_prompts(llm: tacg.LLM, prompt: object, message: str | None) -> None:
    if message is None:
        assert llm.generate(prompt, **SHORT).tokens, "the template makes a prompt of an empty text"
        return
    with pytest.raises(tacg.TacgError, match=message):
        llm.generate(prompt, **SHORT)


def test_logits_check_their_input(llm: tacg.LLM) -> None:
    with pytest.raises(tacg.TacgError, match=r"`ids` must be int64 \[B, T\]"):
        llm.logits(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(tacg.TacgError, match="`valid` must be bool"):
        llm.logits(torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3))


def test_templates_cannot_reach_out(checkpoint: Path) -> None:
    """A checkpoint's template is untrusted code."""
    for source, message in (
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "access to attribute '__class__'"),
        ("{% for x %}", "chat template fails"),
        ("{{ messages[0].content + 3 }}", "chat template fails: can only concatenate"),
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{% include 'x' %}", "chat template fails"),
    ):
        (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
        with pytest.raises(tacg.TacgError, match=message):
            tacg.load(checkpoint).encode("Hi")
    older = {
        "chat_template": [
            {"name": []},
            {"name": "tool", "template": "?"},
            {"name": "default", "template": "{{ messages[0].role }}"},
        ],
        "bos_token": {"special": True},
    }
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(older))
    assert tacg.load(checkpoint).encode("Hi") == tacg.load(checkpoint).tokenizer.encode("user")
    (checkpoint / "tokenizer_config.json").write_text("{}")
    llm = tacg.load(checkpoint)
    assert llm.encode("Hi") == llm.tokenizer.encode("Hi")
    with pytest.raises(tacg.TacgError, match="no chat template"):
        llm.encode("Hi", chat=True)


def render(source: str, **values: object) -> str:
    return templates.render(source, {"messages": [{"role": "user", "content": "<b>é</b>"}], **values})


TEXT = "{% set text = 'a' * 1000000 %}"
GROWING = "{{% set n = namespace(x={}) %}}{{% for i in range(99) %}}{{% set n.x = {} %}}{{% endfor %}}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**12) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(40) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in [[1]] recursive %}{{ loop([i, i]) }}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{{ 10 ** (10 ** 10) }}",
        GROWING.format("'a'", "n.x ~ n.x"),
        GROWING.format("'a'", "n.x + n.x"),
        GROWING.format("[1]", "[n.x, n.x]") + "{{ n.x }}",
        GROWING.format("3", "n.x * n.x"),
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=9999999999) }}",
        "{{ strftime_now('%9999999999d') }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a'.ljust(9999999999) }}",
        "{{ messages | tojson(indent=9999999999) }}",
        TEXT + "{{ text.replace('a', text) }}",
        TEXT + "{{ text | replace('a', text) }}",
        TEXT + "{{ text.join(text) }}",
        TEXT + "{{ (text ~ '\n') | indent(4000000) }}",
        TEXT + "{{ [text] * 1000 }}",
        TEXT + "{{ ([text] * 1000) | string }}",
        TEXT + "{% for i in range(90000) %}{{ text }}{% endfor %}",
        TEXT + "{% set x %}{% for i in range(90000) %}{{ text }}{% endfor %}{% endset %}",
        TEXT + "{% for i in range(90000) %}{% if 'b' in text %}{% endif %}{% set x = text[1:] %}{% endfor %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 5000,
    ],
)
def test_templates_that_would_not_end_are_refused(source: str) -> None:
    with pytest.raises(tacg.TacgError, match=r"chat template (is refused|fails): "):
        render(source)


def test_the_bound_on_work_is_far_from_honest_templates() -> None:
    told = [{"role": role, "content": "word " * 2000} for role in ("user", "assistant")] * 200
    source = (
        "{% for m in messages %}{% if m.role != 'x' and 'zzz' not in m.content and messages | length > 3 %}"
        "{{ loop.index ~ m.role + m.content | trim }}{% if loop.last %}{{ messages[1:] | length }}{% endif %}"
        "{% endif %}{% endfor %}"
    )
    assert render(source, messages=told).endswith("399")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in 'abcde' %}{% if i == 'b' %}{% continue %}{% endif %}{{ i }}{% endfor %}", "acde"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<b>é</b>"}]'),
        ("{{ messages[0] | tojson(indent=1) }}", '{\n "role": "user",\n "content": "<b>é</b>"\n}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(True, None, (',', ':'), sort_keys=True) }}", '{"a":"\\u00e9","b":1}'),
        ("{% for i in 'abcde' %}{% if i == 'c' %}{% break %}{% endif %}{{ i }}{% endfor %}", "ab"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{{ bos_token is defined }} {{ bos_token }}", "False "),
        ("{% for m in messages %}{{ loop.length }}{{ loop.last }}{% else %}none{% endfor %}", "1True"),
        ("{{ 'abc'[::-1] ~ 'x'.upper() ~ '%03d' % 7 ~ '{}'.format(1) }}", "cbaX0071"),
    ],
)  # fmt: skip
def test_templates_get_what_hugging_face_gives(source: str, text: str) -> None:
    assert render(source) == text


def test_templates_know_the_day() -> None:
    before = datetime.date.today().isoformat()
    assert before <= render("{{ strftime_now('%Y-%m-%d') }}") <= datetime.date.today().isoformat()


@pytest.mark.parametrize(("family", "own"), [("sdar", 4), ("llada2", 32), ("fast-dllm-v2", 8), ("llada", 32)])
def test_blocks_are_the_models_own_where_nobody_says(tmp_path: Path, family: str, own: int) -> None:
    llm = tacg.load(write_checkpoint(tmp_path, family=family))
    said, unsaid = (llm.generate([7, 8, 9], "schedule", gen_length=33, **each) for each in ({"block_length": own}, {}))
    assert (said.tokens, said.commits) == (unsaid.tokens, unsaid.commits)
    problems = evaluate(llm, get_task("pocket-math"), "schedule", n=1, settings={"gen_length": 33})
    assert problems.row["settings"].get("block_length") == (32 if family == "llada" else None), "a task only suggests"
