"""The architecture: imports point downwards, class names are unique, tests mirror the source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tacg

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(tacg.__file__).parent
TESTS = Path(__file__).parent

# Lower floors first. A room imports from its own and from lower floors, but not from its neighbours on the same one.
FLOORS = (
    "errors version madvise devices",
    "files shapes templates canvas",
    "knobs types notebook text records sandbox",
    "scan tasks",
    "gate lazy",
    "policies own_loop models cache",
    "constraint",
    "engine",
    "llm",
    "trace",
    "experiments serve scale",
    "integrations bench",
    "cli",
)
COUPLES = ({"types", "notebook"}, {"gate", "lazy"}, {"models", "cache"})  # neighbours that know each other

APART = {
    "property",
    "parity",
    "device",
    "fuzz",
    "engines",
    "recipes",
    "docs",
}  # tests of more than one room, or of none

FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms.split()}


def rooms(home: Path) -> set[str]:
    return {path.stem for path in home.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted(SOURCE.rglob("*.py")):
        yield file.relative_to(SOURCE), ast.parse(file.read_text(encoding="utf-8"))


def uses(tree: ast.AST) -> Iterator[str]:
    """Packages that a source file imports, by name or by a string, and those whose files it reads."""
    modules: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="tacg", names=names):
                modules += [tacg._MODULE_OF.get(each.name, f"tacg.{each.name}") for each in names]
            case ast.ImportFrom(module=str(module)):
                modules.append(module)
            case ast.Import(names=names):
                modules += [each.name for each in names]
            case ast.Constant(value=str(text)) if re.fullmatch(r"tacg\.\w+[\w.]*(:\w+)?", text):
                modules.append(text)
            case ast.Call(
                func=ast.Attribute(value=ast.Call(args=[ast.Constant(value="tacg")]), attr="joinpath"),
                args=[ast.Constant(value=str(folder)), *_],
            ):
                modules.append(f"tacg.{folder}")
    found = (re.match(r"tacg\.(\w+)", module) for module in modules)
    yield from (match[1] for match in found if match and match[1] in FLOOR)


def allowed(room: str, other: str) -> bool:
    if room == other or {room, other} in COUPLES:
        return True
    return FLOOR[other] < FLOOR[room]


def test_every_room_has_a_floor() -> None:
    assert rooms(SOURCE) - {"__init__", "__main__"} == FLOOR.keys()


def test_imports_point_downwards() -> None:
    wrong = []
    for file, tree in sources():
        room = file.with_suffix("").parts[0]
        if room not in ("__init__", "__main__"):
            wrong += [f"{file} uses {other}" for other in uses(tree) if not allowed(room, other)]
    assert not wrong


@pytest.mark.parametrize(
    "planted",
    [
        "from tacg.cli.main import run",
        "def f():\n    from tacg.cli import main",
        "import tacg.cli.main",
        "from tacg import cli",
        "importlib.import_module('tacg.cli.main')",
        "importlib.import_module(f'tacg.cli.{name}')",
        "subprocess.run([sys.executable, '-m', 'tacg.cli'])",
        "resources.files('tacg.cli').joinpath('page.html')",
        "resources.files('tacg').joinpath('cli', 'page.html')",
    ],
)
def test_no_way_of_looking_up_is_overlooked(planted: str) -> None:
    assert [*uses(ast.parse(planted))] == ["cli"]
    assert [*uses(ast.parse("from tacg import LLM"))] == ["llm"], "a public name stands for the room it lives in"
    assert not allowed("engine", "cli")
    assert not allowed("serve", "experiments")


def test_no_two_classes_have_one_name() -> None:
    homes = defaultdict(list)
    aliases = []
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(file))
        aliases += [
            (target.id, str(file))
            for node in tree.body if isinstance(node, ast.Assign)
            for target in node.targets if isinstance(target, ast.Name)
        ]  # fmt: skip
    for name, file in aliases:  # `Row = dict[str, Any]` is as confusing beside a class as another class
        if name in homes:
            homes[name].append(file)
    assert not {name: files for name, files in homes.items() if len(files) > 1}


def test_tests_lie_where_their_subject_lies() -> None:
    """A folder of tests for each package, a file for single modules."""
    folders = {path.name for path in TESTS.iterdir() if (path / "__init__.py").exists()}
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert folders - APART == packages
    files = {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}
    assert files - {"architecture", "reading_path"} <= rooms(SOURCE) - packages


def test_public_names_can_be_reached() -> None:
    for name in tacg.__all__:
        assert getattr(tacg, name) is not None
