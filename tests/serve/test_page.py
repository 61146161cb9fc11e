"""The live page in a real browser, against a server that decodes a scripted story. Pictures: pytest's `tmp_path`, or
the directory that the variable TACG_PICTURES names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.stand_in import STORY, Handler, serving
from tests.test_cli import ROOT

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FILES = {"index.html", "page.css", "page.js", "canvas.css", "canvas.js", "icon.svg"}
PAGE = ROOT / "src/tacg/serve/page"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


def test_the_wheel_holds_the_page(tmp_path: Path) -> None:
    code = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert {f"tacg/serve/page/{name}" for name in FILES} | {"tacg/trace/player.html"} <= set(packed.namelist())


def test_the_page_needs_nothing_from_elsewhere() -> None:
    assert {path.name for path in PAGE.iterdir()} == FILES
    for name in FILES - {"icon.svg"}:
        text = (PAGE / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import|eval\(|new Function|innerHTML", text), name
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
def served() -> Iterator[tuple[str, type[Handler]]]:
    with serving() as found:
        yield found


class Visit:
    """A page that was opened; leaving it fails if the browser complained or went elsewhere."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, "locale": "en-GB"} | context)
        self.complaints: list[str] = []
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("request", lambda asked: self._near(asked.url, address.partition("#")[0]))
        self.page.goto(address)

    def _near(self, url: str, address: str) -> None:
        if not url.startswith((address, "blob:")):
            self.complaints.append(f"went to {url}")

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.context.close()
        if kind is None:
            assert not self.complaints


def picture(page: Any, folder: Path, name: str) -> None:
    folder = Path(os.environ.get("TACG_PICTURES", folder))
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png", full_page=name.endswith("whole"))


def generate(page: Any, example: str = "apples", *, speed: str = "as it comes", panels: int = 1) -> None:
    """Decode an example to its end."""
    page.get_by_role("button", name=example).click()
    page.locator("#generate").click()
    page.locator("#speed").select_option(speed)
    page.wait_for_function("count => document.querySelectorAll('.state:not(:empty)').length === count", arg=panels)


def canvas_text(page: Any, panel: int = 0) -> str:
    return str(page.locator(".canvas").nth(panel).evaluate("box => box.textContent"))


def step_of(page: Any) -> tuple[int, int]:
    now, last = re.findall(r"\d+", page.locator(".where").inner_text())
    return int(now), int(last)


def test_generate(browser: Any, served: tuple[str, type[Handler]], tmp_path: Path) -> None:
    with Visit(browser, served[0]) as page:
        page.wait_for_selector("#generate:enabled")
        assert page.locator("#model").inner_text() == "storyteller"
        picture(page, tmp_path, "first")
        generate(page)
        picture(page, tmp_path, "generated-whole")
        assert canvas_text(page).startswith(STORY)
        assert page.locator(".token.extra").count() > page.locator(".legend .token.extra").count()
        now, last = step_of(page)
        assert now == last
        numbers = dict(zip(*(page.locator(f".numbers {tag}").all_inner_texts() for tag in ("dt", "dd")), strict=True))
        assert numbers["step"] == numbers["forwards"] == str(last)
        tokens = re.search(r"Done: (\d+) tokens", page.locator("#status").inner_text())
        assert tokens is not None
        assert numbers["tokens per forward"] == f"{int(tokens[1]) / last:.2f}"


def test_only_what_was_turned_is_asked_for_and_it_can_be_reset(browser: Any, served: tuple[str, type[Handler]]) -> None:
    with Visit(browser, served[0]) as page:
        page.get_by_role("button", name="short").click()
        page.get_by_label("k_extra, slider").fill("1")
        assert page.locator("#side-0-k_extra").input_value() == "1"
        page.locator("#side-0-threshold").fill("0.7")
        page.locator("#ask .more > summary").first.click()
        page.locator("#side-0-support").select_option("log_ratio")
        page.locator("#side-0-preserve_margin").fill("0.5")
        page.locator("#generate").click()
        page.wait_for_selector("#save:visible")
        expected = {"k_extra": 1, "threshold": 0.7, "support": "log_ratio", "preserve_margin": 0.5}
        expected |= {"gen_length": 24, "block_length": 12}
        asked = served[1].asked[-1]
        assert asked == {"prompt": "Say something short.", "policy": "tacg"} | expected
        page.locator("#reset").click()
        assert page.locator(".dial.changed").count() == 0
        page.locator("#side-0-k_extra").fill("-3")
        page.locator("#generate").click()
        assert "“k_extra” must be a whole number, at least 0." in page.get_by_role("alert").inner_text()


def test_scrub_with_keys_and_see_a_trajectory(browser: Any, served: tuple[str, type[Handler]], tmp_path: Path) -> None:
    with Visit(browser, served[0], color_scheme="dark") as page:
        generate(page)
        now, last = step_of(page)
        page.locator("#play").focus()
        for _ in range(last // 2):
            page.keyboard.press("ArrowLeft")
        assert step_of(page) == (now - last // 2, last)
        assert page.locator(".canvas .token.draft").count() > 0
        assert page.locator(".canvas .token.mask").count() > 0
        page.locator(".canvas .token").first.focus()
        for _ in range(16):
            page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.dataset.position") == "16"
        assert page.locator("#card .curve").count() == 3
        assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("position 17, ")
        picture(page, tmp_path, "trajectory-dark")
        page.keyboard.press("ArrowRight")
        assert step_of(page)[0] == now - last // 2 + 1
        page.keyboard.press("Escape")
        assert page.locator("#card").is_hidden()
        page.locator(".canvas .token").nth(3).hover()
        assert page.locator("#card").is_visible()
        page.locator("#scrub").fill("0")
        assert page.locator(".canvas .token:not(.mask)").count() == 0
        page.locator("#speed").select_option("fast")
        page.locator("body").press(" ")
        page.wait_for_function("() => document.querySelector('.state').textContent.startsWith('done')")
        assert step_of(page) == (last, last)


def test_race_on_one_clock(browser: Any, served: tuple[str, type[Handler]], tmp_path: Path) -> None:
    with Visit(browser, served[0], viewport={"width": 1440, "height": 900}) as page:
        page.locator("#race").check()
        page.get_by_role("button", name="apples").click()
        page.locator("#speed").select_option("fast", force=True)
        page.locator("#generate").click()
        seen = set()
        while not page.locator("#verdict").is_visible():
            seen.add(tuple(page.locator(".numbers .step dd").all_inner_texts()))
            page.wait_for_timeout(60)
        finished = [int(each) for each in page.locator(".numbers .step dd").all_inner_texts()]
        for one, two in seen:
            assert one == two or int(one) == finished[0] or int(two) == finished[1], "the same step, or at the end"
        assert len(seen) > 5
        assert [each["policy"] for each in served[1].asked[-2:]] == ["tacg", "confidence"] or [
            each["policy"] for each in served[1].asked[-2:]
        ] == ["confidence", "tacg"]
        assert re.search(
            r"needs \d+ steps? fewer\. The answers (differ|are the same)\.", page.locator("#verdict").inner_text()
        )
        page.locator("#scrub").fill(str(finished[0] // 2))
        picture(page, tmp_path, "race-whole")


def test_a_saved_replay_opens_as_a_file(browser: Any, served: tuple[str, type[Handler]], tmp_path: Path) -> None:
    with Visit(browser, served[0]) as page:
        page.locator("#race").check()
        generate(page, panels=2)
        _, last = step_of(page)
        with page.expect_download() as found:
            page.locator("#save").click()
        assert found.value.suggested_filename == "tacg-tacg-confidence.html"
        file = tmp_path / "replay.html"
        found.value.save_as(file)
    with Visit(browser, f"{file.as_uri()}#{last}", offline=True) as page:
        assert step_of(page) == (last, last)
        assert page.locator(".panel h2").all_inner_texts() == ["tacg", "confidence"]
        assert canvas_text(page).startswith(STORY)
        page.locator("body").press("ArrowLeft")
        assert step_of(page) == (last - 1, last)
        page.locator("#scrub").fill("12")
        page.locator(".canvas .token").nth(8).hover()
        picture(page, tmp_path, "replay")


def test_phone(browser: Any, served: tuple[str, type[Handler]], tmp_path: Path) -> None:
    with Visit(browser, served[0], **PHONE) as page:
        picture(page, tmp_path, "phone-first")
        generate(page)
        picture(page, tmp_path, "phone")
        page.locator("#scrub").fill("14")
        page.locator(".canvas .token").nth(12).tap()
        assert page.locator("#card .curve").count() == 3
        assert "position 13" in page.locator("#card").inner_text()
        picture(page, tmp_path, "phone-card")
        page.locator("#race").check()
        page.locator("#settings > summary").click()
        picture(page, tmp_path, "phone-whole")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing sticks out"


def test_errors_are_plain(browser: Any, served: tuple[str, type[Handler]], tmp_path: Path) -> None:
    alert = "[role=alert]"
    visit = Visit(browser, served[0])
    with visit as page:
        page.locator("#prompt").fill("  ")
        page.locator("#generate").click()
        assert "Write a prompt first" in page.locator(alert).inner_text()
        page.locator("#prompt").fill("break")
        page.locator("#generate").click()
        page.wait_for_function("() => document.querySelector('[role=alert]').textContent.includes('NaN logits')")
        assert page.locator(".canvas .token").count() > 0, "what had come stays"
        page.locator("#prompt").fill("cut")
        page.locator("#generate").click()
        page.wait_for_function("() => document.querySelector('[role=alert]').textContent.includes('ended before')")
        page.locator("#decode-gen_length").fill("5000")
        page.locator("#race").check()
        page.locator("#generate").click()
        page.wait_for_function("() => document.querySelector('[role=alert]').textContent.includes('must fit 4096')")
        assert page.locator(alert).inner_text().count("must fit") == 1, "once for both sides"
        picture(page, tmp_path, "error")
        assert page.locator("#generate").is_enabled()
        visit.complaints = [each for each in visit.complaints if "400" not in each]  # the browser tells of those itself


def test_stop_leaves_the_stream(browser: Any, served: tuple[str, type[Handler]]) -> None:
    with Visit(browser, served[0]) as page:
        page.locator("#prompt").fill("slow")
        page.locator("#speed").select_option("as it comes", force=True)
        page.locator("#generate").click()
        page.wait_for_function("() => document.querySelector('.numbers .step dd')?.textContent === '3'")
        page.locator("#stop").click()
        page.wait_for_selector("#generate:enabled")
        assert page.locator(".state").inner_text() == "stopped"
        assert page.locator("#error").is_hidden()
        assert page.locator("#save").is_visible(), "what had come can be saved"
    assert served[1].gone.wait(20), "the server notices"


def test_a_key_is_asked_for(browser: Any) -> None:
    with serving(key="sesame") as (address, _):
        visit = Visit(browser, address)
        with visit as page:
            page.wait_for_selector("#key:visible")
            page.locator("#key").fill("sesame")
            page.locator("#unlock").click()
            page.wait_for_selector("#generate:enabled")
            assert page.locator("#key").is_hidden()
            generate(page, "short")
            visit.complaints = [each for each in visit.complaints if "401" not in each]
