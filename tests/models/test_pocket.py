"""The built-in models: they are small, they are in the package, and they can do what their measured rows say."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tacg
from tacg.experiments.evaluate import evaluate
from tacg.models.loading import locate
from tacg.records.flat import read_rows
from tacg.tasks import get_task, task_names

HOME, FREE = locate("pocket"), locate("pocket-free")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pocket() -> tacg.LLM:
    return tacg.load("pocket")


def test_the_package_carries_it(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    files = [file for home in (HOME, FREE) for file in home.rglob("*") if file.is_file()]
    assert {HOME / "verifier" / "model.safetensors", FREE / "model.safetensors"} < {*files}
    for file in files:
        assert f"tacg/models/{file.relative_to(HOME.parent).as_posix()}" in names
    assert sum(file.stat().st_size for file in files) < 12e6


def test_it_brings_a_verifier_that_knows_its_tasks(pocket: tacg.LLM) -> None:
    """`apd` needs no option, and commits several tokens per step because draft and verifier agree on them."""
    quality = json.loads((HOME / "verifier" / "quality.json").read_text())
    assert all(found["right"] > 0.9 for found in quality.values()), "of the tokens of unseen answers"
    prompt = next(get_task("pocket-code").problems("dev", 1)).prompt
    output = pocket.generate(prompt, "apd", gen_length=96, block_length=32, early_stop=False)
    assert output.auxiliary == output.forwards == output.steps < 32


def test_its_record_is_of_these_weights_and_meets_the_bar() -> None:
    weights = hashlib.sha256((HOME / "model.safetensors").read_bytes()).hexdigest()
    rows = {(row["task"], row["decoder"]): row for row in read_rows(HOME / "quality.jsonl")}
    assert all(weights.startswith(row["weights"]) and row["n"] >= 500 for row in rows.values())
    bar = {"pocket-math": 0.85, "pocket-code": 0.85, "pocket-sudoku": 0.90}
    for task, least in bar.items():
        assert rows[task, "schedule"]["accuracy"] >= least
    assert rows["pocket-math", "confidence 0.9"]["steps"] >= 15, "there is a trajectory to be aware of"
    costs = [rows[task, "confidence 0.9"]["accuracy"] - rows[task, "confidence 0.5"]["accuracy"] for task in bar]
    assert sum(cost >= 0.05 for cost in costs) >= 2, "decoders cannot be told apart"
    card = (HOME / "README.md").read_text("utf-8")
    assert all(f"| {task} | {decoder} | {100 * row['accuracy']:.1f} [" in card for (task, decoder), row in rows.items())


def test_pocket_free_is_in_the_range_of_real_models() -> None:
    """One token per step is right in 65 to 85 %, within its interval; confidence 0.9 takes 8 steps per block."""
    weights = hashlib.sha256((FREE / "model.safetensors").read_bytes()).hexdigest()
    rows = {(row["task"], row["decoder"]): row for row in read_rows(FREE / "quality.jsonl")}
    assert all(weights.startswith(row["weights"]) and row["n"] >= 200 for row in rows.values())
    card = (FREE / "README.md").read_text("utf-8")
    for task in task_names("pocket-free"):
        slow, usual = (rows[task, decoder] for decoder in ("schedule", "confidence 0.9"))
        low, high = slow["accuracy_ci"]
        assert low <= 0.85
        assert high >= 0.65
        assert usual["steps_per_block"] >= 8
        assert 2 <= usual["tpf"] <= 5
        assert f"| {task} | {100 * slow['accuracy']:.1f} | {usual['steps_per_block']:.1f} |" in card


def test_pocket_free_does_what_its_record_says() -> None:
    llm = tacg.load("pocket-free")
    for task in task_names("pocket-free"):
        row = next(row for row in read_rows(FREE / "quality.jsonl") if (row["task"], row["decoder"]) == (task, "tacg"))
        run = evaluate(llm, get_task(task), "tacg", n=16, seed=7)
        assert run.row["accuracy"] > row["accuracy"] - 0.3, [item.text for item in run.items if not item.correct][:3]


@pytest.mark.parametrize("task", task_names())
def test_it_does_what_its_record_says(pocket: tacg.LLM, task: str) -> None:
    row = next(row for row in read_rows(HOME / "quality.jsonl") if (row["task"], row["decoder"]) == (task, "tacg"))
    run = evaluate(pocket, get_task(task), "tacg", n=16, seed=7)
    assert run.row["accuracy"] > row["accuracy"] - 0.25, [item.text for item in run.items if not item.correct][:3]
    assert run.row == run.row | {"n": 16, "seed": 7, "split": "test", "model": "pocket"}
    again = evaluate(pocket, get_task(task), "tacg", n=4, seed=7, batch_size=2)
    assert again.items == run.items[:4]


def test_the_command_line_answers_with_it() -> None:
    """Without an option that names a model, pocket is used."""
    (problem,) = get_task("pocket-math").problems("test", 1, seed=1)
    words = [Path(sys.executable).with_name("tacg"), "generate", problem.prompt, "--json"]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120)
    (output,) = json.loads(done.stdout.splitlines()[-1])["outputs"]
    assert "The answer is" in output["text"]
