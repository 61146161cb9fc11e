"""The text that pocket learns from, and its tokenizer: whole words, numbers below 100, bytes for the rest."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch

from tacg.tasks import get_task
from tacg.tasks.free_code import LOOP_NAMES, NAMES
from tacg.tasks.wording import PIECES, say

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer
    from torch import Tensor

EOS, MASK, USER, ASSISTANT = "<|endoftext|>", "<|mdm_mask|>", "<|user|>", "<|assistant|>"
SPECIALS = [EOS, MASK, USER, ASSISTANT]
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}<|endoftext|>"
    "{% else %}<|user|>{{ m.content | trim }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# (task, difficulty, what may be masked, share of the samples). Easier problems come first. They help with the harder
# ones, and are shorter, so that the same time holds more of them. What is hard is also practised by itself: where
# everything may be masked, most masked tokens are wording or copies, and adding is hardly practised (docs/log.md).
SUMS = "sums"  # drills: a story holds six sums in 150 tokens, a drill thirteen
ALL, RESULTS, NAMED = "all", "results", "names"
BEFORE_RESULTS = {"is", "are", "makes", "equals", "make", "give", "leaves", "remain", "then", "has"}
VARIABLES = {*LOOP_NAMES, *(name for series in NAMES for name in series.split())}
EASY: dict[str, dict[str, int]] = {
    "free-math": {"min_events": 3, "max_events": 4, "blocks": 2},
    "free-code": {"min_steps": 2, "max_steps": 3, "blocks": 2},
}
FULL: dict[str, dict[str, int]] = {
    "free-math": {"min_events": 5, "max_events": 6},
    "free-code": {"min_steps": 4, "max_steps": 5, "blocks": 3},
}
LONG = {"blocks": 4}  # wordier answers, so that a fourth block is not always padding: harder problems need it
Mixture = list[tuple[str, dict[str, int], str, float]]
OPENING: Mixture = [
    ("free-math", EASY["free-math"], ALL, 0.30),
    ("free-math", EASY["free-math"], RESULTS, 0.15),
    (SUMS, {}, ALL, 0.05),
    (SUMS, {}, RESULTS, 0.15),
    ("free-code", EASY["free-code"], ALL, 0.27),
    ("free-code", EASY["free-code"], NAMED, 0.08),
]
MIXTURE: Mixture = [
    ("free-math", FULL["free-math"], ALL, 0.18),
    ("free-math", FULL["free-math"] | LONG, ALL, 0.02),
    ("free-math", FULL["free-math"], RESULTS, 0.08),
    ("free-math", EASY["free-math"], ALL, 0.15),
    ("free-math", EASY["free-math"], RESULTS, 0.12),
    (SUMS, {}, RESULTS, 0.07),
    ("free-code", FULL["free-code"], ALL, 0.18),
    ("free-code", FULL["free-code"] | LONG, ALL, 0.02),
    ("free-code", FULL["free-code"], NAMED, 0.06),
    ("free-code", EASY["free-code"], ALL, 0.12),
]
LONGER = 0.1  # share of samples that get more end-of-text padding than their task's answer length


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed rows: tokens int64 [N] clean, answer bool [N] (what may be masked), lengths of the rows."""

    tokens: Tensor
    answer: Tensor
    lengths: list[int]


class Row(NamedTuple):
    """A prompt with its answer, as token ids, and which of them may be masked."""

    tokens: list[int]
    answer: list[bool]


def build_tokenizer(directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json. Deterministic: the words of a fixed sample of training text."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words: Counter[str] = Counter()
    for name in dict.fromkeys(name for name, *_ in MIXTURE):
        for prompt, answer in _texts(-1, name, FULL.get(name, {}), 1000, random.Random(0))[0]:
            words.update(piece for piece, _ in split.pre_tokenize_str(f"{prompt}\n{answer}"))
    words.update(space + str(number) for number in range(100) for space in ("Ġ", ""))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = SPECIALS + alphabet + sorted(word for word in words if len(word) > 1)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": EOS, "pad_token": EOS, "mask_token": MASK, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def shard(tokenizer: Tokenizer, number: int, samples: int, tokens_per_batch: int, mixture: Mixture) -> list[Batch]:
    """Training batches of shard `number`, in random order.

    Every batch holds the whole mixture: a step on one task alone pulls the model away from the others. Within a task,
    rows of a batch have nearly the same length, so that they can attend together.
    """
    rng = random.Random(f"pocket/{number}")
    parts = [_rows(tokenizer, number, *kind, round(samples * share), rng) for *kind, share in mixture]
    total = sum(len(row.tokens) for rows in parts for row in rows)
    count = max(1, total // tokens_per_batch)
    chunks = []
    for rows in parts:
        rows.sort(key=lambda row: len(row.tokens))
        edges = [len(rows) * edge // count for edge in range(count + 1)]
        chunks.append([rows[start:stop] for start, stop in pairwise(edges)])
        rng.shuffle(chunks[-1])
    return [pack([row for chunk in batch for row in chunk]) for batch in zip(*chunks, strict=True)]


def _rows(
    tokenizer: Tokenizer, number: int, name: str, knobs: dict[str, int], focus: str, count: int, rng: random.Random
) -> list[Row]:
    """One part of the mixture; answers are padded with end-of-text."""
    eos, texts, usual = tokenizer.token_to_id(EOS), *_texts(number, name, knobs, max(1, count), rng)
    prompts = tokenizer.encode_batch([f"{USER}{prompt}{ASSISTANT}" for prompt, _ in texts])
    answers = tokenizer.encode_batch([answer for _, answer in texts])
    rows = []
    for prompt, answer in zip(prompts, answers, strict=True):
        length = rng.randrange(usual, 193, 32) if rng.random() < LONGER else usual
        padded = to_row(prompt.ids, answer.ids + [eos] * (length - len(answer.ids)))
        rows.append(padded if focus == ALL else _only(focus, padded, tokenizer))
    return rows


def _only(focus: str, row: Row, tokenizer: Tokenizer) -> Row:
    """Only the results of the answer may be masked, or only its names."""
    words = [tokenizer.id_to_token(token).lstrip("Ġ") for token in row.tokens]
    if focus == RESULTS:
        wanted = [
            word.isdigit() and before in BEFORE_RESULTS for before, word in zip(["", *words], words, strict=False)
        ]
    else:
        wanted = [word in VARIABLES for word in words]
    return row._replace(answer=[mine and each for mine, each in zip(row.answer, wanted, strict=True)])


def _texts(
    number: int, name: str, knobs: dict[str, int], count: int, rng: random.Random
) -> tuple[list[tuple[str, str]], int]:
    """Prompts with their answers, and the length that answers are decoded with."""
    if name == SUMS:
        return [_sums(rng) for _ in range(count)], 96
    task = get_task(name, **knobs)
    problems = islice(task.problems("train", seed=number + 1), count)
    return [(problem.prompt, problem.answer) for problem in problems], task.decode["gen_length"]


def _sums(rng: random.Random) -> tuple[str, str]:
    """A dozen separate sums, or a chain in which each continues from the last result, as in a story."""
    chain = rng.random() < 0.5
    value = rng.randint(1, 99)
    asked, answered = ([f" {value}"], [f"Start with {value}."]) if chain else ([], [])
    while len(answered) < 13:
        b = rng.randint(2, 9)
        sign, after = rng.choice([("plus", value + b), ("minus", value - b)])
        if 1 <= after <= 99:
            said = f" {sign} {b}" if chain else f" {value} {sign} {b}"
            asked.append(said)
            answered.append(say(rng, "{said} (is|are|makes|equals) {after}.", said=said, after=after))
        value = after if chain and 1 <= after <= 99 else value if chain else rng.randint(1, 99)
    return f"Work it out:{','.join(asked)}", "".join(answered)


def to_row(prompt: list[int], answer: list[int]) -> Row:
    """All of the answer may be masked."""
    return Row(prompt + answer, [False] * len(prompt) + [True] * len(answer))


def pack(rows: list[Row]) -> Batch:
    """All rows, concatenated."""
    tokens, answer = (torch.tensor([each for row in rows for each in row[part]]) for part in (0, 1))
    return Batch(tokens, answer, [len(row.tokens) for row in rows])
