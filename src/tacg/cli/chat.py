"""Chat with a model in the terminal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tacg.cli.common import (
    DEFAULT_MODEL,
    CacheMode,
    Compiled,
    Delay,
    Device,
    Dtype,
    Graphed,
    Json,
    Model,
    PolicyName,
    Quantize,
    SettingOptions,
    Verifier,
    Watch,
    hint_at_tasks,
    load_model,
    own_policy,
    parse_settings,
    parse_value,
)
from tacg.cli.shown import print_json
from tacg.cli.typed import typed_lines
from tacg.errors import TacgError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tacg.engine.events import Event, Step
    from tacg.llm import LLM
    from tacg.text import Message
    from tacg.types import Output

EPILOG = """[bold]Examples[/bold]

tacg chat

tacg chat --model ./LLaDA-8B-Instruct --policy tacg:llada/gsm8k --watch

tacg tasks pocket-math                          questions that pocket can answer, to copy

tacg tasks pocket-math --bare | tacg chat --json"""

COMMANDS = {
    "/policy": ("NAME", "use this policy from now on; without a name: list the policies"),
    "/set": ("KNOB=VALUE …", "set knobs of the policy or the decode; without any: show their values"),
    "/watch": ("", "turn the live view of the canvas on or off"),
    "/save": ("FILE", "save the conversation: as JSON if the file ends in .json, else as Markdown"),
    "/clear": ("", "forget the conversation"),
    "/help": ("", "show this list"),
    "/quit": ("", "leave; Ctrl-D does the same"),
}


def main(
    model: Model = DEFAULT_MODEL,
    verifier: Verifier = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    quantize: Quantize = None,
    compiled: Compiled = False,
    graphs: Graphed = False,
    policy: PolicyName = "tacg",
    setting: SettingOptions = None,
    cache: CacheMode = None,
    watch: Watch = False,
    delay: Delay = 0.05,
    as_json: Json = False,
) -> None:
    """Answer each line, given the conversation so far; commands begin with a slash."""
    settings = parse_settings(policy, setting, cache)
    llm = load_model(
        model, dtype=dtype, device=device, verifier=verifier, quantize=quantize, compiled=compiled, graphs=graphs
    )
    if not llm.tokenizer.chat_template:
        raise TacgError(f"{model!r} has no chat template, so it cannot follow a conversation; use `tacg generate`.")
    talk = Conversation(llm, model, policy, settings, watch, delay)
    _note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves.")
    for line in typed_lines("› ", talk.completions, lambda: _note("\n/quit or Ctrl-D leaves.")):
        try:
            talk.take(line)
        except TacgError as error:
            typer.secho(f"error: {error}", fg="red", err=True)
        except KeyboardInterrupt:
            talk.interrupt()
        if talk.over:
            break
    if as_json:
        print_json(talk.document())


@dataclass
class Conversation:
    """A conversation and how it is decoded."""

    llm: LLM
    model: str
    policy: str
    settings: dict[str, Any]
    watching: bool
    delay: float
    messages: list[Message] = field(default_factory=list)
    certain: str = ""  # the part of the current answer that cannot change any more
    said: str = ""  # and the part that was printed
    over: bool = False
    hinted: bool = False  # whether the user was told what the model knows; once is enough
    saved: set[Path] = field(default_factory=set)

    def take(self, line: str) -> None:
        """Answer a line, or do what it commands."""
        line = line.strip()
        if line.startswith("/"):
            name, _, rest = line.partition(" ")
            if name not in COMMANDS:
                raise unknown("command", name, COMMANDS)
            getattr(self, "_" + name[1:])(rest.strip())
        elif line:
            self._answer(line)

    def _answer(self, question: str) -> None:
        from tacg.engine.loop import refuse_failures

        self.hinted = self.hinted or hint_at_tasks(self.model, [question])
        self.messages.append({"role": "user", "content": question})
        self.certain = self.said = ""
        try:
            output = self._decode()
            refuse_failures([output])
        except TacgError:
            self.messages.pop()
            raise
        self._say(output.text)
        self._keep(output.text)
        _note(
            f"{output.policy} · {len(output.tokens)} tokens · {output.steps} steps · "
            f"{output.tpf:.2f} tokens per forward · {output.finish_reason}"
        )

    def _decode(self) -> Output:
        """The answer to the last message; without /watch, what is certain of it is printed at once."""
        from tacg.engine.events import Finished, Step

        for event in self._events():
            if isinstance(event, Step):
                self.certain = settled(self.llm, event)
                if not self.watching:
                    self._say(self.certain)
            elif isinstance(event, Finished):
                output = event.output
        return output

    def _events(self) -> Iterator[Event]:
        events = self.llm.stream(self._fitting(), self.policy, chat=True, **self.settings)
        if not self.watching:
            return events
        from tacg.cli.watch import watched

        return watched(self.llm, events, self.policy, self.delay)

    def _say(self, text: str) -> None:
        """Print the new part of the answer."""
        known = text.startswith(self.said)  # a tokenizer may spell ids differently once more of them are there
        typer.echo(text[len(self.said) :] if known else f"\n{text}", nl=False)
        self.said = text

    def _keep(self, text: str) -> None:
        typer.echo()
        self.messages.append({"role": "assistant", "content": text})

    def interrupt(self) -> None:
        """Stop the answer. Its certain part stays in the conversation; if there is none, the question is dropped."""
        if self.messages and self.messages[-1]["role"] == "user":
            if self.certain:
                self._say(self.certain)
                self._keep(self.certain)
            else:
                self.messages.pop()
        _note("stopped")

    def _fitting(self) -> list[Message]:
        """The conversation, without its oldest turns if all of it would not fit the model."""
        from tacg.engine.request import resolve

        room = self.llm.model.spec.max_length - resolve(self.policy, self.settings)[1].gen_length
        first = 0
        while first + 2 < len(self.messages) and len(self.llm.encode(self.messages[first:])) > room:
            first += 2
        if first:
            _note(
                f"the first {first} messages are left out: they do not fit into the model "
                "(/clear starts a new conversation)"
            )
        return self.messages[first:]

    def completions(self, before: str) -> list[str]:
        """The words that may come next in a line that begins like this."""
        from tacg.policies import policy_names

        if before.startswith("/policy "):
            return policy_names()
        if before.startswith("/set "):
            return [f"{name}=" for name in self._knobs()]
        return list(COMMANDS) if not before else []

    def document(self) -> dict[str, Any]:
        """The conversation and how it was decoded last."""
        return {"model": self.model, "policy": self.policy, "settings": self.settings, "messages": self.messages}

    def _knobs(self) -> dict[str, Any]:
        """Every knob with its current value."""
        from tacg.engine.request import resolve

        policy, decode = resolve(self.policy, self.settings)
        return policy.values() | decode.values()

    def _policy(self, name: str) -> None:
        from tacg.experiments.grid import takes
        from tacg.policies import policy_names

        if not name:
            _note(f"{self.policy}; available: {', '.join(policy_names())} (and tacg+NAME, NAME:PRESET)")
            return
        name = own_policy(name)
        mine = takes(name, self.settings)
        dropped = [f"{knob}={value}" for knob, value in self.settings.items() if knob not in mine]
        self.policy, self.settings = name, mine
        _note(name + (f" (it has no {', '.join(dropped)})" if dropped else ""))

    def _set(self, pairs: str) -> None:
        from tacg.engine.request import resolve
        from tacg.policies import get_policy

        known = get_policy(self.policy).knobs()
        changed = self.settings | dict(parse_value(known, pair) for pair in pairs.split())
        resolve(self.policy, changed)  # settings that do not go together are refused here, not at the next answer
        self.settings = changed
        shown = changed if pairs else self._knobs()
        _note("  ".join(f"{name}={'none' if value is None else value}" for name, value in shown.items()))

    def _watch(self, rest: str) -> None:
        self.watching = not self.watching
        _note("the canvas is shown" if self.watching else "the canvas is not shown")

    def _save(self, name: str) -> None:
        if not name:
            raise TacgError("/save must be followed by a file, for example /save chat.md.")
        from tacg.files import write_file

        try:
            path = Path(name).expanduser()
        except RuntimeError as error:
            raise TacgError(f"/save cannot find {name!r}: {error}.") from None
        if path.exists() and path not in self.saved:
            raise TacgError(f"{str(path)!r} exists already; choose another name.")
        if not path.parent.is_dir():  # more likely a typo than a new directory
            raise TacgError(f"{str(path)!r} cannot be written: there is no directory {str(path.parent)!r}.")
        text = json.dumps(self.document(), indent=2) if path.suffix == ".json" else markdown(self.messages)
        write_file(path, text + "\n")
        self.saved.add(path)
        _note(f"{len(self.messages)} messages: {path}")

    def _clear(self, rest: str) -> None:
        self.messages.clear()
        _note("conversation cleared")

    def _help(self, rest: str) -> None:
        _note("\n".join(f"{f'{name} {takes}':<20} {meaning}" for name, (takes, meaning) in COMMANDS.items()))
        _note("A line that ends in a backslash continues on the next line.")

    def _quit(self, rest: str) -> None:
        self.over = True


def settled(llm: LLM, step: Step) -> str:
    """The part of the text after a step that will not change any more."""
    return llm.text(step.canvas[: step.settled]).rstrip("\ufffd")  # an incomplete character: the rest is still to come


def markdown(messages: Sequence[Message]) -> str:
    """A conversation to read."""
    return "\n\n".join(f"**{each['role']}**\n\n{each['content']}" for each in messages)


def _note(text: str) -> None:
    """Something that is not part of the answer."""
    typer.secho(text, dim=True, err=True)
