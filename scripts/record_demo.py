"""Record the README's picture: a decode as `tacg eval --watch` shows it, step by step, as one animated SVG.

    python scripts/record_demo.py docs/demo.svg

The decode is real. Every frame is what the terminal shows after a step, drawn by the same class.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.terminal_theme import TerminalTheme
from rich.text import Text

import tacg
from tacg.cli.watch import CanvasView
from tacg.experiments.evaluate import settings_of
from tacg.tasks import get_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

TASK, POLICY, SEED = "pocket-math", "tacg", 0
COLUMNS = 102
STEP, REST = 0.45, 4.0  # seconds that a step is shown, and that the last picture stays
THEME = TerminalTheme(
    (22, 25, 31), (214, 219, 228),
    [(22, 25, 31), (255, 123, 114), (98, 196, 140), (226, 176, 92), (110, 168, 254), (222, 150, 240), (98, 200, 212),
     (214, 219, 228)],
    [(125, 135, 150), (255, 150, 140), (130, 215, 165), (240, 200, 130), (140, 190, 255), (235, 180, 250),
     (130, 220, 230), (245, 247, 250)],
)  # fmt: skip
# One frame as rich writes it, in three parts: styles, clip paths and text, cut apart again below.
PARTS = "{styles}<!--cut-->{lines}<!--cut-->{backgrounds}{matrix}<!--cut-->{terminal_width} {terminal_height}"


def pictures() -> Iterator[RenderableType]:
    """What the terminal shows: the question, then the canvas after every step, then the result."""
    llm, task = tacg.load("pocket"), get_task(TASK)
    (problem,) = task.problems("test", 1, SEED)
    view = CanvasView(llm, f"pocket · {POLICY}")
    head = Text(f"$ tacg eval --task {TASK} --policy {POLICY} --n 1 --watch\n\n", style="bold")
    head.append(f"{problem.prompt}\n", style="not bold dim")
    picture = Group(head)
    for event in llm.stream(problem.asked, POLICY, **settings_of(task, POLICY, {})):
        if isinstance(event, tacg.Started):
            view.begin(event)
        elif isinstance(event, tacg.Step):
            picture = Group(head, view.draw(event))
            yield picture
        else:
            out, right = event.output, task.grade(problem, event.output.text).correct
            counts = f"{len(out.tokens)} tokens in {out.steps} steps, {out.tpf:.1f} tokens per forward"
            yield Group(picture, Text(f"\n{'right' if right else 'wrong'}: {counts}", style="bold"))


def frame(picture: RenderableType, number: int) -> list[str]:
    """[styles, clip paths, text, sizes] of one frame."""
    with Path("/dev/null").open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(picture)
        return console.export_svg(theme=THEME, code_format=PARTS, unique_id=f"f{number}").split("<!--cut-->")


def animation(frames: list[list[str]]) -> str:
    """All frames on top of each other; each is visible for its share of the time."""
    height = max(float(each[3].split()[1]) for each in frames)
    width = float(frames[0][3].split()[0])
    total = STEP * (len(frames) - 1) + REST
    styles, groups = [], []
    for number, (style, clips, text, _) in enumerate(frames):
        start = 100 * STEP * number / total
        end = 100 * STEP * (number + 1) / total if number < len(frames) - 1 else 100.0
        before = "" if number == 0 else f"0%,{start - 0.01:.2f}%{{opacity:0}}"
        after = "" if end == 100 else f"{end + 0.01:.2f}%,100%{{opacity:0}}"
        styles.append(style + f"@keyframes k{number}{{{before}{start:.2f}%,{end:.2f}%{{opacity:1}}{after}}}")
        styles.append(f".k{number}{{animation:k{number} {total:.2f}s linear infinite}}")
        groups.append(f'<defs>{clips}</defs><g class="k{number}" transform="translate(14,14)">{text}</g>')
    font = "text{font:20px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 28:.0f} {height + 28:.0f}" role="img" '
        f'aria-label="A language model fills in an answer in parallel, step by step"><style>{font}{"".join(styles)}'
        f'</style><rect width="100%" height="100%" rx="12" fill="{THEME.background_color.hex}"/>'
        f"{''.join(groups)}</svg>\n"
    )


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    frames = [frame(each, number) for number, each in enumerate(pictures())]
    out.write_text(re.sub(r"\s*\n\s*", "\n", animation(frames)), encoding="utf-8")
    print(f"{out}: {len(frames)} frames, {out.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
