"""The rehearsal of an hour on a GPU, in its smallest form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tacg.bench.gpu_hour import PARTS, Hour, page, run_hour
from tacg.bench.simulated_device.guard import register_guard
from tacg.errors import TacgError

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_hour"


def test_a_rehearsal_ends_and_its_report_is_complete(tmp_path: Path) -> None:
    try:
        register_guard()
    except TacgError as error:
        pytest.skip(str(error))
    pytest.importorskip("transformers")
    # The others are tests of their own.
    parts = ["doctor", "scans", "syncs", "graphs", "graph_decodes", "parity", "compiled", "speed"]
    words = [word for part in parts for word in ("--only", part)]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--rehearse", *words, "--out", tmp_path / "report.md"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert done.returncode == 0, report
    assert re.findall(r"^\| (\w+) \| yes \| 0 \|", report, re.MULTILINE) == parts
    assert re.findall(r"^## (\w+)", report, re.MULTILINE) == parts


def test_a_part_that_fails_does_not_end_the_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(hour: Hour) -> None:
        """It breaks."""
        raise RuntimeError("out of order")

    monkeypatch.setitem(PARTS, "syncs", broken)
    assert not run_hour(Hour(rehearse=True), tmp_path / "report.md", ("syncs", "doctor"))
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| syncs | RuntimeError: out of order | 0 |" in report
    assert "| doctor | yes | 0 |" in report
    assert "test_gpu_hour.py" in report, "where it broke"


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(TacgError, match="--rehearse"):
        run_hour(Hour(), tmp_path / "report.md")
    assert '"right": false' in page({"doctor": {"ran": True, "found": {"right": False}, "seconds": 1.0}})
