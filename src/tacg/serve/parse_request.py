"""Parsing of requests: OpenAI's fields and ours, each checked, into prompts, a policy and decode settings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tacg.canvas import Canvas, Hole
from tacg.constraint import compile_pattern, pattern_of
from tacg.engine.constrained import begin
from tacg.engine.request import Decode, Request, resolve
from tacg.errors import TacgError, unknown
from tacg.policies import get_policy
from tacg.serve.body import NAME, Body, blame, brief, is_int, is_number
from tacg.serve.problems import SEEDS, Example
from tacg.serve.refusal import Refusal, bad

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tacg.constraint import Automaton
    from tacg.llm import LLM
    from tacg.policies import Policy
    from tacg.serve.limits import Limits

# OpenAI's fields that we do not support, each with the values that change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "top_p": (1,), "logit_bias": ({},),
}  # fmt: skip
NEUTRAL_CHAT: dict[str, tuple[Any, ...]] = NEUTRAL | {
    "audio": (), "function_call": ("none",), "functions": ([],), "metadata": ({},), "modalities": (["text"],),
    "moderation": (), "parallel_tool_calls": (), "prediction": (), "prompt_cache_options": (),
    "prompt_cache_retention": (), "reasoning_effort": (),
    "service_tier": ("auto", "default"), "store": (False,), "tool_choice": ("none",), "tools": ([],), "verbosity": (),
    "web_search_options": (),
}  # fmt: skip
NEUTRAL_COMPLETION: dict[str, tuple[Any, ...]] = NEUTRAL | {"best_of": (1,), "echo": (False,), "suffix": ("",)}
NAMES = ("user", "safety_identifier", "prompt_cache_key")  # identify the user; answers do not depend on them
# Fields of an assistant's message that clients send back to us.
EMPTY_IN_MESSAGE = ("annotations", "audio", "function_call", "name", "refusal", "tool_call_id", "tool_calls")
ROLES = ("system", "user", "assistant")
OWN_FIELDS = ("model", "policy", "deadline", "prompt", "messages", "template")
FIELDS = (*OWN_FIELDS[:-1], "stream", "stream_options", "stop", "max_tokens", "max_completion_tokens", "n", "logprobs")
SERVERS_OWN = ("scan",)  # clients may not choose how the machine computes
DECODE = {*Decode().knobs(), "suppress"}
STOPS, STOP_LENGTH, SPELLING = 16, 256, 64
CHARACTERS = 64  # per allowed prompt token; longer texts are not even encoded


@dataclass(frozen=True)
class Defaults:
    """The policy and settings that the server was started with, for requests that do not set them."""

    policy: str = "tacg"
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """A parsed request: every prompt is decoded `n` times.

    shown       the prompts as text, for traces and logs
    constraint  what every answer must match
    canvas      ids of a template, with the mask id in its holes; () for an answer from scratch
    problem     the problem that the prompt asks, so that the answer can be graded
    """

    prompts: tuple[tuple[int, ...], ...]
    shown: str
    policy: Policy
    decode: Decode
    deadline: float
    n: int = 1
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    constraint: Automaton | None = None
    canvas: tuple[int, ...] = ()
    problem: Example | None = None

    def rows(self) -> list[Request]:
        """One row per answer: n for the first prompt, n for the second, … Answers to a prompt differ by seed."""
        seeds = range(self.decode.seed, self.decode.seed + self.n)
        return [
            Request(prompt, self.policy, replace(self.decode, seed=seed), self.canvas, self.constraint)
            for prompt in self.prompts
            for seed in seeds
        ]

    def probed(self, probe: Policy) -> Ask:
        """The same request with a policy that wraps this one's."""
        return replace(self, policy=probe)


class Reader:
    """Parses requests to one model."""

    def __init__(self, llm: LLM, defaults: Defaults, limits: Limits) -> None:
        self._llm, self._defaults, self._limits = llm, defaults, limits
        _, decode = resolve(defaults.policy, dict(defaults.settings))  # raises now rather than at every request
        if decode.gen_length > limits.gen_length:
            raise TacgError(
                f"The default `gen_length` of requests is {decode.gen_length}, above the limit of "
                f"{limits.gen_length}: lower it with --set gen_length=…, or raise --max-length."
            )

    def chat(self, document: Any) -> Ask:
        """`/v1/chat/completions`."""
        body = Body(document)
        self._model(body, required=True)
        messages = self._messages(body)
        if not self._llm.tokenizer.chat_template:
            told = f"{self._llm.model.spec.name!r} has no chat template; use /v1/completions with a plain `prompt`."
            raise bad(told, "messages")
        _drop_names(body)
        body.drop_neutral(NEUTRAL_CHAT)
        pattern = self._format(body)
        logprobs = body.flag("logprobs")
        top = body.take(
            "top_logprobs", "0: only the chosen token's logprob is known", lambda value: is_int(value) and value == 0
        )
        if top is not None and not logprobs:
            raise bad("`top_logprobs` must come with `logprobs` true.", "top_logprobs")
        prompt = self._encode(messages, None, "messages")
        return self._ask(body, (prompt,), _written(messages), logprobs, pattern=pattern)

    def completion(self, document: Any) -> Ask:
        """`/v1/completions`."""
        body = Body(document)
        self._model(body, required=True)
        given = body.take("prompt", "a text, ids, or a list of these", lambda value: isinstance(value, str | list))
        if given is None or given == []:
            raise bad("`prompt` must be a text, ids, or a non-empty list of these; it is missing.", "prompt")
        many = given if isinstance(given, list) and not is_int(given[0]) else [given]
        if len(many) > self._limits.answers:
            raise bad(f"`prompt` must hold at most {self._limits.answers} prompts, got {len(many)}.", "prompt")
        _drop_names(body)
        body.drop_neutral(NEUTRAL_COMPLETION)
        wants = "0 (the chosen token's): no others are known"
        logprobs = body.take("logprobs", wants, lambda value: is_int(value) and value == 0)
        prompts = tuple(self._encode(each, False, "prompt") for each in many)
        shown = "\n".join(each if isinstance(each, str) else str(each) for each in many)
        return self._ask(body, prompts, shown, logprobs is not None)

    def decode(self, document: Any) -> Ask:
        """`/v1/decode`: a `prompt` or `messages`, policy, settings, perhaps a `template`, a `response_format` and a
        `problem` (task and seed), whose answer is graded.
        """
        body = Body(document)
        self._model(body, required=False)
        if ("prompt" in body) == ("messages" in body):
            raise bad("Give either `prompt`, a text, or `messages`.", "prompt")
        template = body.take("chat", "true or false", lambda value: isinstance(value, bool))
        if "messages" in body:
            if template is not None:
                raise bad("`chat` must come with a `prompt`: `messages` are always put into the template.", "chat")
            messages = self._messages(body)
            prompt, shown = self._encode(messages, None, "messages"), _written(messages)
        else:
            shown = body.take("prompt", "a text", lambda value: isinstance(value, str))
            prompt = self._encode(shown, template, "prompt")
        problem, pattern, canvas = _problem(body, shown), self._format(body), self._template(body)
        ask = self._ask(body, (prompt,), shown, False, openai=False, pattern=pattern, canvas=canvas)
        return replace(ask, problem=problem)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _model(self, body: Body, *, required: bool) -> None:
        name, mine = body.take("model", "a text", lambda value: isinstance(value, str)), self._llm.model.spec.name
        if name is None and required:
            raise bad(f"`model` is missing; this server has {mine!r}.", "model")
        if name not in (None, mine):
            raise Refusal(404, str(unknown("model", name[:NAME], [mine])), param="model", code="model_not_found")

    def _messages(self, body: Body) -> list[dict[str, str]]:
        given = body.take("messages", "a list of messages", lambda value: isinstance(value, list))
        if not given:
            raise bad("`messages` must be a non-empty list of messages.", "messages")
        return [_message(number, each) for number, each in enumerate(given)]

    def _encode(self, prompt: Any, chat: bool | None, param: str) -> tuple[int, ...]:
        if isinstance(prompt, list) and not (param == "messages" or all(is_int(each) for each in prompt)):
            raise bad("`prompt` must be a text, ids, or a list of these.", param)
        if not isinstance(prompt, str | list):
            raise bad(f"`prompt` must be a text, ids, or a list of these, got {brief(prompt)}.", param)
        most = self._limits.prompt_tokens
        if (size := _characters(prompt)) > most * CHARACTERS:
            told = f"The prompt must have at most {most * CHARACTERS} characters ({most} tokens), got {size}."
            raise bad(told, param, "context_length_exceeded")
        try:
            ids = tuple(self._llm.encode(prompt, chat))
        except TacgError as error:
            raise bad(str(error)[:1000], param) from None
        if len(ids) > most:
            told = f"The prompt must have at most {most} tokens, got {len(ids)}; shorten it."
            raise bad(told, param, "context_length_exceeded")
        return ids

    def _ask(
        self, body: Body, prompts: tuple[tuple[int, ...], ...], shown: str, logprobs: bool, *, openai: bool = True,
        pattern: str | None = None, canvas: tuple[int, ...] = (),
    ) -> Ask:  # fmt: skip
        limits = self._limits
        wants = f"a number of seconds, above 0 and at most {limits.deadline:g}"
        deadline = body.take(
            "deadline", wants, lambda value: is_number(value) and 0 < value <= limits.deadline, limits.deadline
        )
        options = self._options(body, len(prompts)) if openai else {}
        policy, decode = self._settings(body, openai=openai)
        if canvas:  # as in `LLM.fill`: the template has its own length, and text after a hole must stay
            decode = replace(decode, gen_length=len(canvas), early_stop=False)
        ask = Ask(prompts, shown, policy, decode, float(deadline), logprobs=logprobs, canvas=canvas, **options)
        if pattern is not None:
            ask = self._held_to(ask, pattern)
        try:
            for row in ask.rows()[:: ask.n]:
                row.check(self._llm.model.spec)
        except TacgError as error:
            raise blame(error, {*DECODE, "prompt"}) from None
        return ask

    def _template(self, body: Body) -> tuple[int, ...]:
        """The ids of a `template`, with the mask id in its holes; none if there is no template."""
        wants = "a text with holes, such as ⟨8⟩ for eight tokens"
        text = body.take("template", wants, lambda value: isinstance(value, str))
        if text is None:
            return ()
        most, spec = self._limits.gen_length, self._llm.model.spec
        try:
            parsed = Canvas.parse(text)
            holes = sum(part.length for part in parsed.parts if isinstance(part, Hole))
            if len(text) > most * CHARACTERS or holes > most:
                raise bad(f"`template` must have at most {most} tokens on this server.", "template")
            ids = tuple(parsed.ids(self._llm.tokenizer.encode, spec.mask_id))
        except TacgError as error:
            raise bad(str(error)[:1000], "template") from None
        if len(ids) > most:
            raise bad(f"`template` must have at most {most} tokens on this server, got {len(ids)}.", "template")
        return ids

    def _format(self, body: Body) -> str | None:
        """The `response_format` as a regular expression; None for text."""
        wants = "an object with a `type`: text, json_object or json_schema"
        given = body.take("response_format", wants, lambda value: isinstance(value, dict))
        kind = given and given.get("type")
        if given is None or kind == "text":
            return None
        schema: Any = {"type": "object"}
        if kind == "json_schema":
            named = given.get("json_schema")
            schema = named.get("schema") if isinstance(named, dict) else None
            if not isinstance(schema, dict):
                raise bad("`response_format.json_schema.schema` must be a JSON schema, an object.", "response_format")
        elif kind != "json_object":
            raise bad(f"`response_format` must be {wants}; got {brief(kind)}.", "response_format")
        try:
            return pattern_of({"schema": schema})
        except TacgError as error:
            raise bad(str(error)[:1000], "response_format") from None

    def _held_to(self, ask: Ask, pattern: str) -> Ask:
        """The same request with answers constrained to match; raises if no answer of this length can."""
        llm, spec = self._llm, self._llm.model.spec
        try:
            made = compile_pattern(pattern, llm.tokenizer, spec, ask.decode.suppress, holes=bool(ask.canvas))
            ask = replace(ask, constraint=made)
            row = ask.rows()[0]
            begin(row, list(ask.canvas) or [spec.mask_id] * row.decode.gen_length, spec.mask_id)
        except TacgError as error:
            raise bad(str(error)[:1000], "response_format") from None
        return ask

    def _options(self, body: Body, prompts: int) -> dict[str, Any]:
        """n, stop and the streaming options."""
        most = self._limits.answers // prompts
        n = body.take("n", f"a whole number in [1, {most}]", lambda value: is_int(value) and 1 <= value <= most, 1)
        wants = f"a text or up to {STOPS} texts, none empty or longer than {STOP_LENGTH} characters"
        stop = body.take("stop", wants, _right_stop, ())
        stream = body.flag("stream")
        given = body.take("stream_options", "an object", lambda value: isinstance(value, dict))
        if given is not None and not stream:
            raise bad("`stream_options` must come with `stream` true.", "stream_options")
        options = Body(given or {})
        include_usage = options.flag("include_usage")
        options.drop_neutral({"include_obfuscation": (False,)})
        options.settings(())
        return {
            "n": n, "stop": (stop,) if isinstance(stop, str) else tuple(stop), "stream": stream,
            "include_usage": include_usage,
        }  # fmt: skip

    def _settings(self, body: Body, *, openai: bool) -> tuple[Policy, Decode]:
        """The policy and the decode: settings of the request override those of the server."""
        spelling = body.take("policy", f"a policy's name of at most {SPELLING} characters", _right_spelling)
        length = self._length(body) if openai else None
        try:
            policy = get_policy(spelling or self._defaults.policy)
        except TacgError as error:
            raise bad(str(error), "policy") from None
        known = (DECODE - set(SERVERS_OWN)) | policy.knobs().keys()
        said = body.settings(known, FIELDS if openai else OWN_FIELDS)
        said = {name: value for name, value in said.items() if value is not None or name not in ("seed", "temperature")}
        if length is not None:
            if said.get("gen_length", length) != length:
                raise bad("`gen_length` and `max_tokens` must be equal if both are given.", "gen_length")
            said["gen_length"] = length
        try:
            policy, decode = resolve(
                spelling or self._defaults.policy, self._kept(spelling, policy) | _suppressed(said)
            )
        except TacgError as error:
            raise blame(error, said) from None
        self._within(decode)
        return policy, decode

    def _kept(self, spelling: str | None, policy: Policy) -> dict[str, Any]:
        """The server's settings that the requested policy has as knobs; none if the request names a preset."""
        if spelling is not None and ":" in spelling:
            return {}
        known = DECODE | policy.knobs().keys()
        return {name: value for name, value in self._defaults.settings.items() if name in known}

    def _length(self, body: Body) -> int | None:
        """The maximum number of tokens, under either of OpenAI's names."""
        names = ("max_tokens", "max_completion_tokens")
        values = [body.take(name, "a whole number >= 1", lambda value: is_int(value) and value >= 1) for name in names]
        given = {value for value in values if value is not None}
        if len(given) > 1:
            raise bad("`max_tokens` and `max_completion_tokens` must be equal if both are given.", "max_tokens")
        return int(given.pop()) if given else None

    def _within(self, decode: Decode) -> None:
        """Refuse settings that exceed the limits or leave no token to write."""
        most, spec = self._limits.gen_length, self._llm.model.spec
        if decode.gen_length > most:
            told = f"`gen_length` (`max_tokens`) must be at most {most} on this server, got {decode.gen_length}."
            raise bad(told, "max_tokens")
        if (decode.steps or 1) > most:
            raise bad(f"`steps` must be at most {most} on this server, got {decode.steps}.", "steps")
        if decode.suppress and len({*decode.suppress, *spec.unwritable}) >= spec.vocab_size:
            raise bad("`suppress` must leave some token to write.", "suppress")


def _drop_names(body: Body) -> None:
    for name in NAMES:
        body.take(name, "a text", lambda value: isinstance(value, str))


def _problem(body: Body, shown: str) -> Example | None:
    """The `problem` that the prompt asks; refused if its prompt is another one."""
    wants = "an object with `task`, a text, and `seed`, a whole number >= 0"
    given = body.take(
        "problem", wants,
        lambda value: isinstance(value, dict) and set(value) == {"task", "seed"} and isinstance(value["task"], str)
        and is_int(value["seed"]) and 0 <= value["seed"] < SEEDS,
    )  # fmt: skip
    if given is None:
        return None
    example = Example(given["task"], given["seed"])
    if example.problem.prompt != shown:
        raise bad("`prompt` must be that of the `problem`: leave `problem` out for another one.", "problem")
    return example


def _message(number: int, message: Any) -> dict[str, str]:
    """One message, reduced to role and text."""
    where = f"messages.{number}"
    if not isinstance(message, dict):
        raise bad(f"`{where}` must be an object with `role` and `content`, got {brief(message)}.", where)
    role, content = message.get("role"), message.get("content")
    for name, value in message.items():
        if name not in ("role", "content") and not (name in EMPTY_IN_MESSAGE and value in (None, [])):
            raise bad(f"`{where}` must have only `role` and `content`, got {name[:NAME]!r} as well.", where)
    role = "system" if role == "developer" else role  # the newer name for the same role
    if role not in ROLES:
        told = f"`{where}.role` must be one of {', '.join(ROLES)}, got {brief(role)}."
        raise bad(told, f"{where}.role")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise bad(f"`{where}.content` must be a text, or parts of the type text.", f"{where}.content")
    return {"role": role, "content": content}


def _characters(prompt: str | list[Any]) -> int:
    """The number of characters in a text or in messages; 0 for ids."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(each["content"]) for each in prompt if isinstance(each, dict))


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.keys() == {"type", "text"}
        and part["type"] == "text"
        and isinstance(part["text"], str)
    )


def _written(messages: list[dict[str, str]]) -> str:
    """A conversation as one text; a single message without its role."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{each['role']}: {each['content']}" for each in messages)


def _right_stop(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return (
        isinstance(texts, list)
        and len(texts) <= STOPS
        and all(isinstance(each, str) and 0 < len(each) <= STOP_LENGTH for each in texts)
    )


def _right_spelling(value: Any) -> bool:
    """Refuse preset files: they are on the server's disk, and only its operator may name them."""
    return isinstance(value, str) and 0 < len(value) <= SPELLING and not value.endswith(".toml")


def _suppressed(said: dict[str, Any]) -> dict[str, Any]:
    """Settings with the ids to suppress as a tuple."""
    ids = said.get("suppress")
    return {**said, "suppress": tuple(ids)} if isinstance(ids, list) else said
