"""The styles in which models write programs: each turns a reference solution into an equally correct answer.

A style gets the program with a tail, which is empty or changes the functions' return values: the same answer, but
wrong. A style must keep the tail last.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacg.tasks import Problem

    Style = Callable[["Program"], str]

# Appended to a program: the same functions with other return values of the same type.
CHANGED = """

def _other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + abs(value) + 1
    if isinstance(value, complex):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, dict):
        return {**value, "x": "x"}
    if isinstance(value, tuple):
        return (*value, "x")
    return 1 if value is None else [*value, "x"]

def _mutate(name):
    right = globals()[name]
    def wrong(*args, **named):
        globals()[name] = right  # a function that calls itself gets its own values
        try:
            return _other(right(*args, **named))
        finally:
            globals()[name] = wrong
    globals()[name] = wrong
"""


@dataclass(frozen=True)
class Program:
    """A reference solution.

    code   its source
    names  the functions and classes that tests use
    tail   code that comes last
    body   the function without its head, for a set that gives the head
    """

    code: str
    names: tuple[str, ...]
    tail: str = ""
    body: str = ""

    @property
    def whole(self) -> str:
        """The source and the tail."""
        return self.code + self.tail

    @property
    def hidden(self) -> str:
        """The source with each name f replaced by `plain_f`."""
        return ast.unparse(_Hidden(self.names).visit(ast.parse(self.code)))

    def wrapped(self, before: str, each: str) -> str:
        """The hidden source, and for each name some code that defines it from the hidden one."""
        return f"{before}{self.hidden}\n" + "".join(each.replace("NAME", name) for name in self.names) + self.tail


class _Hidden(ast.NodeTransformer):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("name", "id", "arg"):
            if not isinstance(node, ast.keyword | ast.alias) and getattr(node, field, None) in self.names:
                setattr(node, field, f"plain_{getattr(node, field)}")
        return super().generic_visit(node)


def program_of(problem: Problem, *, wrong: bool = False) -> Program:
    """The reference solution of a problem, optionally with changed return values."""
    names = tuple(problem.data["functions"]) if "functions" in problem.data else (problem.data["function"],)
    code = problem.answer.removeprefix("```python\n").removesuffix("```")
    tail = CHANGED + "\n" + "".join(f"_mutate({name!r})\n" for name in names)
    body = code.removeprefix(problem.data["head"]) if "head" in problem.data else ""
    return Program(code, names, tail if wrong else "", body)


def block(source: str, mark: str = "```", info: str = "python") -> str:
    """A source between fences."""
    return f"{mark}{info}\n{source.rstrip()}\n{mark}\n"


def _pattern(before: str = "", each: str = "") -> Style:
    """Code before the hidden program, and code that defines each name."""
    return lambda program: block(program.wrapped(before, each))


def _around(before: str, after: str) -> Style:
    """Text around the program."""
    return lambda program: f"{before}{program.whole.rstrip()}{after}"


def _relaid(unit: str) -> Style:
    """Indented by something other than four spaces."""

    def written(program: Program) -> str:
        code = ast.unparse(ast.parse(program.whole))
        return block(re.sub(r"(?m)^(?:    )+", lambda found: unit * (len(found.group()) // 4), code))

    return written


def _nested(program: Program) -> str:
    names = ", ".join(program.names)
    inner = indent(ast.unparse(ast.parse(program.code)), "    ")
    return block(f"def _make():\n{inner}\n    return [{names}]\n\n[{names}] = _make()\n{program.tail}")


def _conditional(program: Program) -> str:
    inner = indent(ast.unparse(ast.parse(program.code)), "    ")
    return block(f"import sys\nif sys.version_info >= (3,):\n{inner}\nelse:\n    raise ImportError\n{program.tail}")


def _stubs(program: Program, body: str) -> str:
    return "".join(f"def {name}(*args):\n    {body}\n\n" for name in program.names)


def _helpers(program: Program) -> tuple[str, str]:
    calls = "".join(CALLS.replace("NAME", name) for name in program.names)
    return block(program.hidden + "\nprint('helpers ready')"), block(calls + program.tail)


CALLS = "def NAME(*args, **named):\n    return plain_NAME(*args, **named)\n"
CALL = "@dataclass\nclass Call:\n    args: tuple\n    named: dict = field(default_factory=dict)\n\n"
USES_CALL = (
    "def NAME(*args, **named):\n    call = Call(args, named)\n    return plain_NAME(*call.args, **call.named)\n\n"
)
QUOTED = (
    'def _example():\n    """As in\n\n    ```python\n    _example()\n    ```\n\n    or\n```\n_e()\n```\n    """\n\n'
)
TRIALS = "\n\nif __name__ == '__main__':\n    import sys\n    sys.exit('not to be run')\n"
TALK = "Let's think: the function (as asked) isn't hard.\n\n"
AFTER = "\n\nIt's done. This returns the result; see the 2 examples above (they work)."

STYLES: dict[str, Style] = {
    # fences
    "fence with `python`": lambda p: block(p.whole),
    "fence without a language": lambda p: block(p.whole, info=""),
    "fence with `py` and attributes": lambda p: block(p.whole, info='py title="a.py" {1,3}'),
    "four backticks": lambda p: block(p.whole, mark="````"),
    "tildes": lambda p: block(p.whole, mark="~~~"),
    "indented fence, in a list": lambda p: "1. Write it:\n\n" + indent(block(p.whole), "   ") + "\n2. Run it.\n",
    "indented fence, code not": lambda p: f"- So:\n\n  ```python\n{p.whole}\n  ```\n",
    "fence that is not closed": lambda p: f"```python\n{p.whole}",
    "fence that is not closed, then talk": lambda p: f"```python\n{p.whole}{AFTER}",
    "fence that the prompt opened": _around("", "\n```\nDone.\n"),
    "fence opened within a line": lambda p: "Here it is: " + block(p.whole),
    "fence closed within a line": _around("```python\n", "```"),
    "fence inside a docstring": lambda p: block(QUOTED + p.whole),
    "fence inside a docstring, no other": lambda p: QUOTED + p.whole,
    "CRLF": lambda p: block(p.whole).replace("\n", "\r\n"),
    # no fences
    "no fence": lambda p: p.whole,
    "no fence, byte order mark": lambda p: f"\ufeff{p.whole}",
    "no fence, talk before and after": _around(TALK, AFTER),
    "no fence, all indented": lambda p: "\n" + indent(p.whole, "    "),
    # several blocks
    "talk and fence": lambda p: f"{TALK}{block(p.whole)}{AFTER}",
    "a shell's block before, output after": lambda p: (
        "Install `x`:\n" + block("pip install x", info="bash") + block(p.whole) + "It prints:\n" + block("5", info="")
    ),
    "a block of trials after": lambda p: block(p.whole) + "Try it:\n" + block(f"print({p.names[0]}())\nassert False"),
    "a stub's block before": lambda p: block(_stubs(p, "'''What it does.'''\n    pass")) + "Now:\n" + block(p.whole),
    "a stub in the same block": lambda p: block(_stubs(p, "raise NotImplementedError") + p.whole),
    "helpers in a block before": lambda p: "Helpers:\n{}Then:\n{}".format(*_helpers(p)),
    "helpers in a block after": lambda p: "{1}where\n{0}".format(*_helpers(p)),
    # how the program is written
    "`from __future__` at the top": lambda p: block("from __future__ import annotations\n\n" + p.whole),
    "module docstring, `from __future__`, trials": lambda p: block(
        f'#!/usr/bin/env python3\n"""Größe."""\nfrom __future__ import (\n    annotations,\n)\n{p.whole}{TRIALS}'
    ),
    "indented by tabs": _relaid("\t"),
    "indented by two spaces": _relaid("  "),
    "@dataclass": _pattern(f"from dataclasses import dataclass, field\n\n{CALL}", USES_CALL),
    "@dataclass with slots, hints as text": _pattern(
        "from __future__ import annotations\nimport typing\nfrom dataclasses import dataclass, field\n\n"
        + CALL.replace("@dataclass", "@dataclass(frozen=True, slots=True, order=True)")
        + "assert typing.get_type_hints(Call)['args'] is tuple\n",
        USES_CALL,
    ),
    "own classes pickled": _pattern(
        "import pickle\nfrom typing import NamedTuple\n\nclass Call(NamedTuple):\n    args: tuple\n    named: dict\n\n",
        USES_CALL.replace("Call(args, named)", "pickle.loads(pickle.dumps(Call(args, named)))"),
    ),
    "lambda": _pattern("", "NAME = lambda *args, **named: plain_NAME(*args, **named)\n"),
    "`def` under `if`": _conditional,
    "closure": _nested,
    "method of a class": _pattern("", "class OfNAME:\n    call = staticmethod(plain_NAME)\n\nNAME = OfNAME().call\n"),
    "decorator, cache, partial": _pattern(
        "import functools\n\n@functools.cache\ndef _size():\n    return len(str(10 ** 5000))\n\n"
        "def _checked(function):\n    @functools.wraps(function)\n    def checked(*args, **named):\n"
        "        assert _size() == 5001\n        return function(*args, **named)\n    return checked\n\n",
        "NAME = functools.partial(_checked(plain_NAME))\n",
    ),
    "hints, keywords, recursion limit": _pattern(
        "import sys\nfrom typing import Any, Callable\nsys.setrecursionlimit(10 ** 5)\n",
        "def NAME(*args: Any, **named: Any) -> Any:\n    run: Callable[..., Any] = plain_NAME\n"
        "    return run(*args, **named)\n",
    ),
    "coroutine": _pattern(
        "import asyncio\n\n",
        "def NAME(*args, **named):\n    async def run():\n        return plain_NAME(*args, **named)\n"
        "    return asyncio.run(run())\n",
    ),
}
BODIES: dict[str, Style] = {
    "body only": lambda p: p.body + p.tail,
    "body only, first indentation lost": lambda p: f"{p.body.strip()}\n{p.tail}",
    "body only, fenced, then talk": lambda p: TALK + block(p.body + p.tail) + AFTER,
    "body only, then talk": lambda p: p.body + p.tail + AFTER,
    "body only, indented by tabs": lambda p: re.sub(r"(?m)^(?:    )+", _tabs, p.body) + p.tail,
}
MARKED: dict[str, Style] = {
    "between [BEGIN] and [DONE]": _around("[BEGIN]\n", "\n[DONE]\n"),
    "up to [DONE], then another task": _around(
        "", "\n[DONE]\n\nHere is your task: add.\n[BEGIN]\ndef f():\n    pass\n[DONE]\n"
    ),
}


def _tabs(found: Any) -> str:
    return "\t" * (len(found.group()) // 4)


def styles_of(task: str) -> dict[str, Style]:
    """The styles that fit a set: a body needs a head, and marks need a prompt that has them."""
    return STYLES | {"humaneval": BODIES, "mbpp": MARKED}[task]
