"""Benchmarks: they run, they append rows, and their ratios name a baseline of the same run. No time is asserted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tacg.bench.device import tables as device_tables
from tacg.bench.simulated_device.guard import register_guard
from tacg.errors import TacgError
from tacg.records.flat import read_rows
from tests.cli.test_cli import TACG

KINDS = {
    "scan": 6,
    "gate": 12,
    "memory": 3,
    "decode": 6,
    "device": 5,
    "cache": 10,
    "load": 2,
    "constraint": 3,
    "quantize": 9,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_glance_at_each(kind: str, tmp_path: Path) -> None:
    if kind == "device":
        try:
            register_guard()
        except TacgError as error:
            pytest.skip(str(error))
    model = ["--model", "tiny"] if kind == "decode" else []
    words = [TACG, "bench", kind, "--quick", "--json", "--out", str(tmp_path), *model]
    for times in (1, 2) if kind == "scan" else (1,):  # a second run appends to the first
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
        rows = json.loads(done.stdout.splitlines()[-1])["rows"]
        assert len(rows) == KINDS[kind]
        assert len(read_rows(tmp_path / "rows.jsonl")) == times * KINDS[kind]
    assert all(row["bench"] == kind and row["hardware"] for row in rows)
    ratios = {"over_floor", "over_fp32_block", "times_faster", "share_of_limit", "peak_over_size", "outside_forward"}
    ratios |= {"kernels_per_layer", "held_share", "share_of_step", "perplexity_over_plain", "seconds_over_plain"}
    assert all(row.keys() & ratios for row in rows)
    assert (tmp_path / "page.html").is_file()


def test_the_table_of_steps_is_drawn_from_rows() -> None:
    home = Path(__file__).parents[2]
    text = (home / "docs/roofline.md").read_text(encoding="utf-8")
    drawn = device_tables(read_rows(home / "docs/bench/device/rows.jsonl"))[0].markdown()
    assert f"<!-- rows: tacg bench device -->\n{drawn}<!-- end of rows -->" in text
