"""Every verb, every mistake that a user can make with files, devices and terminals: one line, exit code 2.

The program runs in this process (`run` is the console script's own function), so that a hundred pairs take seconds.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tacg.cli.main import run
from tests.cli.test_cli import TACG

pytestmark = pytest.mark.usefixtures("_no_hang")

DEEP = "[" * 100_000
ANSWERED = {"question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"}
BAD = {
    "deep": DEEP,
    "no JSON": "{",
    "a number": "5\n",
    "a list": "[1, 2]\n",
    "no text": "\udcff\udcfe",
    "nothing": "",
    "wrong types": '{"run": 5, "kind": 7, "question": [], "answer": {}, "id": [], "model_type": 3, "policy": 1}\n',
    "half a letter": '{"question": "\\ud800", "answer": "\\ud800", "id": "\\ud800", "kind": "\\ud800"}\n',
}
NOT_FILES = ("directory", "loop", "pipe", "missing")


def make(kind: str, home: Path) -> Path:
    """What can be in the place of a file."""
    path = home / f"{kind.replace(' ', '-')}.jsonl"
    if kind in BAD:
        path.write_bytes(BAD[kind].encode(errors="surrogateescape"))
    elif kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    return path


def told(words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The program's error message; anything but one line and exit code 2 fails."""
    monkeypatch.setattr(sys, "argv", ["tacg", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    (line,) = [each for each in said.splitlines() if each.startswith("error: ")]
    assert 20 < len(line) < 1000
    assert "Traceback" not in said
    return line


READERS = {
    "eval": ["eval", "-t", "gsm8k", "-m", "tiny", "--n", "1", "--data", "{file}"],
    "tasks": ["tasks", "gsm8k", "--data", "{file}"],
    "grade, set": ["grade", "-t", "gsm8k", "--data", "{file}", "--answers", "{good}"],
    "grade, answers": ["grade", "-t", "gsm8k", "--data", "{good}", "--answers", "{file}"],
    "table": ["table", "{file}"],
    "trace": ["trace", "{file}", "--out", "{home}/out"],
    "replay": ["trace", "{file}", "--replay", "tacg", "--out", "{home}/out"],
    "resume": ["eval", "-t", "pocket-sudoku", "-m", "tiny", "--n", "1", "--out", "{file}", "--resume"],
    "compare": ["compare", "-t", "pocket-sudoku", "-m", "tiny", "--n", "1", "--out", "{rows}"],
    "ablate": ["ablate", "-t", "pocket-sudoku", "-m", "tiny", "--quick", "--out", "{rows}"],
    "sweep": ["sweep", "frontier", "-m", "tiny", "--quick", "--out", "{rows}"],
    "diagnose": ["diagnose", "-m", "tiny", "--quick", "--out", "{rows}"],
    "tune": ["tune", "-t", "pocket-sudoku", "-m", "tiny", "--quick", "--out", "{rows}"],
    "arena": ["arena", "--redraw", "--out", "{rows}"],
    "recommend": ["recommend", "-t", "pocket-sudoku", "-m", "tiny", "--out", "{rows}"],
    "report": ["report", "-m", "tiny", "--quick", "--home", "{rows}"],
    "preset": ["generate", "Hi", "-m", "tiny", "-p", "tacg:{toml}"],
    "policies": ["policies", "tacg:{toml}"],
    "config": ["generate", "Hi", "-m", "{checkpoint}"],
}
# What is no mistake in this place: a file that a run begins with, a line that is cut off, rows without a key.
FINE = {
    *(("resume", kind) for kind in ("missing", "nothing", "no JSON")),
    *((verb, kind) for verb in ("compare", "ablate", "sweep", "diagnose", "tune", "recommend", "report")
      for kind in ("missing", "nothing", "wrong types")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "kind"),
    [(verb, kind) for verb in READERS for kind in (*BAD, *NOT_FILES) if (verb, kind) not in FINE],
)
def test_what_cannot_be_read(
    verb: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = make(kind, tmp_path)
    (tmp_path / "good.jsonl").write_text(json.dumps(ANSWERED | {"id": 0}) + "\n")
    for name in ("rows/rows.jsonl", "preset.toml", "checkpoint/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if os.path.lexists(bad):
            bad.rename(tmp_path / name) if name in READERS[verb][-1] else (tmp_path / name).symlink_to(bad)
    words = [
        word.format(
            file=bad, good=tmp_path / "good.jsonl", home=tmp_path, rows=tmp_path / "rows",
            toml=tmp_path / "preset.toml", checkpoint=tmp_path / "checkpoint",
        )
        for word in READERS[verb]
    ]  # fmt: skip
    assert str(tmp_path) in told(words, capsys, monkeypatch), "the file is named"


WRITERS = {
    "eval": ["eval", "-t", "pocket-sudoku", "-m", "tiny", "--n", "1", "--out", "{file}"],
    "grade": ["grade", "-t", "gsm8k", "--data", "{good}", "--answers", "{good}", "--out", "{file}"],
    "plot": ["table", "nowhere.jsonl", "--plot", "{file}"],
    "report, out": ["report", "-m", "tiny", "--quick", "--home", "{home}/rows", "--out", "{file}"],
    "compare": ["compare", "-t", "pocket-sudoku", "-m", "tiny", "--n", "1", "--out", "{directory}"],
    "ablate": ["ablate", "-m", "tiny", "--quick", "--out", "{directory}"],
    "sweep": ["sweep", "frontier", "-m", "tiny", "--quick", "--out", "{directory}"],
    "diagnose": ["diagnose", "-m", "tiny", "--quick", "--out", "{directory}"],
    "tune": ["tune", "-t", "pocket-sudoku", "-m", "tiny", "--quick", "--out", "{directory}"],
    "arena": ["arena", "-m", "tiny", "--quick", "--out", "{directory}"],
    "recommend": ["recommend", "-t", "pocket-sudoku", "-m", "tiny", "--out", "{directory}"],
    "report": ["report", "-m", "tiny", "--quick", "--home", "{directory}"],
    "reproduce": ["reproduce", "table3", "-m", "tiny", "--n", "1", "--out", "{directory}"],
    "bench": ["bench", "scan", "--quick", "--out", "{directory}"],
    "trace": ["trace", "Hi", "-m", "tiny", "--out", "{directory}"],
}
PLACES = {  # a file, and a directory, that cannot be written
    "something else is there": ("{home}/taken", "{home}/file"),
    "the parent is a file": ("{home}/file/x.jsonl", "{home}/file/x"),
    "no place for files": ("/proc/self/x.jsonl", "/proc/self/x"),
    "full": ("/dev/full", "/dev/full"),
    "a link that leads to itself": ("{home}/loop", "{home}/loop"),
    "a pipe": ("{home}/pipe", "{home}/pipe"),
    "a name too long": ("{home}/" + "x" * 300, "{home}/" + "x" * 300),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("verb", WRITERS)
def test_what_cannot_be_written_is_said_before_decoding(
    verb: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "good.jsonl").write_text(json.dumps(ANSWERED | {"id": 0}) + "\n")
    monkeypatch.setattr("tacg.cli.common.load_model", lambda *_, **__: pytest.fail("too late"))
    file, directory = (each.format(home=tmp_path) for each in PLACES[place])
    words = [
        word.format(file=file, directory=directory, home=tmp_path, good=tmp_path / "good.jsonl")
        for word in WRITERS[verb]
    ]
    assert file in (line := told(words, capsys, monkeypatch)) or directory in line


@pytest.mark.parametrize("device", ["meta", "cuda:99", "bogus", ""])
@pytest.mark.parametrize("verb", ["generate Hi", "chat", "eval -t pocket-sudoku", "serve --port 0", "reproduce table3"])
def test_devices_that_are_none(
    verb: str, device: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    line = told([*verb.split(), "-m", "tiny", "--device", device], capsys, monkeypatch)
    assert f"The device {device!r} cannot be used here" in line


SPOKEN = [
    ["--help"],
    *([verb, "--help"] for verb in ("generate", "chat", "eval", "compare", "serve", "trace")),
    ["policies"], ["policies", "tacg"], ["policies", "--presets"], ["models"], ["tasks"], ["doctor"],
    ["tasks", "gsm8k", "--data", "{good}"], ["generate", "Hé", "-m", "tiny", "-s", "gen_length=8", "--watch"],
    ["generate", "Hé", "-m", "tiny", "-s", "gen_length=8"], ["chat", "-m", "tiny", "-s", "gen_length=8", "--watch"],
    ["eval", "-t", "pocket-sudoku", "-m", "tiny", "--n", "1", "--watch"], ["reproduce", "table3", "--dry-run"],
    ["compare", "-t", "pocket-sudoku", "-m", "tiny", "--n", "2", "-p", "confidence", "-p", "tacg", "--out", "{home}/c"],
    ["trace", "Hé", "-m", "tiny", "-s", "gen_length=8", "--out", "{home}/t"], ["policies", "klaß"],
    ["ablate", "-m", "tiny", "--quick", "--out", "{home}/a"],
    ["diagnose", "-m", "tiny", "--quick", "--out", "{home}/d"],
]  # fmt: skip


@pytest.mark.parametrize("words", SPOKEN, ids=" ".join)
def test_terminals_that_know_only_ascii(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tmp_path / "good.jsonl"
    good.write_text(json.dumps({"question": "Où est Zoë · — ∎?", "answer": "é\n#### 5"}) + "\n")
    streams = {name: io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Zoë?\nHello\n/help\n".encode()), "ascii"))
    monkeypatch.setattr(sys, "argv", ["tacg", *(word.format(good=good, home=tmp_path) for word in words)])
    code = None
    try:
        run()
    except SystemExit as ended:
        code = ended.code or None
    for stream in streams.values():
        stream.flush()
    said = b"".join(stream.buffer.getvalue() for stream in streams.values())  # type: ignore[attr-defined]
    assert len(said.decode()) > 20  # answers and errors are UTF-8 even here, tables and notes are plain
    assert b"Traceback" not in said
    assert code == (2 if "klaß" in words else None)


@pytest.mark.parametrize("words", [["policies"], ["models", "--json"], ["generate", "Hi", "-m", "tiny"]])
def test_a_full_disk_behind_stdout(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([TACG, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: No space left on device. Fix that and try again."


def test_input_that_is_no_text() -> None:
    done = subprocess.run(
        [TACG, "generate", "-", "-m", "tiny"], input=b"\xff\xfe\n", capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert b"is not valid Unicode" in done.stderr.splitlines()[-1]
