"""One or two traces as a single HTML file that needs no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tacg.files import write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacg.trace.format import Trace

# The player and the live page draw a canvas with the same two files. The server serves them; the player, which may not
# load anything, contains a copy.
HERE = Path(__file__).parent
SHARED = (HERE / "canvas.css", HERE / "canvas.js")


def player_page(traces: Sequence[Trace]) -> str:
    """The player's HTML with the traces embedded."""
    page, style, script = (file.read_text(encoding="utf-8") for file in (HERE / "player.html", *SHARED))
    script = "\n".join(line for line in script.splitlines() if not line.startswith("export "))
    data = json.dumps([trace.document() for trace in traces])
    data = data.replace("<", "\\u003c")  # so that no text can end the script
    for mark, content in (("/*CANVAS.CSS*/", style), ("/*CANVAS.JS*/", script), ("/*TRACES*/", data)):
        page = page.replace(mark, content, 1)
    return page


def write_player(path: Path, traces: Sequence[Trace]) -> Path:
    """Write the player to a file."""
    return write_file(path, player_page(traces))
