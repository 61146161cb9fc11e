"""Tables that fit the terminal. Numbers are never cut: headers and prose wrap, and columns that do not fit go below."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = 2  # spaces between columns
PROSE = 28  # a cell of several words that is longer than this may be wrapped between words
NARROW = 20  # the narrowest that a column of prose becomes, unless a word is longer
EDGELESS = 10_000  # a file has no edge to wrap at

Content = str | Text


def console_for_tables(*, stderr: bool = False) -> Console:
    """As wide as the terminal (or COLUMNS); a file is as wide as its widest line."""
    console = Console(highlight=False, stderr=stderr)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, stderr=stderr, width=EDGELESS)


def draw(
    console: Console, columns: Sequence[str], lines: Sequence[Sequence[Content]], *, title: str = "", left: int = 1
) -> None:
    """Print a table. The first `left` columns are aligned to the left, the others to the right.

    If it is too wide for the console, it is printed in parts, one below the other, each with the first column.
    """
    cells = [[each if isinstance(each, Text) else Text(each) for each in line] for line in lines]
    if title:
        console.print(Text(title, style="bold"))
    for part in parts_of(columns, [[each.plain for each in line] for line in cells], console.width):
        drawn = Drawn(box=None, padding=(0, GAP, 0, 0), header_style="dim", show_header=any(columns))
        for place, width in part:
            head = "\n".join(textwrap.wrap(columns[place], width, break_long_words=False)) if columns[place] else ""
            drawn.add_column(Text(head), min_width=width, max_width=width, overflow="fold")
            drawn.columns[-1].justify = "left" if place < left else "right"
        for line in cells:
            drawn.add_row(*(line[place] for place, _ in part))
        console.print(drawn)


def parts_of(columns: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> list[list[tuple[int, int]]]:
    """The columns to print beside each other, each with its width: one list unless they do not fit."""
    whole = [_widest(name, [line[place] for line in lines]) for place, name in enumerate(columns)]
    least = [_narrowest(name, [line[place] for line in lines]) for place, name in enumerate(columns)]
    parts: list[list[int]] = []
    for place in range(len(columns)):
        if not parts or _total([least[each] for each in (*parts[-1], place)]) > width:
            parts.append([0] * (place > 0))
        parts[-1].append(place)
    return [_share_out(part, whole, least, width) for part in parts]


def _share_out(part: list[int], whole: list[int], least: list[int], width: int) -> list[tuple[int, int]]:
    """Widths of columns that fit at their narrowest: the space that is left goes to wider columns, in order."""
    spare = width - _total([least[place] for place in part])
    widths = []
    for place in part:
        more = max(0, min(spare, whole[place] - least[place]))
        spare -= more
        widths.append((place, min(least[place] + more, max(width - GAP, 1))))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * len(widths)


def _widest(name: str, cells: Sequence[str]) -> int:
    return max([cell_len(name), *(cell_len(line) for each in cells for line in each.split("\n")), 1])


def _narrowest(name: str, cells: Sequence[str]) -> int:
    """A header may be wrapped between words, and so may prose. A number and its interval stay on one line."""
    words = [word for each in (name, *cells) for word in each.split()]
    longest = max([cell_len(word) for word in words], default=1)
    short = [cell_len(each) for each in cells if not is_prose(each)]
    prose = NARROW if len(short) < len(cells) else 1
    return min(max([longest, prose, *short]), _widest(name, cells))


def is_prose(cell: str) -> bool:
    """Whether a cell may be wrapped between words: it is long and has several words that are not numbers."""
    return len(cell) > PROSE and sum(any(letter.isalpha() for letter in word) for word in cell.split()) > 1
