"""How agreement with the authors' loops is measured, tried here on loops of our own, which need no checkout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tacg
from tacg.bench import agreement
from tacg.bench.agreement import SERIES, first_difference, measure, report
from tacg.bench.agreement.authors import PAIRS, Difference, Pair, Source, _blocks, _last_of_the_block
from tacg.bench.agreement.model import FOREIGN_MASK, SeenModel
from tacg.bench.agreement.sources import load_module
from tacg.engine.request import Decode
from tacg.errors import TacgError
from tacg.records.flat import read_rows

ROWS = Path(__file__).parents[2] / "docs" / "bench" / "agreement"

# A threshold decoder in the usual signature, which commits from `bar` on. It imports what nobody has.
LOOP = """
import torch
from nobody_has_this import Config

def generate(model, prompt, steps, gen_length, block_length, mask_id, bar):
    x = torch.cat([prompt, torch.full((1, gen_length), mask_id)], dim=1)
    for start in range(prompt.shape[1], x.shape[1], block_length):
        block = torch.zeros_like(x, dtype=torch.bool)
        block[:, start : start + block_length] = True
        while (block & (x == mask_id)).any():
            sure, token = model(x).logits.double().softmax(dim=-1).max(dim=-1)
            sure = torch.where(block & (x == mask_id), sure, -1.0)
            ready = (sure >= bar) | (sure == sure.max())
            x = torch.where(ready, token, x)
    return x, 0
"""


@pytest.fixture(scope="module")
def llm() -> tacg.LLM:
    return tacg.load("pocket")


def pair_of(bar: float) -> Pair:
    source = Source("somebody/loops", "", "generate", ("nobody_has_this",))
    return Pair("threshold", source, _blocks("generate", bar=bar), "confidence", {"threshold": 0.9})


@pytest.mark.parametrize(("bar", "same"), [(0.9, True), (0.5, False)])
def test_a_loop_of_the_same_rule_agrees_and_another_does_not(
    bar: float, same: bool, llm: tacg.LLM, tmp_path: Path
) -> None:
    (tmp_path / "loops").mkdir()
    (tmp_path / "loops" / "generate.py").write_text(LOOP, encoding="utf-8")
    (row,) = measure(llm, tmp_path, 1, [pair_of(bar)], SERIES[1:])
    assert row["n"] == len(agreement.TASKS)
    assert (row["same_steps"] == row["n"]) is same
    assert (row["forwards"] == row["their_forwards"]) is same
    assert row["rounding"] == row["known"] == 0


def test_what_is_missing_is_said(llm: tacg.LLM, tmp_path: Path) -> None:
    rows = list(measure(llm, tmp_path, 1, PAIRS[:1], SERIES[:1]))
    assert "git clone https://github.com/ML-GSAI/LLaDA" in rows[0]["skipped"]
    with pytest.raises(TacgError, match="No checkout was found"):
        agreement.refuse_nothing(rows, tmp_path)
    with pytest.raises(TacgError, match="decoder"):
        agreement.chosen_pairs("nothing of that name")


def test_foreign_modules_leave_no_trace(tmp_path: Path) -> None:
    """Two checkouts have modules of the same name; a package's own `__init__` is not run."""
    import sys

    for number in (1, 2):
        package = tmp_path / str(number) / "their_package"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError", encoding="utf-8")
        (package / "helper.py").write_text(f"NUMBER = {number}", encoding="utf-8")
        (package / "loop.py").write_text("from .helper import NUMBER\nfrom absent import thing", encoding="utf-8")
        assert number == load_module(tmp_path / str(number), "their_package.loop", ["absent"]).NUMBER
    assert not [name for name in sys.modules if name.startswith(("their_package", "absent"))]
    with pytest.raises(TacgError, match="absent"):
        load_module(tmp_path / "1", "their_package.loop")


def test_the_model_in_their_shape_is_our_model(llm: tacg.LLM) -> None:
    """Whole canvases, another mask id, and forwards that continue from cached keys and values."""
    spec = llm.model.spec
    ids = torch.tensor([[5, 6, 7, 8] * 6 + [spec.mask_id] * 8])
    expected = llm.logits(ids)
    writable = [token for token in range(spec.vocab_size) if token not in spec.unwritable]
    model = SeenModel(llm)
    whole = model(ids.masked_fill(ids == spec.mask_id, FOREIGN_MASK), use_cache=True)
    assert torch.equal(whole.logits[..., writable], expected[..., writable])
    past = [(keys[:, :, :24], values[:, :, :24]) for keys, values in whole.past_key_values]
    tail = model(ids[:, 24:], past_key_values=past)
    block = torch.zeros_like(ids, dtype=torch.bool)
    block[:, 24:28] = True
    inside = model(ids[:, 24:28], past_key_values=whole.past_key_values, replace_position=block)
    for part, stop in ((tail, 32), (inside, 28)):  # nothing has changed since, so the cache is exact
        torch.testing.assert_close(part.logits[..., writable], expected[:, 24:stop, writable], rtol=1e-4, atol=1e-4)
    assert all(torch.equal(canvas, ids[0]) for canvas in model.canvases)


def test_the_first_difference_is_found() -> None:
    decode = Decode(gen_length=3, block_length=3)
    start, one, two, full = (0, 0, 0), (7, 0, 0), (7, 0, 9), (7, 8, 9)
    assert first_difference([start, one, full], [start, one, full], decode, 0) is None
    assert first_difference([start, one, full], [start, two, full], decode, 0) == Difference(start, one, two, 3, 0)
    longer = first_difference([start, two, full], [start, two], decode, 0)
    assert longer is not None
    assert (longer.before, longer.positions) == (two, (1,))
    assert _last_of_the_block(Difference(one, two, full, 3, 0)), "they fill the block, we leave one"
    assert not _last_of_the_block(Difference(one, full, two, 3, 0))


def test_every_difference_is_explained_and_the_report_is_drawn_from_rows() -> None:
    rows = read_rows(ROWS / "rows.jsonl")
    newest = {(row["series"], row["decoder"]): row for row in rows}
    compared = [row for row in newest.values() if row["n"]]
    assert {row["series"] for row in compared} == {each.name for each in SERIES}
    for row in compared:
        assert row["n"] >= 20
        assert row["same_steps"] + row["rounding"] + row["known"] == row["n"], row
        assert row["series"] == SERIES[0].name or not row["rounding"], row
    assert (ROWS / "report.md").read_text(encoding="utf-8") == report(rows)
