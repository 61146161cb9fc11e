"""Traces: complete, readable when cut off, replayable, and shown by a page that works in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tacg
from tacg.canvas import Canvas
from tacg.engine.events import Finished
from tacg.errors import TacgError
from tacg.models.tiny import write_checkpoint
from tacg.trace import Trace, read_trace, record, replay, trace_of
from tacg.trace.player import write_player
from tests.cli.test_cli import tacg as run_tacg
from tests.revising import Reviser

SETTINGS = {"gen_length": 24, "block_length": 12, "early_stop": False}
REVISER = Reviser(remasks=2, edits=True)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def recorded(llm: tacg.LLM, policy: str | tacg.Policy, path: Path, **more: object) -> tuple[Trace, tacg.Output]:
    output = next(
        event.output
        for event in record(llm, "Hello <script>", policy, path, settings=SETTINGS | more)
        if isinstance(event, Finished)
    )
    return read_trace(path), output


@pytest.mark.parametrize("policy", ["confidence", "tacg", "tacg+klass", REVISER])
@pytest.mark.parametrize("observe", ["block", "sequence"])
def test_recording_changes_nothing_and_misses_nothing(
    llm: tacg.LLM, tmp_path: Path, policy: str | tacg.Policy, observe: str
) -> None:
    trace, output = recorded(llm, policy, tmp_path / "t.jsonl", observe=observe)
    plain = llm.generate("Hello <script>", policy, **SETTINGS, observe=observe)
    assert (output.tokens, output.commits, output.forwards) == (plain.tokens, plain.commits, plain.forwards)
    committed = [(p, t, s["step"], r) for s in trace.steps for p, t, r in s["committed"]]
    assert committed == [(c.position, c.token, c.step, c.reason) for c in output.commits]
    assert trace.end is not None
    assert trace.end["text"] == output.text
    assert trace.steps[-1]["forwards"] == output.forwards
    pieces = trace.document()["pieces"]
    assert {str(token) for token in output.tokens} <= pieces.keys()
    for name in ("streak", "support", "margin", "entropy", "kl"):
        assert all(name in step["names"] for step in trace.steps)


ENDS = tacg.get_policy("prophet", region_start=0, region_length=99, early=1.0, middle=1.0, late=1.0)


@pytest.mark.parametrize(
    "policy",
    [*("confidence", "klass", "slowfast", "tacg", "tacg+klass", "saber", "joint", ENDS), REVISER],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
@pytest.mark.parametrize("observe", ["block", "sequence"])
def test_a_policy_replayed_on_its_own_trace_decides_the_same(
    llm: tacg.LLM, tmp_path: Path, policy: str | tacg.Policy, observe: str
) -> None:
    trace, _ = recorded(llm, policy, tmp_path / "t.jsonl", observe=observe)
    again = replay(trace, policy)
    for ours, theirs in zip(again.steps, trace.steps, strict=True):
        expected = [[p, t, "recorded" if reason == "fallback" else reason] for p, t, reason in theirs["committed"]]
        assert sorted(ours["committed"]) == sorted(expected)


def test_replay_knows_the_grid_of_a_block_causal_model(tmp_path: Path) -> None:
    """Its blocks lie on a grid that begins with the prompt, so the first block of the answer is shorter."""
    llm = tacg.load(write_checkpoint(tmp_path / "model", family="llada2", seed=2, liveliness=4.0))
    trace, _ = recorded(llm, "confidence", tmp_path / "t.jsonl", gen_length=64, block_length=32, threshold=0.6)
    assert len(trace.start["blocks"]) == 3
    again = replay(trace, tacg.get_policy("confidence").replace(threshold=0.6))
    for ours, theirs in zip(again.steps, trace.steps, strict=True):
        assert sorted(place for place, *_ in ours["committed"]) == sorted(place for place, *_ in theirs["committed"])


def test_replay_says_when_it_cannot(llm: tacg.LLM, tmp_path: Path) -> None:
    trace, _ = recorded(llm, "confidence", tmp_path / "t.jsonl")
    other = tacg.get_policy("tacg").replace(beta=0.5)
    with pytest.raises(TacgError, match=r"beta=0\.5"):
        replay(trace, other)
    with pytest.raises(TacgError, match="noise"):
        replay(trace, tacg.get_policy("schedule").replace(rank_by="random"))
    with pytest.raises(TacgError, match="looks at committed tokens again"):
        replay(trace, REVISER)


def test_replay_follows_what_the_recording_takes_back(llm: tacg.LLM, tmp_path: Path) -> None:
    """A policy that never revises, on a recording that does: what it has not decided itself comes and goes."""
    trace, output = recorded(llm, Reviser(remasks=2), tmp_path / "t.jsonl")
    never, always = (tacg.get_policy("confidence").replace(threshold=bar) for bar in (1.0, 0.0))
    taken_back = [place for step in trace.steps for place, _, reason in step["committed"] if reason == "remask"]
    assert taken_back
    for ours, theirs in zip(replay(trace, never).steps, trace.steps, strict=True):
        expected = [[p, t, reason if reason == "remask" else "recorded"] for p, t, reason in theirs["committed"]]
        assert ours["committed"] == expected
    committed = [each for step in replay(trace, always).steps for each in step["committed"]]
    assert {reason for _, _, reason in committed} == {"base"}, "what it has decided itself stays"
    assert sorted(place for place, *_ in committed) == list(range(len(output.tokens)))


def test_given_tokens_are_no_commits(llm: tacg.LLM, tmp_path: Path) -> None:
    canvas = Canvas.parse("Once ⟨9⟩ and then ⟨7⟩ again")
    *_, finished = record(llm, canvas, REVISER, tmp_path / "t.jsonl", settings=SETTINGS)
    assert isinstance(finished, Finished)
    trace, length = read_trace(tmp_path / "t.jsonl"), len(finished.output.tokens)
    given, pieces = dict(trace.start["given"]), trace.document()["pieces"]
    assert trace.start["prompt"] == "Once "
    assert trace.start["gen_length"] == length == len(given) + 16
    assert "".join(pieces[str(token)] for token in given.values()) == " and then  again"
    assert sum(steps for _, _, steps in trace.start["blocks"]) == 16, "steps are shared out by masks"
    for each in (trace, replay(trace, "confidence")):
        written = {place for step in each.steps for place, *_ in step["committed"]}
        assert written == set(range(length)) - given.keys()
    with pytest.raises(TacgError, match=f"given tokens must lie within the {length} positions"):
        trace_of([{**trace.start, "given": [[length, 5]]}])


def test_a_trace_of_the_first_edition_opens(llm: tacg.LLM, tmp_path: Path) -> None:
    trace, _ = recorded(llm, "confidence", tmp_path / "t.jsonl")
    start = {name: value for name, value in trace.start.items() if name not in ("mask", "given", "rescans", "pieces")}
    steps = [{name: value for name, value in step.items() if name != "forwards"} for step in trace.steps]
    old = trace_of(json.loads(json.dumps([start, *steps, trace.end])))
    before, now = ([step["committed"] for step in replay(each, "tacg").steps] for each in (old, trace))
    assert before == now
    assert old.document()["pieces"] == trace.document()["pieces"]


def test_reading_a_trace_takes_no_torch() -> None:
    """A server writes players in a separate process, which should start quickly."""
    code = "import sys, tacg.serve.replay; from tacg.trace import read_trace; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_trace_that_was_cut_off_can_be_read(llm: tacg.LLM, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    whole, _ = recorded(llm, "tacg", path)
    path.write_text(path.read_text()[:-400])
    part = read_trace(path)
    assert part.end is None
    assert part.steps == whole.steps[: len(part.steps)]
    (tmp_path / "no.jsonl").write_text("{}\n")
    with pytest.raises(TacgError, match="is not a trace"):
        read_trace(tmp_path / "no.jsonl")


@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
def test_the_player_in_a_real_browser(llm: tacg.LLM, tmp_path: Path) -> None:
    one, output = recorded(llm, "confidence", tmp_path / "a.jsonl")
    two = replay(one, "tacg")
    page = write_player(tmp_path / "player.html", [one, two])
    assert not re.search(r"""(src|href)=["']?http""", page.read_text()), "it must open without a network"
    last = len(one.steps)
    words = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,800"]
    dumped = subprocess.run(
        [*words, "--dump-dom", f"{page.as_uri()}#{last}"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert f"step {last} / {last}" in dumped
    assert dumped.count('class="panel"') == 2
    shown = re.findall(r'class="token (?:base|fallback|extra)[^"]*"[^>]*>([^<]*)<', dumped.split('class="panel"')[1])
    assert len(shown) == len(output.tokens)
    picture = tmp_path / "shot.png"
    subprocess.run(
        [*words, f"--screenshot={picture}", f"{page.as_uri()}#3"], capture_output=True, timeout=60, check=True
    )
    from matplotlib.image import imread

    pixels = imread(picture)[:, :, :3]
    assert pixels.std() > 0.02, "an empty page"
    coloured = (pixels.max(axis=2) - pixels.min(axis=2) > 0.25).sum()
    assert coloured > 200, "committed tokens are coloured"


def test_the_command_line_records_and_replays(tmp_path: Path) -> None:
    words = ["trace", "-t", "pocket-sudoku", "-p", "confidence", "-p", "tacg", "-m", "tiny", "--out", str(tmp_path)]
    assert run_tacg(*words).returncode == 0
    page = (tmp_path / "player.html").read_text()
    data = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    assert [each["start"]["policy"] for each in data] == ["confidence", "tacg"]
    words = ["trace", str(tmp_path / "confidence.jsonl"), "--replay", "tacg", "--out", str(tmp_path / "re")]
    assert run_tacg(*words).returncode == 0
    assert "on the signals of confidence" in (tmp_path / "re/player.html").read_text()
    done = run_tacg("trace")
    assert done.returncode == 2
    assert "Give one prompt, or --task" in done.stderr
