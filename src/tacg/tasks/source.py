"""Find the program in an answer: between fences of any kind, in several blocks, among prose, or the whole answer."""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import re
import threading
import warnings
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Complete = Callable[[str], str]

OPENING = re.compile(
    r"(?m)^(?P<indent>[ \t]*)(?:(?P<mark>`{3,}|~{3,})|(?:(?!```)[^\n])*(?P<late>`{3,}))[^`\n]*(?:\n|\Z)"
)
BEGINNING = re.compile(r"(?:def|class|async|import|from|if|try)\b|@\w|\w+\s*(?::[^=]+)?=[^=]")
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
DEFINING = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.If | ast.Try
TRIES = 12  # maximum blocks, closing fences per block, possible program starts, and prose lines after it
LONGEST = 20_000  # characters that are parsed as Python

_quiet = threading.Lock()


def program(answer: str, names: Sequence[str], complete: Complete = str) -> str:
    """The source of the program in an answer.

    names     what the program must define
    complete  completes a piece of code that may lack something, such as the head of its function

    It is the first block that defines a name and is not a stub, plus what it needs from other blocks. If there is none,
    it is a definition outside the blocks, or the first block that is valid Python.
    """
    text = _level(answer.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff"), names)
    if sound(complete(text)):  # it is all Python, and any fences are in its strings
        return _joined([], text, complete)
    blocks = [_level(block, names) for block in itertools.islice(fenced(text, complete), TRIES)]
    fitting = [block for block in blocks if defines(block, *names)]
    if not fitting:
        match = OPENING.search(text)
        outside = _among_talk(text[: match.start("mark" if match["mark"] else "late")] if match else text, names)
        body = _indented(outside) and sound(complete(outside))
        first = [outside] if body or defines(outside, *names) else []
        usable = [block for block in [*blocks, outside] if sound(complete(block))]
        return _joined([], next(iter([*first, *usable, *blocks, text])), complete)
    chosen = next((block for block in fitting if not _stub(block, names)), fitting[0])
    chosen = chosen if tree(chosen) else _among_talk(chosen, names)
    return _joined(_helpers(chosen, blocks, names, complete), chosen, complete)


def defines(code: str, *names: str) -> bool:
    """Whether a program binds one of the names: by `def`, `class`, `=` or an import, possibly under an `if`."""
    parsed = tree(code)
    if parsed is None:
        return any(re.search(rf"(?m)^(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b", code) for name in names)
    return not _bound(code).isdisjoint(names)


@functools.lru_cache(maxsize=256)
def tree(code: str) -> ast.Module | None:
    """A source's syntax tree; None if it is not Python."""
    parsed = parse(code)
    return parsed if isinstance(parsed, ast.Module) else None


def sound(code: str) -> bool:
    """Whether a source is Python and has no `return` outside of functions, as a body without its head has."""
    parsed = tree(code)
    return parsed is not None and not any(isinstance(node, ast.Return) for node in _outside_scopes(parsed))


def parse(code: str) -> ast.Module | int:
    """A source's syntax tree, or the line number of its syntax error."""
    if len(code) > LONGEST:
        return 1
    try:
        with _quiet, warnings.catch_warnings():  # Python warns about invalid escapes
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return 1


def fenced(text: str, complete: Complete) -> Iterator[str]:
    """The blocks between fences. A block is closed by the first possible fence before which it is valid Python."""
    while match := OPENING.search(text):
        mark = match["mark"] or match["late"]
        anywhere = "" if mark[0] == "`" else r"(?m)^[ \t]*"
        closing = re.compile(rf"{anywhere}{mark}{mark[0]}*(?!\w*py)")
        found = (each for each in closing.finditer(text, match.end()) if not _in_comment(text, each.start()))
        closes = itertools.islice(found, TRIES)
        ends = [(each.start(), each.end()) for each in closes]
        ends = ends or [(len(text), len(text))]
        codes = [_shifted(text[match.end() : start], len(match["indent"])) for start, _ in ends]
        number = next((number for number, code in enumerate(codes) if sound(complete(code))), 0)
        yield codes[number]
        text = text[ends[number][1] :]  # text on the same line may open the next block


def _in_comment(text: str, place: int) -> bool:
    """Whether this is on a line that begins as a comment."""
    return text[text.rfind("\n", 0, place) + 1 : place].lstrip().startswith("#")


def _shifted(code: str, width: int) -> str:
    """The code without its fence's indentation, if it has it."""
    indented = width and code.lstrip("\n")[:1].isspace()
    return re.sub(rf"(?m)^[ \t]{{1,{width}}}", "", code) if indented else code


def _level(code: str, names: Sequence[str]) -> str:
    """Dedent a whole program that is indented, as in a list; a bare body is unchanged."""
    level = dedent(code)
    return level if not defines(code, *names) and defines(level, *names) else code


def _among_talk(text: str, names: Sequence[str]) -> str:
    """The first run of lines that is Python and defines a name; else the lines before prose begins; else everything."""
    lines = _level(text, names).split("\n")
    starts = [number for number, line in enumerate(lines) if BEGINNING.match(line)]
    runs = [_run(lines[start:]) for start in [0, *starts][:TRIES]]
    return next((run for run in runs if defines(run, *names)), runs[0] if runs[0].strip() else text)


def _indented(code: str) -> bool:
    """Whether its first line is indented."""
    return next((line for line in code.split("\n") if line.strip()), "")[:1].isspace()


def _run(lines: list[str]) -> str:
    """As many of the first lines as form valid Python, indented or not."""
    inner = _indented("\n".join(lines))
    for _ in range(TRIES):
        found = parse("\n".join(["if 1:", *lines] if inner else lines))
        if isinstance(found, ast.Module) or not lines:
            break
        lines = lines[: max(0, min(found - 1 - inner, len(lines) - 1))]
    return "\n".join(lines)


def _helpers(chosen: str, blocks: Iterable[str], names: Sequence[str], complete: Complete) -> list[str]:
    """Definitions in other blocks that the chosen one needs, directly or indirectly, without their example calls."""
    others = [block for block in blocks if block is not chosen and tree(block)]
    taken: list[str] = []
    while True:
        lacking = _lacking("\n\n".join([*taken, complete(chosen)]), names)
        found = [each for each in others if each not in taken and _bound(each) & lacking]
        if not found:
            return [_definitions(each) for each in others if each in taken]
        taken.append(found[0])


def _lacking(code: str, names: Sequence[str]) -> set[str]:
    """Names that a program reads, or should define, but does not bind."""
    nodes = list(ast.walk(tree(code) or ast.Module([], [])))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return ((read - vars(builtins).keys()) | {*names}) - _names(nodes) - arguments


def _definitions(code: str) -> str:
    parsed = tree(code) or ast.Module([], [])
    statements: list[ast.stmt] = [
        each for each in parsed.body if isinstance(each, DEFINING | ast.Import | ast.ImportFrom)
    ]
    return ast.unparse(ast.Module(statements, []))


def _bound(code: str) -> set[str]:
    """Names that a module binds; none for the body of a function, whose names are local."""
    parsed = tree(code)
    return _names(_outside_scopes(parsed)) if parsed and sound(code) else set()


def _outside_scopes(node: ast.AST) -> Iterator[ast.AST]:
    for each in ast.iter_child_nodes(node):
        yield each
        if not isinstance(each, SCOPES):
            yield from _outside_scopes(each)


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that these nodes bind: functions, classes, variables and imports."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name.split(".")[0])
    return found


def _stub(code: str, names: Sequence[str]) -> bool:
    """Whether its definition of the names is only `pass`, `...`, a docstring, None or NotImplementedError."""
    bodies = [
        node.body
        for node in _outside_scopes(tree(code) or ast.Module([], []))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names
    ]
    return bool(bodies) and all(_says_nothing(each) for each in bodies[-1])


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return "NotImplementedError" in ast.unparse(statement)
    if isinstance(statement, ast.Return):
        return statement.value is None or ast.unparse(statement.value) == "None"
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _joined(helpers: Sequence[str], code: str, complete: Complete) -> str:
    """One source, with `__future__` imports at its top."""
    futures, rest = _future(code)
    pieces = [_future(helper) for helper in helpers]
    source = complete("\n\n".join([*(piece for _, piece in pieces), rest]))
    return "".join(f"{line}\n" for line in [*futures, *(line for more, _ in pieces for line in more)]) + source


def _future(code: str) -> tuple[list[str], str]:
    """The `__future__` imports at the top of a program, and the program without them, with the same line numbers."""
    statements = (tree(code) or ast.Module([], [])).body
    first = isinstance(statements[0], ast.Expr) if statements else 0  # a docstring may come before them
    found = list(itertools.takewhile(_from_future, statements[first:]))
    lines = code.split("\n")
    for each in reversed(found):
        start, end = each.lineno - 1, each.end_lineno or each.lineno
        kept = lines[start][: each.col_offset] + "pass" + lines[end - 1][each.end_col_offset :]
        lines[start:end] = [kept, *[""] * (end - start - 1)]
    return [ast.unparse(each) for each in found], "\n".join(lines)


def _from_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
