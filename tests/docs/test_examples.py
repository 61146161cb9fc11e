"""The example notebooks print what they hold; badges and citation say what is so."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import tacg

ROOT = Path(__file__).parents[2]


def test_notebooks_print_what_they_hold() -> None:
    """In a separate kernel, as a user would run them."""
    notebooks = sorted((ROOT / "examples").glob("*.ipynb"))
    assert len(notebooks) == 2
    command = [sys.executable, str(ROOT / "scripts/run_notebooks.py"), "--check", *map(str, notebooks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_badges_and_citation_are_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    labels = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs/badges").glob("*.svg")}
    assert project["project"]["requires-python"].replace(">=", "≥ ") in labels["python"]
    assert project["project"]["license"] in labels["license"]
    assert project["tool"]["mypy"]["strict"] == ("mypy strict" in labels["types"])
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == tacg.__version__  # type: ignore[index]


def test_the_recording_is_small_and_moves() -> None:
    picture = (ROOT / "docs/demo.svg").read_text("utf-8")
    assert len(picture) < 1_500_000
    assert picture.count("@keyframes") > 5
    assert "http://" not in picture.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in picture
