"""Words to ids and back: `tokenizer.json`, and conversations as chat templates spell them."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import TYPE_CHECKING, Any

from tacg import files
from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Message = dict[str, str]  # {"role": "user", "content": "…"}

SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# How LLaDA was taught to read a conversation.
LLADA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# How Qwen2, and so Dream, cuts a text before merging bytes.
QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


class Tokenizer:
    """A tokenizer and chat template in the Hugging Face layout."""

    def __init__(self, directory: Path) -> None:
        self.config = read_json(directory / "tokenizer_config.json", missing_ok=True)
        self._backend = _backend(directory, self.config)
        template = directory / "chat_template.jinja"
        self.chat_template: str | None = (
            files.read_text(template, "chat template")
            if is_file(template)
            else _plain(self.config.get("chat_template"))
        )

    @functools.cached_property
    def digest(self) -> str:
        """Tells tokenizers apart, and their chat templates."""
        return hashlib.sha256(f"{self._backend.to_str()}{self.chat_template}".encode()).hexdigest()[:12]

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Special tokens written in the text become their ids; none are added."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TacgError(f"The text is not valid Unicode ({error}); was it read with the right encoding?") from None
        (found,) = self._backend.encode_batch_fast([text], add_special_tokens=False)  # `encode` holds the interpreter
        return list(found.ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids; special tokens are dropped unless asked for."""
        return str(self._backend.decode(list(ids), skip_special_tokens=not special))

    def id_of(self, token: str) -> int | None:
        """The id of a token's exact spelling, or None."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def owned_ids(self) -> set[int]:
        """Every id that stands for a token."""
        return set(self._backend.get_vocab(with_added_tokens=True).values())

    def agrees_with(self, other: Tokenizer) -> bool:
        """Whether ids mean the same in both: tokens that both have, nearly all of the smaller one's, have one id."""
        mine, theirs = (each._backend.get_vocab(with_added_tokens=True) for each in (self, other))
        same = [mine[token] == theirs[token] for token in mine.keys() & theirs.keys()]
        return all(same) and len(same) >= 0.9 * min(len(mine), len(theirs))

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation, ready for the assistant's turn."""
        return self.encode(self.render(messages))

    def render(self, messages: Sequence[Message], *, open_turn: bool = True) -> str:
        """A conversation as the chat template spells it; with `open_turn` ready for the assistant's turn."""
        if not self.chat_template:
            raise TacgError("This checkpoint has no chat template; pass plain text with chat=False.")
        for message in messages:
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise TacgError(f"A message must be {{'role': str, 'content': str}}, got {message!r}.")
        from tacg.templates import render

        specials = {name: spelled for name in SPECIALS if (spelled := _spelling(self.config.get(name)))}
        values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": open_turn}
        return render(self.chat_template, values | specials)


def _backend(directory: Path, config: Mapping[str, Any]) -> Any:
    """tokenizer.json, or Qwen2's older pair of vocab.json and merges.txt (Dream)."""
    from tokenizers import Tokenizer as Backend

    path, vocabulary, merges = (directory / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if not is_file(path) and not (is_file(vocabulary) and is_file(merges)):
        raise TacgError(f"{directory} has no tokenizer.json; copy the checkpoint's tokenizer files there.")
    try:
        return Backend.from_file(str(path)) if path.is_file() else _byte_pairs(vocabulary, merges, config)
    except BaseException as error:  # every kind of damage raises a bare Exception, or is a panic, which is none
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        what = path if path.is_file() else vocabulary
        raise TacgError(f"{what} is not a tokenizer that can be read: {str(error)[:300]}.") from None


def _byte_pairs(vocabulary: Path, merges: Path, config: Mapping[str, Any]) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    backend = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    added = config.get("added_tokens_decoder") or {}
    for number, token in sorted(added.items(), key=lambda item: int(item[0])):
        made = AddedToken(token["content"], special=bool(token.get("special", True)), normalized=False)
        (backend.add_special_tokens if made.special else backend.add_tokens)([made])
        if backend.token_to_id(token["content"]) != int(number):
            raise ValueError(f"the added token {token['content']!r} must get id {number}, got another")
    return backend


def _plain(template: Any) -> str | None:
    """A chat template of tokenizer_config.json: a string, or, in an older layout, a list of named ones."""
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else None


def _spelling(token: Any) -> str:
    """A special token of tokenizer_config.json: a string, or a mapping with its content."""
    return str((token.get("content") if isinstance(token, dict) else token) or "")


def read_json(path: Path, *, missing_ok: bool = False) -> Mapping[str, Any]:
    """A JSON object from a file, or an error that names the file."""
    if not is_file(path):
        if missing_ok:
            return {}
        raise TacgError(f"{path} does not exist; a checkpoint needs it.")
    value = files.parse_json(files.read_text(path, "file of a checkpoint"), str(path))
    if not isinstance(value, dict):
        raise TacgError(f"{path} must hold a JSON object, got {type(value).__name__}.")
    return value


def is_file(path: Path) -> bool:
    """Whether a file is there. What is there but is no file raises: to open a pipe is to wait for ever."""
    if "\0" not in str(path) and not os.path.lexists(path):
        return False
    files.refuse_irregular(path, "file of a checkpoint", "download it again")
    return True
