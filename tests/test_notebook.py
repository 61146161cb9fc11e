"""What a notebook shows of models, policies and outputs."""

from __future__ import annotations

import json
import re

import pytest

import tacg
from tests.revising import Reviser

SHORT = {"gen_length": 16, "block_length": 8, "early_stop": False}


def replayed(page: str) -> list[str | None]:
    """The canvas that the player's own data ends with."""
    data = json.loads(re.search(r"data = (\{.*\});", page)[1])  # type: ignore[index]
    cells = list(data["start"])
    for _, position, text, _ in sorted(data["writes"], key=lambda write: write[0]):
        cells[position] = text
    return cells


@pytest.mark.parametrize("policy", ["tacg", Reviser(remasks=2, edits=True)], ids=["fills", "revises"])
def test_an_output_plays_its_decode(llm: tacg.LLM, policy: str | tacg.Policy) -> None:
    out = llm.generate("Hi </script><b>", policy, **SHORT)
    page = out._repr_html_()
    assert replayed(page) == [out.pieces[token] for token in out.tokens]
    assert not re.search(r"https?://|\{(id|title|counts|steps|answer|legend|data)\}", page)
    assert page.count("</script>") == 1
    assert len(page) < 10_000
    assert page != out._repr_html_(), "two in a notebook must not share an id"


def test_given_tokens_are_shown_from_the_start(llm: tacg.LLM) -> None:
    out = llm.fill("Once ⟨3⟩ and ⟨2⟩ again", "confidence")
    cells = replayed(out._repr_html_())
    assert "".join(str(cell) for cell in cells) == "".join(out.pieces[token] for token in out.tokens)


def test_an_output_without_texts_can_be_shown(llm: tacg.LLM) -> None:
    request = llm.request("Hi", tacg.get_policy("tacg"), tacg.Decode(**SHORT))
    (out,) = tacg.Engine(llm.model).generate([request])
    assert f"⟨{out.tokens[0]}⟩" in out._repr_html_()


def test_reprs_are_short_and_say_what_matters(llm: tacg.LLM) -> None:
    assert repr(llm) == "<LLM tiny: Llada, 0.1 M parameters, float32 on cpu>"
    assert repr(tacg.get_policy("tacg+klass", k_extra=1)) == "<policy tacg+klass(k_extra=1)>"
    out = llm.generate("Hi", **SHORT)
    assert repr(out).startswith("Output(")
    assert f"steps={out.steps}, forwards={out.forwards}, tpf={out.tpf:.2f}, policy='tacg'" in repr(out)
    assert len(repr(out)) < 300


def test_progress_shows_a_bar_and_changes_nothing(llm: tacg.LLM, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["Hi", "Ho", "Hey"]
    quiet = llm.generate(prompts, batch_size=2, **SHORT)
    assert capsys.readouterr().err == ""
    assert llm.generate(prompts, batch_size=2, progress=True, **SHORT) == quiet
    assert "3.0 of 3 answers" in capsys.readouterr().err
