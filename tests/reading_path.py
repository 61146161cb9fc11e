"""What one decode goes through: `python -m tests.reading_path` decodes a prompt by `tacg` with the built-in model.

Prints, as JSON, every file of the package in which it enters a function: the lines of the functions entered, with their
signatures and docstrings, and the lines of the whole file. Importing, loading and compiling are not counted. The gate
and the commits run as PyTorch's operations, which say what their kernels in C do.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tacg
from tacg.engine import native_commit
from tacg.policies import native_gate
from tacg.scan.compiled import kernel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

HOME = Path(tacg.__file__).parent
PROMPT = "Tom has 5 apples and buys 7 more. How many apples does Tom have?"  # promotes by support, which is the point


def entered(run: Callable[[], Any]) -> set[CodeType]:
    """The functions of the package that a call enters."""
    found: set[CodeType] = set()
    importing = 0

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing and code.co_flags & inspect.CO_OPTIMIZED:  # no body of a class
            found.add(code)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return {code for code in found if Path(code.co_filename).is_relative_to(HOME)}


def lines_of(functions: set[CodeType]) -> dict[str, tuple[int, int]]:
    """(lines of these functions, lines of the file) of each file, by its path in the package."""
    lines = defaultdict[str, set[int]](set)
    for code in functions:
        source, first = inspect.getsourcelines(code)
        lines[code.co_filename] |= {*range(first, first + len(source))}
    return {
        Path(file).relative_to(HOME).as_posix(): (len(own), len(Path(file).read_text(encoding="utf-8").splitlines()))
        for file, own in sorted(lines.items())
    }


if __name__ == "__main__":
    llm = tacg.load("pocket")
    kernel()
    native_gate.kernel = native_commit.kernel = lambda: (None, "")  # type: ignore[assignment]
    print(json.dumps(lines_of(entered(lambda: llm.generate(PROMPT, "tacg", gen_length=64)))))
