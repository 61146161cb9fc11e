"""The official client works unchanged with a real server; unsupported options are refused, not ignored."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import httpx2
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

import tacg
from tacg.models.tiny import write_checkpoint
from tests.serve.conftest import SHORT, running, wait_until

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <there>"}]
SETTINGS = dict(SHORT.settings)


def test_chat_gives_what_the_library_gives(client: OpenAI, llm: tacg.LLM) -> None:
    alone = llm.generate(MESSAGES, "tacg+klass", **SETTINGS, k_extra=1)
    extra = {"policy": "tacg+klass", "k_extra": 1}
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body=extra)
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", alone.text)
    assert choice.finish_reason == {"eos": "stop", "length": "length"}[alone.finish_reason]
    assert answer.usage is not None
    used = answer.usage.model_dump()
    assert used["prompt_tokens"] == alone.prompt_tokens
    assert used["completion_tokens"] == len(alone.tokens)
    assert used["total_tokens"] == alone.prompt_tokens + len(alone.tokens)
    assert (used["steps"], used["forwards"], used["tpf"]) == (alone.steps, alone.forwards, alone.tpf)
    again = [*MESSAGES, choice.message, {"role": "user", "content": [{"type": "text", "text": "And now?"}]}]
    assert client.chat.completions.create(model="tiny", messages=again).choices, "its own answer can be sent back"
    named = [{"role": "developer", "content": "Be brief."}, MESSAGES[1]]
    same = client.chat.completions.create(
        model="tiny", messages=named, user="u1", prompt_cache_key="k", extra_body=extra
    )
    assert same.choices[0].message.content == alone.text


def test_a_model_with_a_qwen_body(tmp_path: Path) -> None:
    """SDAR, which sees by blocks of 4: several clients at once get what the library gives."""
    sdar, own = tacg.load(write_checkpoint(tmp_path, family="sdar")), {"block_length": None}
    questions = [[{"role": "user", "content": f"Hello {word}"}] for word in ("you", "there", "all of you")]
    alone = [sdar.generate(each, "tacg", **SETTINGS | own) for each in questions]
    with running(sdar) as made, ThreadPoolExecutor(3) as pool:
        create = made.client.chat.completions.create
        asked = {"model": sdar.model.spec.name, "extra_body": own}
        answers = list(pool.map(lambda each: create(messages=each, **asked), questions))
        with made.http() as http:
            examples = http.get("/v1/tacg/info").json()["examples"]
    assert not any("block_length" in each["settings"] for each in examples), "those are the model's"
    assert [each.choices[0].message.content for each in answers] == [each.text for each in alone]
    assert [each.usage.model_dump()["steps"] for each in answers if each.usage] == [each.steps for each in alone]


@pytest.mark.parametrize("stop", [None, "e", ["zz", "o"]])
def test_streams_are_the_whole_answer_in_pieces(client: OpenAI, stop: object) -> None:
    asked = {"model": "tiny", "messages": MESSAGES, "stop": stop, "max_tokens": 40, "seed": 3, "temperature": 0.7}
    whole = client.chat.completions.create(**asked, n=2, logprobs=True)
    chunks = list(
        client.chat.completions.create(**asked, n=2, logprobs=True, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    for index, choice in enumerate(whole.choices):
        parts = [each for chunk in chunks for each in chunk.choices if each.index == index]
        assert parts[0].delta.role == "assistant"
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
        told = [token for part in parts if part.logprobs for token in part.logprobs.content or []]
        assert choice.logprobs is not None
        assert told == choice.logprobs.content
        assert all(token.logprob <= 0 and math.isfinite(token.logprob) for token in told)
        for each in [stop] if isinstance(stop, str) else stop or []:
            assert each not in choice.message.content
    assert whole.choices[0].message.content != whole.choices[1].message.content, "n answers have n seeds"


def test_completions_take_texts_and_ids(client: OpenAI, llm: tacg.LLM) -> None:
    prompts = ["One two", "Three"]
    alone = llm.generate(prompts, "confidence", chat=False, **SETTINGS | {"gen_length": 16})
    asked = {"model": "tiny", "max_tokens": 16, "extra_body": {"policy": "confidence"}}
    answer = client.completions.create(**asked, prompt=prompts, logprobs=0)
    assert [choice.text for choice in answer.choices] == [output.text for output in alone]
    assert answer.choices[0].logprobs is not None
    assert "".join(answer.choices[0].logprobs.tokens or []) == alone[0].text
    assert answer.choices[0].logprobs.text_offset == list(range(len(alone[0].text)))
    ids = client.completions.create(**asked, prompt=llm.encode("One two", chat=False))
    assert ids.choices[0].text == alone[0].text
    streamed = client.completions.create(**asked, prompt=prompts, stream=True)
    texts = ["", ""]
    for chunk in streamed:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [output.text for output in alone]


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"polcy": "tacg"}, "polcy", "'policy'"),
        ({"treshold": 0.5}, "treshold", "'threshold'"),
        ({"policy": "tagc"}, "policy", "'tacg'"),
        ({"policy": "tacg:secrets.toml"}, "policy", "policy's name"),
        ({"threshold": 2}, "threshold", "in [0, 1]"),
        ({"threshold": "high"}, "threshold", "float"),
        ({"top_p": 0.5}, "top_p", "not supported"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}},
            "response_format",
            "uses not",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "a" * 99}}}},
            "response_format",
            "`gen_length` must be at least",
        ),
        ({"logprobs": True, "top_logprobs": 3}, "top_logprobs", "must be 0"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "equal"),
        ({"max_tokens": 5, "gen_length": 6}, "gen_length", "equal"),
        ({"max_tokens": 100_000}, "max_tokens", "at most 1024"),
        ({"max_tokens": True}, "max_tokens", "whole number"),
        ({"n": 17}, "n", "[1, 16]"),
        ({"seed": -1}, "seed", ">= 0"),
        ({"temperature": -0.1}, "temperature", ">= 0"),
        ({"temperature": 10**400}, "temperature", ">= 0"),
        ({"max_tokens": 10**12, "steps": 1, "block_length": 1}, "steps", "number of blocks"),
        ({"stop": ""}, "stop", "none empty"),
        ({"stream": 1}, "stream", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "`stream`"),
        ({"scan": "triton"}, "scan", "Unknown field"),
        ({"suppress": list(range(200))}, "suppress", "suppress"),
        ({"messages": []}, "messages", "non-empty"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role", "system, user, assistant"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content", "a text"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0", "'name'"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "at most 4096 tokens"),
        ({"model": None}, "model", "missing"),
        ({"deadline": 0}, "deadline", "seconds"),
    ],
)
def test_what_cannot_be_done_is_refused(client: OpenAI, fields: dict[str, object], param: str, word: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]} | fields
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    error = caught.value.body
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert word in error["message"]


def test_values_that_change_nothing_are_taken(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, top_p=1, frequency_penalty=0, presence_penalty=0.0, logit_bias={}, n=1,
        tools=[], response_format={"type": "text"}, store=False, seed=None, user=openai.omit,
    )  # fmt: skip
    assert answer.choices[0].message.content


def test_other_models_are_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def lines_of(http: httpx2.Client, **body: object) -> list[dict[str, object]]:
    with http.stream("POST", "/v1/decode", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        return [json.loads(line[6:]) for line in answer.iter_lines() if line]


def test_decode_streams_the_lines_of_a_trace(http: httpx2.Client, llm: tacg.LLM, tmp_path) -> None:  # type: ignore[no-untyped-def]
    lines = lines_of(http, prompt="Hello", policy="confidence", threshold=0.6)
    for _ in tacg.trace.record(llm, "Hello", "confidence", tmp_path / "t", settings={**SETTINGS, "threshold": 0.6}):
        pass
    recorded = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
    assert lines == recorded
    page = http.post("/v1/replay", json={"traces": [lines, lines]})
    assert page.status_code == 200
    assert "attachment" in page.headers["content-disposition"]
    data = json.loads(page.text.split('type="application/json">')[1].split("</script>")[0])
    assert [each["end"] for each in data] == [recorded[-1]] * 2
    for wrong in ([], [[]], [[{"kind": "step"}]], [[{"kind": "start"}, {"kind": "step"}]], [lines] * 3, "x"):
        assert http.post("/v1/replay", json={"traces": wrong}).status_code == 400


def test_decode_fills_templates(http: httpx2.Client, llm: tacg.LLM, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """As `llm.fill` does, also with a schema that the whole text must satisfy."""
    template = '{"number": ⟨4⟩, "word": ⟨6⟩}'
    schema = {"type": "object", "properties": {"number": {"type": "integer"}, "word": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    canvas, settings = tacg.Canvas.parse(template, "Hello"), {**SETTINGS, "early_stop": False}
    for asked, held in (({}, {}), ({"response_format": form}, {"schema": schema})):
        lines = lines_of(http, prompt="Hello", template=template, early_stop=False, **asked)
        for _ in tacg.trace.record(llm, canvas, "tacg", tmp_path / "t", settings={**settings, **held}):
            pass
        recorded = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
        assert lines == recorded
    assert json.loads(str(lines[-1]["text"])).keys() == {"number", "word"}
    for wrong, told in (
        ("no hole", "must have a hole"), ("⟨0⟩", "at least 1 token"), ("⟨999999⟩", "at most"),
        ("x⟨2⟩" * 500, "at most"), (3, "a text with holes"),
    ):  # fmt: skip
        refused = http.post("/v1/decode", json={"prompt": "Hello", "template": wrong}).json()["error"]
        assert refused["param"] == "template"
        assert told in refused["message"]
    contradicts = {"prompt": "Hello", "template": "[⟨4⟩", "response_format": form}
    assert "No filling of the" in http.post("/v1/decode", json=contradicts).json()["error"]["message"]
    chat = {"model": "tiny", "messages": MESSAGES, "template": template}
    assert http.post("/v1/chat/completions", json=chat).status_code == 400


def test_info_health_and_metrics(http: httpx2.Client) -> None:
    info = http.get("/v1/tacg/info").json()
    knobs = {each["name"]: {knob["name"]: knob for knob in each["knobs"]} for each in info["policies"]}
    assert {"tacg", "confidence", "tacg+klass"} <= knobs.keys()
    assert (knobs["confidence"]["threshold"]["high"], knobs["confidence"]["threshold"]["type"]) == (1, "float")
    assert info["defaults"] == {"policy": "tacg", "settings": SETTINGS}
    for example in info["examples"]:
        lines = lines_of(http, prompt=example["prompt"], **example["settings"] | {"steps": 8})
        assert lines[-1]["kind"] == "end"
    assert http.get("/health").json() == {"status": "ok"}
    told = http.get("/metrics").text
    assert 'tacg_requests_total{endpoint="/v1/decode",status="200"}' in told
    wait_until(lambda: "tacg_rows_running 0" in http.get("/metrics").text)  # the last row leaves after its last line
    assert http.get("/v1/nothing").json()["error"]["code"] == "not_found"
    assert http.get("/v1/completions").status_code == 405


class Answer(BaseModel):
    ok: bool
    kind: Literal["a", "b"]
    count: int = Field(ge=0, le=99)


@pytest.mark.parametrize("policy", ["tacg", "confidence", "wino"])
def test_answers_have_the_form_that_is_asked_for(client: OpenAI, policy: str) -> None:
    """The client's own helper makes pydantic objects of them; a stream says the same."""
    asked: dict[str, object] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 96, "temperature": 0.9}
    for seed in range(4):
        more = {"seed": seed, "extra_body": {"policy": policy}}
        answer = client.chat.completions.parse(**asked, **more, response_format=Answer)
        assert isinstance(answer.choices[0].message.parsed, Answer)
        with client.chat.completions.stream(**asked, **more, response_format=Answer) as stream:
            final = stream.get_final_completion()
        assert final.choices[0].message.content == answer.choices[0].message.content
        free = client.chat.completions.create(**asked, **more, response_format={"type": "json_object"})
        assert isinstance(json.loads(free.choices[0].message.content or ""), dict)
