"""OpenAI's response formats: chat and text completions, whole or in chunks, and usage."""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tacg.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.llm import LLM
    from tacg.types import Output

Document = dict[str, Any]
LEAST = -9999.0  # OpenAI's logprob for impossible tokens


@dataclass
class Shape:
    """Builds the documents of one response."""

    llm: LLM
    prefix: ClassVar[str]
    whole: ClassVar[str]
    chunk: ClassVar[str]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def response(self, choices: list[Document], usage: Document) -> Document:
        """A whole response."""
        return self._frame(self.whole, choices) | {"usage": usage}

    def part(self, choices: list[Document], usage: Document | None = None) -> Document:
        """A chunk of a response; the chunk with the usage has no choices."""
        return self._frame(self.chunk, choices) | ({} if usage is None else {"usage": usage})

    def _frame(self, kind: str, choices: list[Document]) -> Document:
        return {
            "id": f"{self.prefix}-{self.id}", "object": kind, "created": self.created,
            "model": self.llm.model.spec.name, "system_fingerprint": f"tacg-{__version__}", "choices": choices,
        }  # fmt: skip

    def piece(self, token: int) -> str:
        """A token's own text, including special tokens."""
        return self.llm.tokenizer.decode([token], special=True)

    def opening(self, index: int) -> list[Document]:
        """The choices that open a stream."""
        raise NotImplementedError

    def delta(self, index: int, text: str, logprobs: Document | None) -> Document:
        """A chunk's choice with more text."""
        raise NotImplementedError

    def last(self, index: int, reason: str) -> Document:
        """A chunk's choice with the finish reason."""
        raise NotImplementedError

    def choice(self, index: int, text: str, reason: str, logprobs: Document | None) -> Document:
        """A choice of a whole response."""
        raise NotImplementedError

    def logprobs(self, tokens: Sequence[tuple[int, float]], before: Sequence[int]) -> Document:
        """The log of the confidence with which each token was committed; `before` are ids reported already."""
        raise NotImplementedError


class Chat(Shape):
    """`/v1/chat/completions`."""

    prefix, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> list[Document]:
        """The role."""
        return [_streamed(index, {"role": "assistant", "content": ""}, None, None)]

    def delta(self, index: int, text: str, logprobs: Document | None) -> Document:
        """More content."""
        return _streamed(index, {"content": text}, logprobs, None)

    def last(self, index: int, reason: str) -> Document:
        """The reason."""
        return _streamed(index, {}, None, reason)

    def choice(self, index: int, text: str, reason: str, logprobs: Document | None) -> Document:
        """A message."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[tuple[int, float]], before: Sequence[int]) -> Document:
        """A list of tokens with text, bytes (unless the token is only a part of a character) and logprob."""
        found = []
        for token, confidence in tokens:
            text = self.piece(token)
            whole = None if "\ufffd" in text else list(text.encode())
            found.append({"token": text, "logprob": logprob(confidence), "bytes": whole, "top_logprobs": []})
        return {"content": found, "refusal": None}


class Completion(Shape):
    """`/v1/completions`."""

    prefix, whole, chunk = "cmpl", "text_completion", "text_completion"

    def opening(self, index: int) -> list[Document]:
        """Nothing."""
        return []

    def delta(self, index: int, text: str, logprobs: Document | None) -> Document:
        """More text."""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": None}

    def last(self, index: int, reason: str) -> Document:
        """The reason."""
        return {"index": index, "text": "", "logprobs": None, "finish_reason": reason}

    def choice(self, index: int, text: str, reason: str, logprobs: Document | None) -> Document:
        """A text."""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[tuple[int, float]], before: Sequence[int]) -> Document:
        """Parallel lists: tokens, their logprobs, and their offsets in the text."""
        ids = [*before, *(token for token, _ in tokens)]
        starts = [len(self.llm.tokenizer.decode(ids[:place])) for place in range(len(before), len(ids))]
        return {
            "tokens": [self.piece(token) for token, _ in tokens],
            "token_logprobs": [logprob(confidence) for _, confidence in tokens],
            "top_logprobs": None, "text_offset": starts,
        }  # fmt: skip


def logprob(confidence: float) -> float:
    """The logarithm of a probability, as OpenAI writes it."""
    return max(LEAST, math.log(confidence)) if confidence > 0 else LEAST


def usage(outputs: Sequence[Output], prompt_tokens: int) -> Document:
    """The usage of a request: OpenAI's numbers, plus steps and forwards of all rows and tokens per forward."""
    tokens, forwards = sum(len(output.tokens) for output in outputs), sum(output.forwards for output in outputs)
    return {
        "prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens,
        "steps": sum(output.steps for output in outputs), "forwards": forwards,
        "tpf": tokens / forwards if forwards else 0.0,
    }  # fmt: skip


def _streamed(index: int, delta: Document, logprobs: Document | None, reason: str | None) -> Document:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
