"""docs/reading.md names what one decode really goes through, with its size, and that stays small."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacg
from tacg.scan.compiled import kernel

ROOT = Path(__file__).parents[1]
# Lines of the functions that one decode enters. Raised from 1,900 for layers in two steps and packed weights, then
# for admission by memory and questions that save operations on a CPU (twice), then for the seam of CUDA graphs and for
# the seams of the gate's and the commits' kernels; else only lowered (last by the native scan).
MOST = 1925
CORE = ("types", "gate", "lazy", "policies", "scan", "engine")
MOST_OF_CORE = 3400  # lines of the whole files of these rooms that it touches
SLACK = 15  # lines by which the page may be off before somebody has to count again

pytestmark = pytest.mark.skipif(kernel()[0] is None, reason="the page follows the native scan")
Touched = dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def touched() -> Touched:
    """In a process of its own: what earlier tests have cached would not be entered."""
    source = Path(tacg.__file__).parents[1]
    command = [sys.executable, "-m", "tests.reading_path"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, text=True, check=True
    )
    return {file: (own, whole) for file, (own, whole) in json.loads(done.stdout).items()}


@pytest.fixture(scope="module")
def section() -> str:
    return (ROOT / "docs/reading.md").read_text(encoding="utf-8")


def named(section: str) -> dict[str, int]:
    """The files that the page lists, with the lines that it says one reads there."""
    return {file: int(lines) for lines, file in re.findall(r"^ *(\d+)  src/tacg/(\S+)", section, re.MULTILINE)}


def test_the_page_lists_what_one_decode_goes_through(touched: Touched, section: str) -> None:
    told = named(section)
    assert touched.keys() == told.keys()
    wrong = {file: (told[file], own) for file, (own, _) in touched.items() if abs(told[file] - own) > SLACK}
    assert not wrong, "the page says the first, one reads the second"


def test_a_decode_stays_short_enough_to_read(touched: Touched, section: str) -> None:
    lines = sum(own for own, _ in touched.values())
    core = sum(whole for file, (_, whole) in touched.items() if file.removesuffix(".py").split("/")[0] in CORE)
    assert lines <= MOST
    assert core <= MOST_OF_CORE
    said = [int(number.replace(",", "")) for number in re.findall(r"(\d,\d{3}) lines", section)]
    assert said == [pytest.approx(lines, abs=50), pytest.approx(core, abs=50)]


def test_the_path_goes_through_the_whole_rule(touched: Touched) -> None:
    """A decode that never measured support would make the path look shorter than it is."""
    whole = {"persistence", "temporal_support", "commit_rule"}
    source = ast.parse((Path(tacg.__file__).parent / "gate.py").read_text(encoding="utf-8"))
    rule = [node for node in source.body if isinstance(node, ast.FunctionDef)]
    assert {node.name for node in rule} == whole
    assert touched["gate.py"][0] >= sum(node.end_lineno - node.lineno + 1 for node in rule if node.end_lineno)
