"""Run notebooks from top to bottom and keep what they print: `python scripts/run_notebooks.py examples/*.ipynb`.

With --check nothing is written; what they print must be what they hold. A test does that.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient


def run(path: Path) -> Any:
    """The notebook after running it, without what depends on the machine: progress bars, times and ids."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}, record_timing=False
        )
        client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    return notebook


def texts(notebook: Any) -> list[str]:
    """What each code cell prints and returns, as plain text."""
    cells = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [
        "".join(each.get("text", "") or each.get("data", {}).get("text/plain", "") for each in cell) for cell in cells
    ]


def main() -> None:
    """Run, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", type=Path, nargs="+")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something else is printed")
    asked = parser.parse_args()
    for path in asked.notebooks:
        before, after = nbformat.read(path, as_version=4), run(path)
        if not asked.check:
            nbformat.write(after, path)
        for old, new in zip(texts(before), texts(after), strict=True):
            if asked.check and old != new:
                sys.exit(
                    f"{path} holds another output: run `make notebooks`.\n--- it holds\n{old}\n--- it prints\n{new}"
                )
        print(f"{path}: {len(texts(after))} cells")


if __name__ == "__main__":
    main()
