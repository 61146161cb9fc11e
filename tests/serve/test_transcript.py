"""Streamed text is never taken back, whatever the order of commits, the bytes of tokens and the stop strings."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tacg.serve.transcript import Transcript
from tacg.types import Commit

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
EOS = 256


class Bytes:
    """A tokenizer with one token for every byte: characters are cut in the middle as often as can be."""

    def __init__(self) -> None:
        vocabulary = {letter: number for number, letter in enumerate(LETTERS)} | {"<eos>": EOS}
        self.backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
        self.backend.decoder = decoders.ByteLevel()
        self.backend.add_special_tokens(["<eos>"])

    def decode(self, ids: Any, *, special: bool = False) -> str:
        return str(self.backend.decode(list(ids), skip_special_tokens=not special))


BYTES = Bytes()
LLM: Any = SimpleNamespace(tokenizer=BYTES, model=SimpleNamespace(spec=SimpleNamespace(eos_ids=(EOS,))))
WORDS = st.text("abaé€🙂", max_size=12)


def ids_of(text: bytes) -> list[int]:
    """A token for every byte: printable ones stand for themselves, the others for the letters from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [BYTES.backend.token_to_id(chr(byte if byte in plain else 256 + others.index(byte))) for byte in text]


def first_stop(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first, found letter by letter."""
    for end in range(len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: min(found)]
    return text


@given(
    st.one_of(WORDS.map(str.encode), st.binary(max_size=12)),
    st.lists(st.text("abé🙂", min_size=1, max_size=3), max_size=3),
    st.booleans(),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
)
def test_pieces_are_the_text(content: bytes, stops: list[str], ends: bool, random: Any, size: int) -> None:
    ids = ids_of(content) + ([EOS, *ids_of(b"ab")] if ends else [])
    commits = [Commit(place, token, 1, "base", 0.5) for place, token in enumerate(ids)]
    expected = first_stop(BYTES.decode(ids_of(content)), stops)
    order = list(commits)
    random.shuffle(order)
    transcript = Transcript(LLM, len(ids), stops, tokens=True)
    pieces = []
    for start in range(0, len(order), size):
        pieces.append(transcript.add(order[start : start + size]))
        if transcript.stopped:
            break
        assert expected.startswith("".join(piece.text for piece in pieces)), "only what is final is given out"
    pieces.append(transcript.close(commits))
    assert "".join(piece.text for piece in pieces) == expected
    told = [token for piece in pieces for token, _ in piece.tokens]
    assert told == ids[: len(told)]
    if not transcript.stopped:
        assert told == ids_of(content)
    else:
        assert len(BYTES.decode(told)) <= len(expected)
        assert re.match(re.escape(BYTES.decode(told).rstrip("\ufffd")), expected)
