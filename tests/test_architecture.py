"""Imports and reads of package files point downwards only, and what is public can be reached."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tacg

SOURCE = Path(tacg.__file__).parent

# Lower rooms first; a room may import its own and lower ones.
FLOORS = [
    ["errors", "version", "pages", "files", "shapes"],
    ["knobs", "types", "canvas"],
    ["scan"],
    ["gate", "lazy", "own_loop"],
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


def place_of(node: ast.AST, file: Path) -> Path | None:
    """The file or folder that an expression names: `Path(__file__)` or `resources.files(…)`, and where it goes on."""
    if isinstance(node, ast.Attribute) and node.attr == "parent" and (base := place_of(node.value, file)):
        return base.parent
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
        base = place_of(node.value.value, file)
        return base and base.parents[ast.literal_eval(node.slice)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and (base := place_of(node.left, file)):
        return base / _word(node.right)
    if not isinstance(node, ast.Call):
        return None
    named, words = ast.unparse(node.func), [_word(each) for each in node.args]
    if named == "Path" and ast.unparse(node).endswith("__file__)"):
        return {"Path(__file__)": file, "Path(tacg.__file__)": SOURCE / "__init__.py"}.get(ast.unparse(node))
    if named in ("resources.files", "files"):
        return SOURCE.parent.joinpath(*words[0].split("."))
    if isinstance(node.func, ast.Attribute) and (base := place_of(node.func.value, file)):
        return {
            "joinpath": base.joinpath(*words), "with_name": base.with_name(*words[:1] or ["?"]),
            "resolve": base, "absolute": base,
        }.get(named.rpartition(".")[2])  # fmt: skip
    return None


def _word(node: ast.AST) -> str:
    """A text that stands there; "?" for one that is known only when the program runs."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "?"


def foreign_reads(file: Path, text: str) -> list[str]:
    """Expressions that name files of higher rooms, or of the whole package."""
    floor = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    room, wrong, tree = file.relative_to(SOURCE).with_suffix("").parts[0], [], ast.parse(text)
    places = {node: place for node in ast.walk(tree) if (place := place_of(node, file)) is not None}
    within = {inner for node in places for inner in ast.walk(node) if inner is not node}
    for node, place in places.items():
        if node in within:  # the longest expression says where it leads
            continue
        inside = place.is_relative_to(SOURCE) and place != SOURCE
        target = place.relative_to(SOURCE).with_suffix("").parts[0] if inside else ""
        if floor.get(target, len(FLOORS)) > floor[room]:
            wrong.append(f"{file.relative_to(SOURCE)}, line {node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
    return wrong


# They look at the package as a whole and read no file of it: where a program's modules lie, whose kernels are counted.
ALLOWED = {
    "tasks/keeper.py": "Path(__file__).parent.parent",
    "bench/simulated_device/tally.py": "Path(tacg.__file__).parent",
}


def test_reads_of_package_files_point_downwards() -> None:
    found = [line for file in SOURCE.rglob("*.py") for line in _reads(file)]
    assert sorted(line.partition(",")[0] for line in found) == sorted(ALLOWED)
    for line in found:
        assert line.endswith(ALLOWED[line.partition(",")[0]])


def _reads(file: Path) -> list[str]:
    aside = file.parent == SOURCE and file.stem in ("__init__", "__main__")
    return [] if aside else foreign_reads(file, file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ('resources.files("tacg").joinpath("serve", "page")', True),
        ('resources.files("tacg.serve") / "page"', True),
        ('resources.files("tacg.trace").joinpath("player.html")', False),
        ('resources.files("tacg.policies").joinpath("presets.toml").read_text()', False),
        ('Path(__file__).parent / "canvas.js"', False),
        ('Path(__file__).resolve().parents[1] / "serve" / "page"', True),
        ('Path(__file__).parent.parent.joinpath("models", "pocket")', False),
        ("Path(__file__).parent.parent", True),
        ('Path(__file__).with_name("player.html")', False),
        ("Path(tacg.__file__).parent / where", True),
    ],
)
def test_such_reads_are_found(code: str, wrong: bool) -> None:
    assert bool(foreign_reads(SOURCE / "trace/player.py", code)) == wrong


def test_public_names_can_be_reached() -> None:
    for name in tacg.__all__:
        assert getattr(tacg, name) is not None
