"""Damaged checkpoints: config, header of the weights, tokenizer, chat template. Each loads or is refused."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacg
from tacg.models.tiny import SHAPES, write_checkpoint
from tests.fuzz.damage import DAMAGE, edited, harmed, one, survives

pytestmark = pytest.mark.usefixtures("_no_hang")
TEMPLATES = st.lists(
    st.sampled_from([
        "{{", "}}", "{%", "%}", "messages", "{{ messages }}", "{% for m in messages %}", "{% endfor %}", "{{ m.role }}",
        "{{ 1 / 0 }}", "{{ x.y.z }}", "{{ messages[99] }}", "{{ raise_exception('no') }}", "{% if %}", "{{ m | nope }}",
        "{{ ''.__class__.__mro__ }}", "{% set x = 1 %}", "{{ bos_token }}", "é\x00", "{{ '%d' % 'x' }}",
    ]),
    max_size=6,
).map("".join)  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("sound")
    return {family: write_checkpoint(home / family, family=family) for family in SHAPES}


def load_and_decode(directory: Path) -> None:
    llm = tacg.load(directory)
    llm.generate([7, 8, 9], gen_length=4, block_length=llm.model.spec.causal_block or 4)


def damaged(source: Path, file: str, content: bytes) -> None:
    """Load the checkpoint with one file replaced."""
    place = source.with_name("damaged")
    shutil.copytree(source, place)
    try:
        (place / file).write_bytes(content)
        survives(lambda: load_and_decode(place))
    finally:
        shutil.rmtree(place)


def header(source: Path) -> tuple[Any, bytes]:
    """The header of a safetensors file as a document, and the bytes after it."""
    content = (source / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


@settings(max_examples=600)
@given(family=st.sampled_from(list(SHAPES)), how=DAMAGE)
def test_damaged_configs(sound: dict[str, Path], family: str, how: Any) -> None:
    config = json.loads((sound[family] / "config.json").read_text())
    damaged(sound[family], "config.json", harmed(one(edited(config, how[0])), how[1]))


@settings(max_examples=400)
@given(family=st.sampled_from(list(SHAPES)), how=DAMAGE)
def test_damaged_headers(sound: dict[str, Path], family: str, how: Any) -> None:
    document, rest = header(sound[family])
    changed = harmed(one(edited(document, how[0])), how[1])
    damaged(sound[family], "model.safetensors", struct.pack("<Q", len(changed)) + changed + rest)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@settings(max_examples=300)
@given(how=DAMAGE)
def test_damaged_tokenizers(sound: dict[str, Path], file: str, how: Any) -> None:
    source = next(iter(sound.values()))
    document = json.loads((source / file).read_text())
    damaged(source, file, harmed(one(edited(document, how[0])), how[1]))


@settings(max_examples=400)
@given(template=st.one_of(TEMPLATES, st.text(max_size=40)))
def test_chat_templates(sound: dict[str, Path], template: str) -> None:
    source = next(iter(sound.values()))
    tokenizer = tacg.text.Tokenizer(source)
    tokenizer.chat_template = template
    survives(lambda: tokenizer.chat([{"role": "user", "content": "Hello"}]))
