"""Streamed text is never taken back, whatever the order of commits, changes of mind, bytes of tokens, stop strings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tacg.engine.events import Step
from tacg.serve.transcript import Transcript
from tacg.types import Commit, Output

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
EOS, MASK = 256, 257


class Bytes:
    """A tokenizer with one token per byte, so that characters are often cut in the middle."""

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


def writing(ids: list[int], random: Any, size: int, revisions: int) -> Iterator[Step]:
    """Steps that write these ids in any order. Before a position is settled it may be taken back, or hold another."""
    left = random.sample(range(len(ids)), len(ids))
    canvas, settled, number = [MASK] * len(ids), 0, 0
    while left:
        number += 1
        writes = {place: (ids[place], "base") for place in left[:size]}
        del left[:size]
        for place in random.sample(range(settled, len(ids)), min(revisions, len(ids) - settled)):
            if place not in left and place not in writes:  # masked again, or edited: it is to be written once more
                writes[place] = random.choice([(MASK, "remask"), (random.randrange(EOS + 1), "edit")])
                left.append(place)
        for place, (token, _) in writes.items():
            canvas[place] = token
        settled = min([place for place in range(len(ids)) if place in left], default=len(ids))
        revisions = max(0, revisions - 1)  # or it would never end
        commits = tuple(Commit(at, token, number, reason, 0.5) for at, (token, reason) in writes.items())
        yield Step(0, number, 0, tuple(canvas), commits, (), settled)


@given(
    st.one_of(WORDS.map(str.encode), st.binary(max_size=12)),
    st.lists(st.text("abé🙂", min_size=1, max_size=3), max_size=3),
    st.booleans(),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
    st.integers(0, 6),
)
def test_pieces_are_the_text(
    content: bytes, stops: list[str], ends: bool, random: Any, size: int, revisions: int
) -> None:
    ids = ids_of(content) + ([EOS, *ids_of(b"ab")] if ends else [])
    expected = first_stop(BYTES.decode(ids_of(content)), stops)
    transcript = Transcript(LLM, stops, tokens=True)
    pieces, commits = [], list[Commit]()
    for step in writing(ids, random, size, revisions):
        pieces.append(transcript.add(step))
        commits += step.committed
        if transcript.stopped:
            break
        assert expected.startswith("".join(piece.text for piece in pieces)), "only what is final is given out"
    pieces.append(transcript.close(Output("", tuple(ids), 1, 1, 1, "length", "", tuple(commits))))
    assert "".join(piece.text for piece in pieces) == expected
    told = [token for piece in pieces for token, _ in piece.tokens]
    assert told == ids[: len(told)]
    if not transcript.stopped:
        assert told == ids_of(content)
    else:
        assert len(BYTES.decode(told)) <= len(expected)
        assert re.match(re.escape(BYTES.decode(told).rstrip("\ufffd")), expected)


def test_what_was_given_is_certain() -> None:
    """A canvas with holes: given tokens settle with what is to their left, and are not commits."""
    given = ids_of(b"abc")
    transcript = Transcript(LLM, tokens=True)
    step = Step(0, 1, 0, (given[0], given[1], MASK), (Commit(1, given[1], 1, "base", 0.5),), (), 2)
    assert transcript.add(step) == ("ab", ((given[0], 1.0), (given[1], 0.5)))
    last = Output("", tuple(given), 1, 2, 2, "length", "", (*step.committed, Commit(2, given[2], 2, "base", 0.25)))
    assert transcript.close(last) == ("c", ((given[2], 0.25),))
