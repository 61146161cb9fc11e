"""`tacg chat` as a person or a pipe uses it: the installed program, line by line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tacg
from tacg.cli.chat import COMMANDS, Conversation, settled
from tests.cli.test_cli import TACG

SHORT = ["-m", "tiny", "-s", "gen_length=16"]


def chat(stdin: str, *words: str) -> subprocess.CompletedProcess[str]:
    words = (TACG, "chat", *SHORT, *words)
    return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def test_it_answers_with_history_and_does_what_it_is_told(llm: tacg.LLM, tmp_path: Path) -> None:
    page, sheet = tmp_path / "chat.md", tmp_path / "chat.json"
    lines = [
        "Hello", "", "/set k_extra=1 gen_length=12", "two\\", "lines", "/policy confidence", "/watch", "watched",
        f"/save {page}", f"/save {page}", f"/save {sheet}", "/help", "/clear", "afresh",
    ]  # fmt: skip
    done = chat("\n".join(lines), "--json")
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    saved = json.loads(sheet.read_text())
    said = [each["content"] for each in saved["messages"]]
    assert said[::2] == ["Hello", "two\nlines", "watched"]
    assert (saved["policy"], saved["settings"]) == ("confidence", {"gen_length": 12})
    assert "(it has no k_extra=1)" in done.stderr
    assert "12/12 committed" in done.stderr, "the third answer was watched"
    assert all(name in done.stderr for name in COMMANDS)

    messages = saved["messages"][:3]
    again = llm.generate(messages, "tacg", k_extra=1, gen_length=12)
    assert said[3] == again.text, "the second answer is the model's to the whole conversation so far"
    assert page.read_text().startswith("**user**\n\nHello\n\n**assistant**")
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["messages"][0]["content"] == "afresh"
    *answers, _ = done.stdout.splitlines()
    assert answers == [*said[1::2], last["messages"][1]["content"]], "stdout holds the answers and nothing else"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/polcy tacg", "Did you mean '/policy'?"),
        ("/policy tagc", "Did you mean 'tacg'?"),
        ("/set k_xtra=1", "Did you mean 'k_extra'?"),
        ("/set k_extra=-1", "`k_extra` must be int >= 0, got -1"),
        ("/set k_extra", "must be written name=value"),
        ("/set gen_length=64 block_length=1 steps=2", "`steps` must be at least the number of blocks"),
        ("/save", "/save must be followed by a file"),
        ("/save /nowhere/at/all.md", "cannot be written"),
        (f"/save {__file__}", "exists already; choose another name"),
        ("x" * 1100, "must fit 1024 positions"),
    ],
)
def test_a_mistake_is_one_line_and_the_chat_goes_on(
    llm: tacg.LLM, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = Conversation(llm, "tiny", "tacg", {"gen_length": 8}, watching=False, delay=0)
    with pytest.raises(tacg.TacgError, match=re.escape(message)):
        talk.take(line)
    assert (talk.policy, talk.settings, talk.messages) == ("tacg", {"gen_length": 8}, [])
    talk.take("Hello")
    assert [each["role"] for each in talk.messages] == ["user", "assistant"]


def test_mistakes_do_not_end_the_program() -> None:
    done = chat("/polcy\nHello\n/quit\nnever read\n", "--json")
    assert done.returncode == 0
    assert "Did you mean '/policy'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(json.loads(done.stdout.splitlines()[-1])["messages"]) == 2
    assert subprocess.run([TACG, "chat", "-p", "tagc"], input="", capture_output=True, check=False).returncode == 2


def test_a_long_conversation_loses_its_oldest_turns(llm: tacg.LLM, capsys: pytest.CaptureFixture[str]) -> None:
    talk = Conversation(llm, "tiny", "tacg", {"gen_length": 8}, watching=False, delay=0)
    for _ in range(4):
        talk.take("x" * 400)
    assert len(talk.messages) == 8, "they stay in the chat"
    assert "are left out" in capsys.readouterr().err


def test_what_is_said_early_is_never_taken_back(llm: tacg.LLM) -> None:
    said = ""
    for event in llm.stream("Hello", "tacg", gen_length=48, block_length=16):
        if isinstance(event, tacg.Step):
            text = settled(llm, event)
            assert text.startswith(said)
            said = text
        elif isinstance(event, tacg.Finished):
            assert event.output.text.startswith(said)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_stops_the_answer_and_keeps_the_chat() -> None:
    words = [TACG, "chat", "-m", "tiny", "-p", "schedule", "-s", "gen_length=900", "-s", "block_length=1", "--json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as running:  # type: ignore[call-overload]
        running.stdin.write(b"Hello\n")
        running.stdin.flush()
        begun = os.read(running.stdout.fileno(), 1)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(b"/set gen_length=8 block_length=8\nStill there?\n", timeout=60)
    assert running.returncode == 0, err
    assert b"stopped" in err
    messages = json.loads((begun + out).splitlines()[-1])["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant"] * 2
    assert 0 < len(messages[1]["content"]) < 900
    assert messages[1]["content"].encode() == (begun + out)[: len(messages[1]["content"].encode())]


@pytest.mark.skipif(sys.platform == "win32", reason="terminals")
def test_at_a_terminal_lines_are_remembered_and_completed(tmp_path: Path) -> None:
    import pty

    mine, theirs = pty.openpty()
    words = [TACG, "chat", *SHORT]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as running:
        os.close(theirs)
        _read_until(mine, b"Ctrl-D leaves")
        os.write(mine, b"/wat\t\n")
        _read_until(mine, b"canvas is shown")
        while not select.select([mine], [], [], 1)[0]:  # one that comes before readline listens is lost
            running.send_signal(signal.SIGINT)  # the terminal is not the child's own: a typed Ctrl-C would not do
        _read_until(mine, b"/quit or Ctrl-D")
        os.write(mine, b"\x04")
        with contextlib.suppress(OSError):  # whoever leaves a terminal waits until all that it wrote is read
            _read_until(mine, b"nothing that it says")
        running.wait(timeout=60)
    os.close(mine)
    assert running.returncode == 0
    assert "/watch" in (tmp_path / "tacg" / "chat_history").read_text()


def _read_until(terminal: int, words: bytes) -> None:
    """Read what the program says until these words have come, and a new prompt after them."""
    screen = b""
    while "› ".encode() not in screen.partition(words)[2]:
        assert select.select([terminal], [], [], 60)[0], screen
        screen += os.read(terminal, 1000)
