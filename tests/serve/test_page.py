"""The live page in a real browser, on the real server with the built-in model. What it must show is what the library
says. Pictures: pytest's `tmp_path`, or the directory that the variable TACG_PICTURES names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tacg
from tacg.canvas import Canvas
from tacg.engine.events import Started, Step
from tacg.policies.presets import presets
from tacg.policies.recommended import recommended
from tacg.serve.app import page_files
from tacg.serve.guard import Access
from tacg.tasks import Problem, Task, get_task
from tacg.trace import player, read_trace, record
from tacg.types import Output
from tests.cli.test_cli import ROOT
from tests.revising import Reviser
from tests.serve.conftest import Running, running, wait_until

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PAGE, TRACE = ROOT / "src/tacg/serve/page", ROOT / "src/tacg/trace"
FILES = {*(PAGE / name for name in ("index.html", "page.css", "page.js", "icon.svg")), *player.SHARED}
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
PATIENCE = 120  # seconds
Example = dict[str, Any]


def test_the_wheel_holds_the_page(tmp_path: Path) -> None:
    code = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = {str(file.relative_to(ROOT / "src")) for file in (*FILES, TRACE / "player.html")}
        assert names <= set(packed.namelist())


def test_the_page_needs_nothing_from_elsewhere() -> None:
    assert set(page_files().values()) == FILES
    for file in FILES:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import|eval\(|new Function|innerHTML", text), file
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|<script(?![^>]* src=)|\son\w+=|\sstyle=", page), "a strict CSP allows nothing inline"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no browser on this machine")
    with playwright.sync_playwright() as play:
        running = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def pocket() -> tacg.LLM:
    return tacg.load("pocket")


@pytest.fixture(scope="module")
def server(pocket: tacg.LLM) -> Iterator[Running]:
    with running(pocket) as made:
        yield made


@pytest.fixture(scope="module")
def examples(server: Running) -> dict[str, Example]:
    """What the page's buttons put into the form, by what is written on them."""
    with server.http() as http:
        return {each["task"].removeprefix("pocket-"): each for each in http.get("/v1/tacg/info").json()["examples"]}


def alone(llm: tacg.LLM, example: Example, policy: str = "tacg", **knobs: Any) -> Output:
    """An example as the library decodes it."""
    return llm.generate(example["prompt"], policy, **example["settings"] | knobs)


class Faulty:
    """The model, but for rows whose prompt holds a word: `slow` ones take their time, `break` ones have NaN logits once
    fewer than 80 masks are left.
    """

    def __init__(self, llm: tacg.LLM) -> None:
        self.model, self.spec, self.device = llm.model, llm.model.spec, llm.model.device
        self.decode = llm.tokenizer.decode

    def __call__(self, tokens: Any, spans: Any, select: Any) -> Any:
        logits = self.model(tokens, spans, select)
        start = 0
        for row in torch.split(tokens, [len(span) for span in spans]):
            text = self.decode(row.tolist())
            if "slow" in text:
                time.sleep(0.2)
            if "break" in text and (row == self.spec.mask_id).sum() < 80:
                logits[(select >= start) & (select < start + len(row))] = torch.nan
            start += len(row)
        return logits


@pytest.fixture(scope="module")
def faulty(pocket: tacg.LLM) -> Iterator[Running]:
    with running(tacg.LLM(Faulty(pocket), pocket.tokenizer)) as made:
        yield made


class Visit:
    """A page that was opened; leaving it fails if the browser complained of anything but `known`, or went elsewhere.

    `asked` holds the decodes that the page asked for.
    """

    def __init__(self, browser: Any, address: str, *, known: str = "$^", **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, "locale": "en-GB"} | context)
        self.home, self.known = address.partition("#")[0], re.compile(known)
        self.complaints: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("request", self._note)
        self.page.goto(address)

    def _note(self, request: Any) -> None:
        if not request.url.startswith((self.home, f"blob:{self.home}")):
            self.complaints.append(f"went to {request.url}")
        if request.url.endswith("/v1/decode"):
            self.asked.append(request.post_data_json)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.context.close()
        if kind is None:
            assert not [each for each in self.complaints if not self.known.search(each)]


def picture(page: Any, folder: Path, name: str) -> None:
    folder = Path(os.environ.get("TACG_PICTURES", folder))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png", full_page=name.endswith("whole"))


def generate(page: Any, example: str | None = None, *, panels: int = 1) -> None:
    """Decode an example, or what the form holds, to its end."""
    if example:
        page.get_by_role("button", name=example).click()
    page.locator("#generate").click()
    page.locator("#speed").select_option("as it comes")
    page.wait_for_function("count => document.querySelectorAll('.state:not(:empty)').length === count", arg=panels)
    page.wait_for_selector("#save:visible")


def answer(page: Any, panel: int = 0) -> str:
    """The text of a canvas up to the end of the answer."""
    return str(page.locator(".canvas").nth(panel).evaluate("box => box.textContent")).partition("∎")[0]


def committed(page: Any) -> int:
    return int(page.locator(".canvas .token:not(.mask, .draft)").count())


def step_of(page: Any) -> tuple[int, int]:
    now, last = re.findall(r"\d+", page.locator(".where").inner_text())
    return int(now), int(last)


def problem_of(example: Example) -> tuple[Task, Problem]:
    task = get_task(example["task"])
    (problem,) = task.problems("test", 1, example["seed"])
    return task, problem


def verdict(example: Example, one: Output, two: Output) -> str:
    """What the page says about a race."""
    task, problem = problem_of(example)
    apart = two.steps - one.steps
    ahead = f"{(one if apart > 0 else two).policy} needs {abs(apart)} step{'s' * (abs(apart) > 1)} fewer."
    pace = ahead if apart else f"Both need {one.steps} steps."
    grades = ["right" if task.grade(problem, each.text).correct else "wrong" for each in (one, two)]
    both = (
        f"both are {grades[0]}"
        if grades[0] == grades[1]
        else f"{one.policy} is {grades[0]}, {two.policy} is {grades[1]}"
    )
    found = re.search(r"The answer is \d+\.", problem.answer)
    expected = f" Expected: “{found[0]}”" if found and "wrong" in grades else ""
    return f"{pace} The answers {'are the same' if one.text == two.text else 'differ'}; {both}.{expected}"


def test_generate(
    browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path
) -> None:
    expected = alone(pocket, examples["math"])
    with Visit(browser, server.url) as page:
        page.wait_for_selector("#generate:enabled")
        assert page.locator("#model").inner_text() == "pocket"
        picture(page, tmp_path, "first")
        generate(page, "math")
        picture(page, tmp_path, "generated-whole")
        assert answer(page) == expected.text
        shown = {reason: page.locator(f".canvas .token.{reason}").count() for reason in ("base", "extra", "fallback")}
        assert shown == Counter(commit.reason for commit in expected.commits)
        assert step_of(page) == (expected.steps, expected.steps)
        numbers = dict(zip(*(page.locator(f".numbers {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True))
        tpf = f"{expected.tpf:.2f}"
        assert numbers == {
            "step": str(expected.steps), "forwards": str(expected.forwards), "tokens per forward": tpf,
            "committed": f"{len(expected.commits)} of {examples['math']['settings']['gen_length']}",
        }  # fmt: skip
        told = f"Done: {len(expected.tokens)} tokens in {expected.steps} steps, {tpf} tokens per forward."
        task, problem = problem_of(examples["math"])
        right = task.grade(problem, expected.text).correct
        assert page.locator("#verdict").inner_text().startswith(f"The answer is {'right' if right else 'wrong'}.")
        assert page.locator(".grade").inner_text() == ("✓ right" if right else "✗ wrong")
        assert page.locator("#status").inner_text().startswith(f"{told} The answer is")


def test_the_form_of_an_answer(
    browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path
) -> None:
    """A schema is sent and satisfied, forced tokens have their own colour, and invalid JSON is not sent."""
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    visit = Visit(browser, server.url)
    with visit as page:
        page.get_by_role("button", name="math").click()
        page.locator("#form > summary").click()
        page.locator("#schema").fill('{"type": ')
        page.locator("#generate").click()
        assert "must be a JSON schema" in page.get_by_role("alert").inner_text()
        assert visit.asked == []
        page.locator("#schema").fill(json.dumps(schema))
        generate(page)
        picture(page, tmp_path, "form")
        expected = alone(pocket, examples["math"], schema=schema)
        assert answer(page) == expected.text
        assert isinstance(json.loads(expected.text)["answer"], int)
        assert visit.asked[0]["response_format"]["json_schema"]["schema"] == schema


def test_a_template(browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example]) -> None:
    """Its holes are filled, alone or within a schema; text without a hole is refused with the reason."""
    template, schema = '{"answer": ⟨4⟩}', {"type": "object", "properties": {"answer": {"type": "integer"}}}
    example, visit = examples["math"], Visit(browser, server.url, known="400")
    with visit as page:
        page.get_by_role("button", name="math").click()
        page.locator("#form > summary").click()
        page.locator("#template").fill("no hole")
        page.locator("#generate").click()
        page.wait_for_selector("#error:has-text('must have a hole')")
        page.locator("#template").fill(template)
        page.locator("#schema").fill(json.dumps(schema))
        assert page.locator("#formed").inner_text() == "template, JSON"
        generate(page)
        filled = pocket.fill(template, prompt=example["prompt"], **example["settings"], schema=schema)
        shown = page.locator(".canvas").evaluate("box => box.textContent")
        assert shown.replace("∎", "") == filled.text, "a position of a hole may be left empty"
        assert visit.asked[-1]["template"] == template


def test_fresh_examples_and_advice(browser: Any, server: Running, pocket: tacg.LLM, tmp_path: Path) -> None:
    """Says what the model knows; another example is a new problem; the arena's choice and presets are offered."""
    visit = Visit(browser, server.url)
    with visit as page:
        page.wait_for_selector("#generate:enabled")
        assert "pocket knows word problems" in page.locator("#knows").inner_text()
        page.get_by_role("button", name="math").click()
        first = page.locator("#prompt").input_value()
        page.get_by_role("button", name="Another").click()
        page.wait_for_function("first => document.querySelector('#prompt').value !== first", arg=first)
        (problem,) = get_task("pocket-math").problems("test", 1, 1)
        assert page.locator("#prompt").input_value() == problem.prompt
        offers = recommended()["pocket-math"]
        assert page.locator(".offer button").all_inner_texts() == list(dict.fromkeys(each["policy"] for each in offers))
        page.locator(".offer button").first.click()
        assert page.locator("#policy-0").input_value() == offers[0]["policy"]
        page.locator("#policy-0").select_option("tacg")
        assert page.locator("#sides fieldset").first.locator("> div > .dial:visible").count() == 3, (
            "the three that matter"
        )
        page.locator("#preset-0").select_option("llada/gsm8k")
        assert page.locator("#side-0-k_extra").input_value() == str(presets()["tacg:llada/gsm8k"]["knobs"]["k_extra"])
        page.locator("#preset-0").select_option("")
        page.locator("#prompt").fill(first)
        generate(page)
        assert "problem" not in visit.asked[0], "the prompt is not that of the example any more"
        assert page.locator(".grade").inner_text() == ""


def test_sudokus_are_grids(
    browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path
) -> None:
    expected = alone(pocket, examples["sudoku"], "confidence", threshold=0.5)
    _, problem = problem_of(examples["sudoku"])
    solution, clues = problem.answer.split(), re.findall(r"[.\d]", problem.prompt.partition(":")[2])
    with Visit(browser, server.url) as page:
        page.locator("#policy-0").select_option("confidence")
        page.get_by_role("button", name="sudoku").click()
        page.locator("#side-0-threshold").fill("0.5")
        generate(page)
        assert answer(page) == expected.text
        cells = page.locator(".canvas .grid .cell")
        assert cells.all_inner_texts() == expected.text.split()
        assert page.locator(".canvas .clue").count() == sum(clue != "." for clue in clues)
        wrong = sum(mine != right for mine, right in zip(expected.text.split(), solution, strict=True))
        assert page.locator(".canvas .cell.wrong").count() == wrong > 0
        tops = {round(box["y"]) for box in (cells.nth(i).bounding_box() for i in range(16))}
        assert len(tops) == 4, "every row of a grid is visible"
        picture(page, tmp_path, "sudoku")


def test_why_in_plain_words(browser: Any, server: Running, examples: dict[str, Example], tmp_path: Path) -> None:
    with Visit(browser, server.url) as page:
        generate(page, "math")
        for reason, words in (
            ("base", "reaches the threshold 0.9"),
            ("extra", "is above the floor"),
            ("fallback", "came first"),
        ):
            page.locator(f".canvas .token.{reason}").first.focus()
            assert words in page.locator("#card .why").inner_text()
        page.locator("#scrub").fill("1")
        page.locator(".canvas .token.draft").first.focus()
        assert re.search("below the threshold 0.9|has lasted 1 step", page.locator("#card .why").inner_text())
        page.locator("#policy-0").select_option("eb")
        generate(page)
        page.locator(".canvas .token.base").first.focus()
        assert "bound (" in page.locator("#card .why").inner_text()
        picture(page, tmp_path, "why")


def test_a_hole_is_typed(browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example]) -> None:
    visit = Visit(browser, server.url)
    with visit as page:
        page.get_by_role("button", name="math").click()
        page.locator("#form > summary").click()
        page.locator("#template").press_sequentially("The answer is<1>.")
        assert page.locator("#template").input_value() == "The answer is⟨1⟩."
        page.locator("#hole").click()
        assert page.locator("#template").input_value() == "The answer is⟨1⟩.⟨8⟩"
        page.locator("#holed").click()
        template = page.locator("#template").input_value()
        assert template == examples["math"]["template"]
        generate(page)
        filled = pocket.fill(template, prompt=examples["math"]["prompt"], **examples["math"]["settings"])
        assert page.locator(".canvas").evaluate("box => box.textContent").replace("∎", "") == filled.text
        assert page.locator(".grade").inner_text() in ("✓ right", "✗ wrong")


def test_only_what_was_turned_is_asked_for_and_it_can_be_reset(
    browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example]
) -> None:
    example = examples["math"]
    visit = Visit(browser, server.url)
    with visit as page:
        page.get_by_role("button", name="math").click()
        page.get_by_label("k_extra, slider").fill("1")
        assert page.locator("#side-0-k_extra").input_value() == "1"
        page.locator("#side-0-threshold").fill("0.7")
        page.locator("#ask .more > summary").first.click()
        page.locator("#side-0-support").select_option("log_ratio")
        page.locator("#side-0-preserve_margin").fill("0.5")
        generate(page)
        turned = {"k_extra": 1, "threshold": 0.7, "support": "log_ratio", "preserve_margin": 0.5}
        problem = {"task": example["task"], "seed": 0}
        plain = {"prompt": example["prompt"], "policy": "tacg", "problem": problem}
        assert visit.asked == [plain | example["settings"] | turned]
        assert answer(page) == alone(pocket, example, **turned).text
        page.locator("#reset").click()
        assert page.locator(".dial.changed").count() == 0
        generate(page)
        assert visit.asked[1:] == [plain]
        page.locator("#side-0-k_extra").fill("-3")
        page.locator("#generate").click()
        assert "“k_extra” must be a whole number, at least 0." in page.get_by_role("alert").inner_text()
        assert len(visit.asked) == 2


def test_scrub_with_keys_and_see_a_trajectory(
    browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path
) -> None:
    example = examples["math"]
    events = pocket.stream(example["prompt"], "tacg", **example["settings"])
    steps = [event for event in events if isinstance(event, Step)]
    last, half = len(steps), len(steps) // 2
    with Visit(browser, server.url, color_scheme="dark") as page:
        generate(page, "math")
        page.locator("#play").focus()
        for _ in range(last - half):
            page.keyboard.press("ArrowLeft")
        assert step_of(page) == (half, last)
        now = steps[half - 1]
        assert committed(page) == sum(len(step.committed) for step in steps[:half])
        assert page.locator(".canvas .token.draft").count() == len(now.proposals) - len(now.committed)
        page.locator(".canvas .token").first.focus()
        for _ in range(16):
            page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.dataset.position") == "16"
        assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("position 17, ")
        assert page.locator("#card .curve").count() == 3
        (commit,) = (each for step in steps for each in step.committed if each.position == 16)
        state = f"{commit.reason}, step {commit.step}: " if commit.step <= half else "still masked"
        assert state in page.locator("#card").inner_text()
        picture(page, tmp_path, "trajectory-dark")
        page.keyboard.press("ArrowRight")
        assert step_of(page) == (half + 1, last)
        page.keyboard.press("Escape")
        assert page.locator("#card").is_hidden()
        page.locator(".canvas .token").nth(3).hover()
        assert page.locator("#card").is_visible()
        page.locator("#scrub").fill("0")
        assert page.locator(".canvas .token:not(.mask)").count() == 0
        page.locator("#speed").select_option("fast")
        page.locator("body").press(" ")
        page.locator(".state", has_text="done").wait_for()
        assert step_of(page) == (last, last)


def test_race_on_one_clock(
    browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path
) -> None:
    example = examples["math"]
    runners = [alone(pocket, example, policy) for policy in ("tacg", "confidence")]
    visit = Visit(browser, server.url, viewport={"width": 1440, "height": 900})
    with visit as page:
        page.locator("#race").check()
        page.get_by_role("button", name="math").click()
        page.locator("#speed").select_option("fast", force=True)
        page.locator("#generate").click()
        seen: set[tuple[int, ...]] = set()

        def over() -> bool:
            seen.add(tuple(map(int, page.locator(".numbers .step dd").all_inner_texts())))
            return bool(page.locator("#verdict").is_visible())

        wait_until(over, PATIENCE)
        assert page.locator("#verdict").inner_text() == verdict(example, *runners)
        ends = [runner.steps for runner in runners]
        assert len(seen) > 5
        for pair in seen:
            assert pair == tuple(min(max(pair), end) for end in ends), "the same step, or at the end"
        assert tuple(map(int, page.locator(".numbers .step dd").all_inner_texts())) == tuple(ends)
        assert [answer(page, panel) for panel in (0, 1)] == [runner.text for runner in runners]
        problem = {"task": example["task"], "seed": 0}
        body = {"prompt": example["prompt"], "problem": problem} | example["settings"]
        assert sorted(visit.asked, key=str) == [body | {"policy": name} for name in ("confidence", "tacg")]
        page.locator("#scrub").fill(str(ends[0] // 2))
        assert page.locator("#verdict").is_hidden(), "not before the finish"
        picture(page, tmp_path, "race-whole")


def test_a_saved_replay_opens_as_a_file(
    browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path
) -> None:
    runners = [alone(pocket, examples["code"], policy) for policy in ("tacg", "confidence")]
    last = max(runner.steps for runner in runners)
    with Visit(browser, server.url) as page:
        page.locator("#race").check()
        generate(page, "code", panels=2)
        assert page.locator("#verdict").inner_text() == verdict(examples["code"], *runners)
        picture(page, tmp_path, "verdict")
        with page.expect_download() as found:
            page.locator("#save").click()
        assert found.value.suggested_filename == "tacg-tacg-confidence.html"
        file = tmp_path / "replay.html"
        found.value.save_as(file)
    with Visit(browser, file.as_uri(), offline=True) as page:
        assert step_of(page) == (last, last), "a replay opens at its end"
        assert (
            page.locator("#title").inner_text().count("(right)") + page.locator("#title").inner_text().count("(wrong)")
            == 2
        )
        assert page.locator(".facts").first.inner_text() == "96 positions in blocks of 32"
        page.locator(".facts").first.click()
        assert page.locator("#play").inner_text() == "Pause", "a click plays it from the start"
        page.locator(".facts").first.click()
        page.locator("#scrub").fill(str(last))
        assert page.locator(".panel h2").all_inner_texts() == ["tacg", "confidence"]
        assert [answer(page, panel) for panel in (0, 1)] == [runner.text for runner in runners]
        page.locator("body").press("ArrowLeft")
        assert step_of(page) == (last - 1, last)
        page.locator("#scrub").fill(str(last // 2))
        page.locator(".canvas .token").nth(7).hover()  # the mouse has to come from somewhere
        page.locator(".canvas .token").nth(8).hover()
        assert page.locator("#card .curve").count() == 3
        picture(page, tmp_path, "replay")


CANVAS = "Mia has 12 apples. ⟨20⟩ So Mia has ⟨6⟩ apples now.⟨10⟩"


def test_the_player_scrubs_through_changes_of_mind(browser: Any, llm: tacg.LLM, tmp_path: Path) -> None:
    """Back and forth, every step shows the canvas as it was: given, committed, masked again, edited."""
    policy, mask = Reviser(remasks=2, edits=True), llm.model.spec.mask_id
    events = list(record(llm, Canvas.parse(CANVAS), policy, tmp_path / "t.jsonl", settings={"block_length": 64}))
    started, steps = events[0], [event for event in events if isinstance(event, Step)]
    assert isinstance(started, Started)
    given = {place for place, token in enumerate(started.canvas) if token != mask}
    file = player.write_player(tmp_path / "player.html", [read_trace(tmp_path / "t.jsonl")])
    with Visit(browser, file.as_uri(), offline=True) as page:
        for number in [*range(len(steps) + 1), *range(len(steps) - 1, -1, -1)]:
            page.locator("#scrub").fill(str(number))
            canvas = steps[number - 1].canvas if number else started.canvas
            last = {commit.position: commit for step in steps[:number] for commit in step.committed}
            shown = page.locator(".canvas .token").evaluate_all("all => all.map(each => each.className.split(' '))")
            for place, (token, kinds) in enumerate(zip(canvas, shown, strict=True)):
                reason = last[place].reason if place in last else ""
                assert ("given" in kinds) == (place in given)
                assert bool({"mask", "draft"} & set(kinds)) == (token == mask)
                assert ("remask" in kinds) == (reason == "remask")
                assert (reason in kinds) == (reason != "")
                assert ("new" in kinds) == (place in last and last[place].step == number)
            written = sum(token != mask for token in canvas) - len(given)
            assert page.locator(".numbers .committed dd").inner_text() == f"{written} of {len(canvas) - len(given)}"
        legend = page.locator("#legend").inner_text()
        assert all(word in legend for word in ("remask", "edit", "given"))
        assert "branch" not in legend, "what does not happen is not explained"
        back = next(commit for step in steps for commit in step.committed if commit.reason == "remask")
        page.locator("#scrub").fill(str(back.step))
        page.locator(".canvas .token").nth(back.position).focus()
        assert f"remask, step {back.step}: taken back and masked again" in page.locator("#card").inner_text()
        told = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert f"masked again in step {back.step}" in told
        picture(page, tmp_path, "revising-whole")


def test_the_live_page_shows_what_is_taken_back(
    browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path
) -> None:
    expected = alone(pocket, examples["math"], "saber")
    back = [commit for commit in expected.commits if commit.reason == "remask"]
    with Visit(browser, server.url) as page:
        assert "remask" not in page.locator("#legend").inner_text()
        page.locator("#policy-0").select_option("saber")
        generate(page, "math")
        assert answer(page) == expected.text
        assert "remask" in page.locator("#legend").inner_text()
        page.locator("#scrub").fill(str(back[0].step))
        assert page.locator(".canvas .token.remask.new").count() == sum(each.step == back[0].step for each in back)
        picture(page, tmp_path, "saber")


def test_phone(browser: Any, server: Running, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path) -> None:
    expected = alone(pocket, examples["math"])
    with Visit(browser, server.url, **PHONE) as page:
        picture(page, tmp_path, "phone-first")
        generate(page, "math")
        assert answer(page) == expected.text
        picture(page, tmp_path, "phone")
        page.locator("#scrub").fill(str(expected.steps // 2))
        page.locator(".canvas .token").nth(12).tap()
        assert page.locator("#card .curve").count() == 3
        assert "position 13" in page.locator("#card").inner_text()
        picture(page, tmp_path, "phone-card")
        page.locator("#race").check()
        page.locator("#settings > summary").click()
        picture(page, tmp_path, "phone-whole")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing sticks out"


def hang_up(server: Running) -> None:
    """Cut all connections, as a machine that dies does."""
    for each in list(server.server.server_state.connections):
        each.loop.call_soon_threadsafe(each.transport.abort)  # type: ignore[union-attr]


def cut_short(route: Any) -> None:
    """What the server answers, but for its second half."""
    whole = route.fetch()
    route.fulfill(response=whole, body=whole.text()[: len(whole.text()) // 2])


def test_errors_are_plain(
    browser: Any, faulty: Running, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path
) -> None:
    """What had arrived stays on the page if a row fails, a connection is cut, or a response ends early."""
    example = examples["math"]
    with Visit(browser, faulty.url, known="400|ERR_INCOMPLETE_CHUNKED") as page:

        def ask(prompt: str) -> None:
            page.locator("#prompt").fill(prompt)
            page.locator("#generate").click()

        def told(words: str) -> str:
            page.get_by_role("alert").filter(has_text=words).wait_for()
            page.wait_for_selector("#generate:enabled")
            return str(page.get_by_role("alert").inner_text())

        def check_what_stays(prompt: str) -> None:
            now, last = step_of(page)
            steps = [commit.step for commit in alone(pocket, example | {"prompt": prompt}).commits]
            assert 0 < now == last < max(steps)
            assert committed(page) == sum(step <= last for step in steps)
            assert page.locator(".state").inner_text() == "stopped"
            assert page.locator("#save").is_visible()

        page.get_by_role("button", name="math").click()
        page.locator("#speed").select_option("as it comes", force=True)
        ask("  ")
        told("Write a prompt first")

        ask(fails := example["prompt"] + " break")
        told("could not be decoded: Unusable logits (NaN")
        check_what_stays(fails)
        picture(page, tmp_path, "error-midway")

        ask(slow := example["prompt"] + " slow")
        page.wait_for_function("() => +document.querySelector('.numbers .step dd')?.textContent >= 2")
        hang_up(faulty)
        cut = "The connection ended before the answer did; what arrived is shown."
        assert told(cut) == cut
        check_what_stays(slow)

        page.route("**/v1/decode", cut_short)
        ask(example["prompt"])
        assert told(cut) == cut
        check_what_stays(example["prompt"])
        page.unroute("**/v1/decode")

        page.locator("#decode-gen_length").fill("5000")
        page.locator("#race").check()
        page.locator("#generate").click()
        assert told("at most 1024").count("at most") == 1, "once for both sides"
        picture(page, tmp_path, "error")


def dropped(server: Running) -> int:
    """How many rows the server dropped before their end."""
    with server.http() as http:
        found = re.search(r'^tacg_rows_total\{how="dropped"\} (\d+)', http.get("/metrics").text, re.MULTILINE)
    return int(found[1]) if found else 0


def test_stop_leaves_the_stream(browser: Any, faulty: Running, examples: dict[str, Example]) -> None:
    before = dropped(faulty)
    with Visit(browser, faulty.url) as page:
        page.get_by_role("button", name="math").click()
        page.locator("#policy-0").select_option("schedule")  # one token per step: it would take long
        page.locator("#prompt").fill(f"{examples['math']['prompt']} slow")
        page.locator("#speed").select_option("as it comes", force=True)
        page.locator("#generate").click()
        page.wait_for_function("() => +document.querySelector('.numbers .step dd')?.textContent >= 3")
        page.locator("#stop").click()
        page.wait_for_selector("#generate:enabled")
        assert page.locator(".state").inner_text() == "stopped"
        assert page.locator("#error").is_hidden()
        assert page.locator("#save").is_visible(), "what had come can be saved"
        wait_until(lambda: faulty.rows == 0, PATIENCE)
    assert dropped(faulty) == before + 1


def test_a_key_is_asked_for(browser: Any, pocket: tacg.LLM, examples: dict[str, Example], tmp_path: Path) -> None:
    access = Access.bound_to("127.0.0.1", "sesame")
    with running(pocket, access=access) as locked, Visit(browser, locked.url, known="401") as page:
        page.wait_for_selector("#key:visible")
        assert page.locator("#error").is_hidden()
        picture(page, tmp_path, "locked")
        page.locator("#key").fill("simsim")
        page.locator("#unlock").click()
        page.get_by_role("alert").filter(has_text="That key is wrong.").wait_for()
        page.locator("#key").fill("sesame")
        page.locator("#unlock").click()
        page.wait_for_selector("#generate:enabled")
        assert page.locator("#key").is_hidden()
        assert page.locator("#error").is_hidden()
        generate(page, "sudoku")
        assert answer(page) == alone(pocket, examples["sudoku"]).text
