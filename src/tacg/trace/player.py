"""One or two traces as a single HTML file that needs no network."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING

from tacg.files import write_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tacg.trace.record import Trace

# The player and the live page show a canvas with the same two files. They lie with the page, because the server hands
# out that folder as it is and the page may load nothing from elsewhere; the player carries a copy.
SHARED = resources.files("tacg").joinpath("serve", "page")


def player_page(traces: Sequence[Trace]) -> str:
    """The player with its traces inside."""
    page = resources.files("tacg.trace").joinpath("player.html").read_text(encoding="utf-8")
    style = SHARED.joinpath("canvas.css").read_text(encoding="utf-8")
    script = SHARED.joinpath("canvas.js").read_text(encoding="utf-8")
    script = "\n".join(line for line in script.splitlines() if not line.startswith("export "))
    data = json.dumps([trace.document() for trace in traces])
    data = data.replace("<", "\\u003c")  # nothing in a text ends the script
    for mark, content in (("/*CANVAS.CSS*/", style), ("/*CANVAS.JS*/", script), ("/*TRACES*/", data)):
        page = page.replace(mark, content, 1)
    return page


def write_player(path: Path, traces: Sequence[Trace]) -> Path:
    """Write the player to a file."""
    return write_file(path, player_page(traces))
