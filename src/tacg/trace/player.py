"""One or two traces as a single HTML file that needs no network."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tacg.trace.record import Trace


def write_player(path: Path, traces: Sequence[Trace]) -> Path:
    """Write the player with its traces inside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(player_page(traces), encoding="utf-8")
    return path


def player_page(traces: Sequence[Trace]) -> str:
    """The player with its traces inside, as HTML."""
    page = resources.files("tacg.trace").joinpath("player.html").read_text(encoding="utf-8")
    data = json.dumps([trace.document() for trace in traces])
    return page.replace("/*TRACES*/", data.replace("<", "\\u003c"))  # nothing in a text ends the script
