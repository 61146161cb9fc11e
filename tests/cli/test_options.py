"""An option means the same in every verb. All verbs are tested, so a new one cannot be forgotten."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from tacg.cli import common, complete
from tacg.cli.common import as_typed, benchmark_files, load_tasks, own_policy, parse_settings, words_of
from tacg.cli.main import app, run
from tacg.errors import TacgError, unknown
from tests.cli.test_mistakes import told

if TYPE_CHECKING:
    from click import Command

VERBS: dict[str, Command] = get_command(app).commands  # type: ignore[attr-defined]
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_policy.py"


def options(verb: str) -> dict[str, Any]:
    return {flag: option for option in VERBS[verb].params for flag in option.opts if flag.startswith("--")}


def test_every_verb_with_a_model_takes_the_same_options() -> None:
    missing = {}
    for verb in VERBS:
        known = options(verb)
        wanted = {"--device", "--dtype", "--set", "--cache"} if "--model" in known else set()
        wanted |= {"--data", "--knob"} if {"--task", "--data"} & known.keys() else set()
        missing[verb] = wanted - known.keys()
    assert not {verb: names for verb, names in missing.items() if names}
    assert sum("--model" in options(verb) for verb in VERBS) > 10


def test_an_option_has_one_spelling_and_one_explanation() -> None:
    """Options of the same name have the same short form and help in every verb."""
    for name in ("--device", "--dtype", "--set", "--cache", "--data", "--knob", "--seed", "--split", "--json"):
        found = {
            (tuple(option.opts), option.help, option.multiple)
            for verb in VERBS
            for flag, option in options(verb).items()
            if flag == name
        }
        assert len(found) == 1, f"{name}: {found}"
    for name in ("--device", "--dtype"):
        assert "auto" in options("compare")[name].help


def test_shared_options_are_defined_once() -> None:
    """No verb spells out an option that `common` has."""
    shared = inspect.getsource(common)
    for file in sorted(Path(common.__file__).parent.glob("*.py")):
        if file.stem != "common":
            text = file.read_text(encoding="utf-8")
            for flag in ("--device", "--dtype", "--set", "--cache", "--data", "--knob", "--json", "--quick"):
                assert f'Option("{flag}"' not in text, f"{file.name} defines {flag}"
                assert f'"{flag}"' in shared


def test_words_for_another_process() -> None:
    words = words_of(model="tiny", set=["a=1", "b=2"], quick=True, redraw=False, cache=None, batch_size=3)
    assert words == ["--model", "tiny", "--set", "a=1", "--set", "b=2", "--quick", "--batch-size", "3"]


def test_the_cache_is_a_setting() -> None:
    assert parse_settings(["confidence", "klass"], ["threshold=0.5", "kl_threshold=0.1"], "dual") == {
        "threshold": 0.5,
        "kl_threshold": 0.1,
        "cache": "dual",
    }
    with pytest.raises(TacgError, match=r"`cache` must be auto \| none"):
        parse_settings("tacg", None, "big")


def test_files_and_knobs_go_to_the_tasks_that_take_them() -> None:
    assert benchmark_files(["gsm8k", "pocket-math"], ["a=b.jsonl"]) == {"gsm8k": "a=b.jsonl"}
    assert benchmark_files(["gsm8k", "mbpp"], ["mbpp=x", "gsm8k=y"]) == {"mbpp": "x", "gsm8k": "y"}
    with pytest.raises(TacgError, match="as several tasks take one: gsm8k, mbpp"):
        benchmark_files(["gsm8k", "mbpp"], ["x"])
    with pytest.raises(TacgError, match="pocket-math is generated and takes no --data"):
        benchmark_files(["pocket-math"], ["x"])
    one, other = load_tasks(["gsm8k", "mbpp"], ["mbpp=x"], ["subset=all"])
    assert (one.values()["data"], other.values()["data"], other.values()["subset"]) == (None, "x", "all")
    with pytest.raises(TacgError, match=r"Unknown knob of these tasks .sbset.\. Did you mean .subset."):
        load_tasks(["gsm8k", "mbpp"], None, ["sbset=all"])


# --- policies of your own --------------------------------------------------------------------------------------------


def test_a_policy_from_a_file_decodes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, policy in ((f"{EXAMPLE}:Bold", "bold(lead=0.7)"), (f"tacg+{EXAMPLE}:Bold", "tacg+bold(lead=0.7)")):
        words = ["generate", "Hi", "-m", "tiny", "-p", spec, "-s", "lead=0.7", "-s", "gen_length=8", "--json"]
        monkeypatch.setattr(sys, "argv", ["tacg", *words])
        with pytest.raises(SystemExit) as ended:
            run()
        assert not ended.value.code
        (output,) = json.loads(capsys.readouterr().out.splitlines()[-1])["outputs"]
        assert output["policy"] == policy
    assert own_policy(f"tacg+{EXAMPLE}:Bold:mine.toml") == "tacg+bold:mine.toml"
    assert as_typed("tacg+bold:mine.toml") == f"tacg+{EXAMPLE}:Bold:mine.toml", "as --jobs tells it to its processes"
    assert own_policy("tacg:llada/gsm8k") == as_typed("tacg:llada/gsm8k") == "tacg:llada/gsm8k"


NO_POLICIES = """
from dataclasses import dataclass
import tacg

class Plain: ...

class Loose(tacg.Policy):
    def decide(self, signals, state): ...

@dataclass(frozen=True)
class Silent(tacg.Policy): ...

@dataclass(frozen=True)
class Confidence(tacg.Policy):
    def decide(self, signals, state): ...
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py:Bold", "The policy file 'missing.py' cannot be read: No such file"),
        ("own.py:Silnt", "Unknown policy of 'own.py': 'Silnt'. Did you mean 'Silent'?"),
        ("own.py", "Name a policy of 'own.py', as in own.py:Class; it has Loose, Silent, Confidence."),
        ("own.py:Plain", "own.py:Plain must be a class that derives from tacg.Policy"),
        ("own.py:Loose", "own.py:Loose must be a frozen dataclass: write @dataclass(frozen=True) above the class"),
        ("tacg+own.py:Silent", "own.py:Silent must define decide(self, signals, state)"),
        ("own.py:Confidence", "A policy named 'confidence' exists already"),
        ("broken.py:Bold", "The policy file 'broken.py' cannot be run: ZeroDivisionError: division by zero"),
    ],
)
def test_files_without_a_policy(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(NO_POLICIES)
    (tmp_path / "broken.py").write_text("1 / 0")
    assert message in told(["generate", "Hi", "-m", "tiny", "-p", name], capsys, monkeypatch)
    assert message in told(["policies", name], capsys, monkeypatch), "wherever a policy is named"


def test_nobody_but_the_person_at_the_terminal_loads_a_file() -> None:
    """Neither a name in Python nor a request to a server runs a file."""
    from tacg.policies import get_policy

    with pytest.raises(TacgError, match="Unknown"):
        get_policy(f"{EXAMPLE.parent / 'none_loaded_before.py'}:Bold")


# --- names -----------------------------------------------------------------------------------------------------------


def test_completion_knows_every_name() -> None:
    from tacg.models.judges import JUDGES
    from tacg.models.loading import BUILT_IN
    from tacg.policies.registry import BUILT_IN as POLICIES
    from tacg.tasks import all_names

    assert {*POLICIES, "tacg+klass"} <= {*complete.policies("")}
    assert complete.policies("tacg+kl") == ["tacg+klass"]
    assert complete.tasks("") == all_names()
    assert complete.models("") == [*BUILT_IN, *JUDGES]


def test_completion_offers_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "own.py").touch()
    assert complete.models("./ch") == ["./checkpoint/"]
    assert complete.policies("ow") == ["own.py"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [("compare --policy kla", "klass"), ("eval --task pocket-m", "pocket-math"), ("chat --model ti", "tiny")],
)
def test_the_shell_completes(words: str, offered: str) -> None:
    asked = {"_TACG_COMPLETE": "complete_bash", "COMP_WORDS": f"tacg {words}", "COMP_CWORD": "3"}
    code = "import sys; sys.argv = ['tacg']; from tacg.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == [offered], done.stderr
    assert "torch" not in done.stderr


def test_an_unknown_name_brings_the_nearest_not_a_list() -> None:
    many = [f"decoder-{number}" for number in range(58)]
    message = str(unknown("policy", "decodr-12", many, "tacg policies"))
    assert "Did you mean 'decoder-12'?" in message
    assert "`tacg policies` lists all 58." in message
    assert message.count("decoder-") <= 3
    assert "There are 58, such as" in str(unknown("knob", "x", many))
    assert "Available: a, b." in str(unknown("split", "c", ["b", "a"]))
