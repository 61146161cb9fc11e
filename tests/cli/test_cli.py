"""The command line as a person or a script uses it: its output and exit codes.

The installed program is started only where that matters, since it takes seconds; elsewhere its own function runs here.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tacg.cli.main import run

TACG = str(Path(sys.executable).with_name("tacg"))
ROOT = Path(__file__).parents[2]


def installed(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed program."""
    return subprocess.run([TACG, *words], capture_output=True, text=True, timeout=120, check=False)


def tacg(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program in this process."""
    streams = {"stdin": stdin, "stdout": "", "stderr": ""}
    files = {name: io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8") for name, text in streams.items()}
    code: object = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tacg", *words])
        for name, file in files.items():
            patch.setattr(sys, name, file)
        try:
            run()
        except SystemExit as ended:
            code = ended.code or 0
    for file in files.values():
        file.flush()
    out, err = (files[name].buffer.getvalue().decode() for name in ("stdout", "stderr"))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(["tacg", *words], code, out, err)  # type: ignore[arg-type]


def document(*words: str, stdin: str = "") -> dict[str, object]:
    done = tacg(*words, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_generate_prints_the_answer_and_what_it_cost() -> None:
    done = installed("generate", "Hello", "--model", "tiny", "--set", "gen_length=16")
    assert done.returncode == 0
    assert len(done.stdout.strip("\n")) > 0
    assert "tokens per forward" in done.stderr
    assert "untrained weights" in done.stderr, "nobody should mistake noise for an answer"


def test_generate_holds_answers_to_what_is_asked(tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(
        '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    )
    for words, pattern in (
        (["--choice", "yes", "--choice", "no way"], "yes|no way"),
        (["--regex", "[0-9]{3}"], "[0-9]{3}"),
        (["--schema", str(tmp_path / "answer.json")], r'\{"n": -?[0-9]+\}'),
    ):
        (output,) = document("generate", "What is 3 plus 4?", *words, "--set", "gen_length=24")["outputs"]
        assert re.fullmatch(pattern, output["text"])


def test_generate_json_holds_every_commit() -> None:
    row = document("generate", "Hello", "-p", "tacg+klass", "-s", "gen_length=16", "-s", "early_stop=false")
    (output,) = row["outputs"]  # type: ignore[misc]
    assert output["forwards"] == output["steps"]
    assert output["tpf"] == pytest.approx(16 / output["forwards"])
    assert sorted(commit["position"] for commit in output["commits"]) == list(range(16))
    assert output["policy"] == "tacg+klass"


def test_prompts_come_from_stdin_too() -> None:
    row = document("generate", "-", "-s", "gen_length=8", stdin="one\ntwo\n\n[/bold] :warning:\r\n")
    assert [output["prompt"] for output in row["outputs"]] == [0, 1, 2]  # type: ignore[attr-defined]


def test_watch_draws_the_canvas() -> None:
    done = tacg("generate", "Hello", "--watch", "-s", "gen_length=16", "-s", "early_stop=false")
    assert done.returncode == 0, done.stderr
    assert "16/16 committed" in done.stderr
    assert "promoted by the trajectory" in done.stderr


def test_policies_models_and_doctor() -> None:
    listed = document("policies")
    assert {"schedule", "confidence", "klass", "tacg"} <= listed.keys()
    knob = listed["tacg"]["knobs"]["k_extra"]  # type: ignore[index]
    assert (knob["symbol"], knob["default"]) == ("K_extra", 2)
    one = document("policies", "tacg+klass")
    assert {"kl_threshold", "beta"} <= one["tacg+klass"]["knobs"].keys()  # type: ignore[index]
    assert "tacg:llada/gsm8k" in document("policies", "--presets")
    preset = document("policies", "tacg:llada/humaneval")["tacg:llada/humaneval"]["knobs"]["support_lambda"]  # type: ignore[index]
    assert (preset["value"], preset["default"]) == (2.0, 0.05)
    assert document("models")["families"]["llada"]["supported"] is True  # type: ignore[index]
    assert document("doctor")["packages"]["torch"]  # type: ignore[index]
    for verb in ("policies", "models", "doctor"):
        assert tacg(verb).returncode == 0
    assert "τ_floor" in tacg("policies", "tacg").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate", "Hi", "-p", "tagc"], "Did you mean 'tacg'?"),
        (["generate", "Hi", "-s", "k_xtra=1"], "Did you mean 'k_extra'?"),
        (["generate", "Hi", "-s", "k_extra=-1"], "`k_extra` must be int >= 0, got -1"),
        (["generate", "Hi", "-s", "k_extra"], "must be written name=value"),
        (["generate", "Hi", "-m", "nowhere"], "No checkpoint at 'nowhere'"),
        (["generate", "-"], "stdin was empty"),
        (["generate", "a", "b", "--watch"], "--watch shows one prompt, got 2"),
        (["policies", "klaas"], "Did you mean 'klass'?"),
        (["policies", "klaas", "--presets"], "Did you mean 'klass'?"),
        (["generate", "Hi", "-s", "suppress=x"], "`suppress` must be token ids"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str) -> None:
    done = tacg(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_help_has_examples() -> None:
    assert "generate" in tacg("--help").stdout
    assert installed("--version").stdout.startswith("tacg ")
    for verb in ("generate", "policies", "models", "doctor"):
        assert "Examples" in tacg(verb, "--help").stdout


def test_importing_is_light() -> None:
    """The package, its command line and its list of policies: no torch, no jinja, no hub, nothing heavy."""
    heavy = {"torch", "transformers", "numpy", "huggingface_hub", "tokenizers", "safetensors", "jinja2"}
    for line in ("import tacg", "import tacg.cli.main"):
        code = f"{line}; import sys; print(*{heavy!r} & sys.modules.keys())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "", f"{line} imports {done.stdout}"
    code = "import tacg; tacg.load; tacg.commit_step; import sys; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(example: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
