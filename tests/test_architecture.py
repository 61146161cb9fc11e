"""Imports point downwards only, and what is public can be reached."""

from __future__ import annotations

import ast
from pathlib import Path

import tacg

SOURCE = Path(tacg.__file__).parent

# Lower rooms first; a room may import its own and lower ones.
FLOORS = [
    ["errors", "version", "pages", "files", "shapes"],
    ["knobs", "types"],
    ["scan"],
    ["gate"],
    ["policies", "models", "text", "templates", "cache"],
    ["engine", "tasks"],
    ["llm"],
    ["experiments", "trace"],
    ["serve", "scale", "integrations"],
    ["bench"],
    ["cli"],
]


def test_imports_point_downwards() -> None:
    floor = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    wrong = []
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).with_suffix("").parts[0]
        if room in ("__init__", "__main__"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacg."):
                target = str(node.module).split(".")[1]
                if floor[target] > floor[room]:
                    wrong.append(f"{file.relative_to(SOURCE)} imports {node.module}")
    assert not wrong


def test_public_names_can_be_reached() -> None:
    for name in tacg.__all__:
        assert getattr(tacg, name) is not None
