"""Text to ids and back: `tokenizer.json` or its older forms, and conversations rendered by chat templates."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any

from tacg import files
from tacg.errors import TacgError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

Message = dict[str, str]  # {"role": "user", "content": "…"}

SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# The conversation format that LLaDA was trained on.
LLADA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# How Qwen2, and therefore Dream, splits a text before merging bytes.
QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# The same by the names that GGUF files use; LLaDA-MoE's tokenizer is Ling's.
LING_PIECES = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
PIECES = {"qwen2": QWEN_PIECES, "llada-moe": LING_PIECES, "bailingmoe": LING_PIECES, "bailingmoe2": LING_PIECES}

BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a byte for which the vocabulary has no token
UNUSED = re.compile(r"\[unused\d+\]")  # entries that BERT's vocabularies leave free


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

    @classmethod
    def of(cls, backend: Any, config: Mapping[str, Any]) -> Tokenizer:
        """A tokenizer that does not come from files; `config` replaces tokenizer_config.json."""
        made = cls.__new__(cls)
        made.config, made._backend, made.chat_template = config, backend, _plain(config.get("chat_template"))
        return made

    @functools.cached_property
    def digest(self) -> str:
        """Identifies the tokenizer together with its chat template."""
        return hashlib.sha256(f"{self._backend.to_str()}{self.chat_template}".encode()).hexdigest()[:12]

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Special tokens spelled out in the text become their ids; none are added."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TacgError(f"The text is not valid Unicode ({error}); was it read with the right encoding?") from None
        (found,) = self._backend.encode_batch_fast([text], add_special_tokens=False)  # `encode` holds the GIL
        return list(found.ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids; special tokens are dropped unless `special` is set."""
        return str(self._backend.decode(list(ids), skip_special_tokens=not special))

    def id_of(self, token: str) -> int | None:
        """The id of a token's exact spelling, or None."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def owned_ids(self) -> set[int]:
        """Every id that has a token."""
        return set(self._backend.get_vocab(with_added_tokens=True).values())

    def agrees_with(self, other: Tokenizer) -> bool:
        """Whether ids mean the same in both: shared tokens have equal ids and cover 90 % of the smaller vocabulary."""
        mine, theirs = (each._backend.get_vocab(with_added_tokens=True) for each in (self, other))
        same = [mine[token] == theirs[token] for token in mine.keys() & theirs.keys()]
        return all(same) and len(same) >= 0.9 * min(len(mine), len(theirs))

    def special_ids(self) -> set[int]:
        """Every id of a special or unused token."""
        special = {number for number, token in self._backend.get_added_tokens_decoder().items() if token.special}
        return special | {number for token, number in self._backend.get_vocab().items() if UNUSED.fullmatch(token)}

    def spellings(self) -> dict[int, bytes]:
        """The bytes that each id adds to a text, independent of its position; special tokens add none and are left out.

        This works for byte-level tokens (as in GPT-2) and for tokens whose texts are simply concatenated.
        """
        backend = json.loads(self._backend.to_str())
        read = _reader_of(backend.get("decoder"))
        added = {number: token.content for number, token in self._backend.get_added_tokens_decoder().items()}
        special, vocabulary = self.special_ids(), self._backend.get_vocab(with_added_tokens=True)
        return {
            number: added[number].encode() if number in added else read(token)
            for token, number in vocabulary.items()
            if number not in special
        }

    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that this tokenizer puts before and after a text, such as [CLS] and [SEP]."""
        framed = self._backend.encode("a")
        text = [place for place, added in enumerate(framed.special_tokens_mask) if not added]
        if not text:
            raise TacgError("The tokenizer returns no token for the text 'a'; is it the checkpoint's own?")
        return tuple(framed.ids[: text[0]]), tuple(framed.ids[text[-1] + 1 :])

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation, ready for the assistant's turn."""
        return self.encode(self.render(messages))

    def render(self, messages: Sequence[Message], *, open_turn: bool = True) -> str:
        """A conversation rendered by the chat template; with `open_turn`, ready for the assistant's turn."""
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
    """tokenizer.json, or an older form: vocab.json with merges.txt (Dream, RoBERTa), or BERT's vocab.txt."""
    from tokenizers import Tokenizer as Backend

    names = ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt")
    path, pairs, merges, pieces = (directory / name for name in names)
    whole, paired = is_file(path), is_file(pairs) and is_file(merges)
    if not whole and not paired and not is_file(pieces):
        raise TacgError(f"{directory} has no tokenizer.json; copy the checkpoint's tokenizer files there.")
    what = path if whole else pairs if paired else pieces
    try:
        if whole:
            return Backend.from_file(str(path))
        return _byte_pairs(pairs, merges, config) if paired else _word_pieces(read_vocabulary(pieces), config)
    except TacgError:
        raise
    except BaseException as error:  # damaged files raise a bare Exception or a panic, which is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TacgError(f"{what} is not a tokenizer that can be read: {str(error)[:300]}.") from None


def read_vocabulary(path: Path) -> dict[str, int]:
    """Ids by token, from a file with one token per line."""
    lines = files.read_text(path, "vocabulary").split("\n")
    return {token.rstrip("\r"): number for number, token in enumerate(lines[:-1] if not lines[-1] else lines)}


def _word_pieces(vocabulary: dict[str, int], config: Mapping[str, Any]) -> Any:
    """BERT's own tokenizer: words, split into the longest pieces in the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=bool(config.get("do_lower_case", True)), strip_accents=config.get("strip_accents"),
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
    )  # fmt: skip
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _framed(backend, vocabulary)


def pattern_tokenizer(vocabulary: dict[str, int], pattern: str) -> Any:
    """Every match of a regular expression is a token, with no spaces between tokens: SMILES, proteins."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    return _framed(backend, vocabulary)


def _framed(backend: Any, vocabulary: dict[str, int]) -> Any:
    """Add BERT's special tokens, and put [CLS] and [SEP] around each text."""
    from tokenizers import AddedToken
    from tokenizers.processors import BertProcessing

    if missing := [token for token in BERT_SPECIALS if token not in vocabulary]:
        raise ValueError(f"the vocabulary must have the token {missing[0]}")
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in BERT_SPECIALS])
    backend.post_processor = BertProcessing(*((token, vocabulary[token]) for token in ("[SEP]", "[CLS]")))
    return backend


def _byte_pairs(vocabulary: Path, merges: Path, config: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer, models

    model = models.BPE.from_file(str(vocabulary), str(merges))
    if model.token_to_id("<mask>") is not None:
        return _roberta(Tokenizer(model))
    added = sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0]))
    backend = byte_pair_backend(model, "qwen2", [(token["content"], token.get("special", True)) for _, token in added])
    for number, token in added:
        if backend.token_to_id(token["content"]) != int(number):
            raise ValueError(f"the added token {token['content']!r} must get id {number}, got another")
    return backend


def byte_pair_backend(model: Any, rule: str, added: Sequence[tuple[str, bool]]) -> Any:
    """Byte pairs as Qwen2 has them: texts split by a rule of `PIECES`, added tokens with whether they are special."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers

    backend = Tokenizer(model)
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES[rule]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    for content, special in added:
        token = AddedToken(content, special=bool(special), normalized=False)
        (backend.add_special_tokens if special else backend.add_tokens)([token])
    return backend


def _roberta(backend: Any) -> Any:
    """GPT-2's byte pairs, with <s> and </s> around each text."""
    from tokenizers import AddedToken, decoders, pre_tokenizers
    from tokenizers.processors import RobertaProcessing

    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    specials = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False, lstrip=token == "<mask>") for token in specials]
    )
    end, begin = ((token, backend.token_to_id(token)) for token in ("</s>", "<s>"))
    backend.post_processor = RobertaProcessing(end, begin, add_prefix_space=False)
    return backend


def _reader_of(decoder: Any) -> Callable[[str], bytes]:
    """A function that turns a token's name into bytes."""
    decoder = decoder or {}
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        letters = _byte_letters()
        return lambda token: b"".join(letters.get(each) or each.encode() for each in token)
    if kinds and {*kinds} <= {"Fuse", "Replace", "ByteFallback"}:
        swaps = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]

        def spelled(token: str) -> bytes:
            if "ByteFallback" in kinds and BYTE.fullmatch(token):
                return bytes([int(token[3:5], 16)])
            for old, new in swaps:
                token = token.replace(old, new)
            return token.encode()

        return spelled
    raise TacgError(
        f"Structured output needs a tokenizer whose tokens always stand for the same bytes or text, as in LLaDA "
        f"and Dream; this one decodes by {', '.join(map(str, kinds))}."
    )


def _byte_letters() -> dict[str, bytes]:
    """GPT-2's characters for bytes: printable ones are kept, the others are mapped to characters from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [each for each in range(256) if each not in seen]
    return {chr(each): bytes([each]) for each in seen} | {chr(256 + n): bytes([each]) for n, each in enumerate(others)}


def _plain(template: Any) -> str | None:
    """The chat template in tokenizer_config.json: a string or, in an older layout, a list of named templates."""
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else None


def _spelling(token: Any) -> str:
    """A special token in tokenizer_config.json: a string, or a mapping with its content."""
    return str((token.get("content") if isinstance(token, dict) else token) or "")


def read_json(path: Path, *, missing_ok: bool = False) -> Mapping[str, Any]:
    """Read a JSON object from a file; errors name the file."""
    if not is_file(path):
        if missing_ok:
            return {}
        raise TacgError(f"{path} does not exist; a checkpoint needs it.")
    value = files.parse_json(files.read_text(path, "file of a checkpoint"), str(path))
    if not isinstance(value, dict):
        raise TacgError(f"{path} must hold a JSON object, got {type(value).__name__}.")
    return value


def is_file(path: Path) -> bool:
    """Whether the file exists. Raises if it is not a regular file, because opening a pipe could block forever."""
    if "\0" not in str(path) and not os.path.lexists(path):
        return False
    files.refuse_irregular(path, "file of a checkpoint", "download it again")
    return True
