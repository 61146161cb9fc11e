"""Words to ids and back: `tokenizer.json`, and chat templates rendered in a sandbox."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Message = dict[str, str]  # {"role": "user", "content": "…"}


class Tokenizer:
    """A tokenizer and chat template in the Hugging Face layout."""

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer as Backend

        path = directory / "tokenizer.json"
        if not path.is_file():
            raise TacgError(f"{directory} has no tokenizer.json; copy the checkpoint's tokenizer files there.")
        try:
            self._backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every kind of damage
            raise TacgError(f"{path} is not a tokenizer.json that can be read: {error}.") from None
        self.config = read_json(directory / "tokenizer_config.json", missing_ok=True)
        template = directory / "chat_template.jinja"
        self.chat_template: str | None = (
            template.read_text(encoding="utf-8") if template.is_file() else _plain(self.config.get("chat_template"))
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Special tokens written in the text become their ids; none are added."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TacgError(f"The text is not valid Unicode ({error}); was it read with the right encoding?") from None
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids; special tokens are dropped unless asked for."""
        return str(self._backend.decode(list(ids), skip_special_tokens=not special))

    def id_of(self, token: str) -> int | None:
        """The id of a token's exact spelling, or None."""
        return self._backend.token_to_id(token)

    def owned_ids(self) -> set[int]:
        """Every id that stands for a token."""
        return set(self._backend.get_vocab(with_added_tokens=True).values())

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation, ready for the assistant's turn."""
        if not self.chat_template:
            raise TacgError("This checkpoint has no chat template; pass plain text with chat=False.")
        for message in messages:
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise TacgError(f"A message must be {{'role': str, 'content': str}}, got {message!r}.")
        specials = {name: _spelling(self.config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        try:
            text = (
                _sandbox()
                .from_string(self.chat_template)
                .render(messages=messages, add_generation_prompt=True, **specials)
            )
        except TacgError:
            raise
        except Exception as error:  # a template may fail in any way that a program can
            raise TacgError(f"The checkpoint's chat template fails: {error}") from None
        return self.encode(text)


def _plain(template: Any) -> str | None:
    """A chat template of tokenizer_config.json: a string, or, in an older layout, a list of named ones."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _spelling(token: Any) -> str:
    """A special token of tokenizer_config.json: a string, or a mapping with its content."""
    return str(token["content"]) if isinstance(token, dict) else str(token or "")


@functools.cache
def _sandbox() -> Any:
    """Where chat templates run: they come with a checkpoint, so they are a stranger's program."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TacgError(f"The chat template refuses these messages: {message}")

    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    sandbox.globals["raise_exception"] = refuse
    return sandbox


def read_json(path: Path, *, missing_ok: bool = False) -> Mapping[str, Any]:
    """A JSON object from a file, or an error that names the file."""
    if missing_ok and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TacgError(f"{path} does not exist; a checkpoint needs it.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TacgError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise TacgError(f"{path} must hold a JSON object, got {type(value).__name__}.")
    return value
