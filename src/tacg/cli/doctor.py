"""Show what is installed on this machine, and how to install what is missing."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tacg.cli.common import Json
from tacg.cli.draw import console_for_tables, draw
from tacg.cli.shown import print_json
from tacg.version import __version__

if TYPE_CHECKING:
    import torch

EPILOG = """[bold]Examples[/bold]

tacg doctor

tacg doctor --json"""


def main(
    as_json: Json = False,
) -> None:
    """Print versions, device, threads and optional extras."""
    found = examine()
    if as_json:
        print_json(found)
        return
    lines = [(name, str(found[name])) for name in ("tacg", "python", "platform", "device", "threads", "cores")]
    lines += found["kernels"].items()
    lines.append(("sandbox", _sandbox(found["sandbox"])))
    for name, version in found["packages"].items():
        lines.append((name, version or "[red]missing[/red]: pip install tacg"))
    for extra, missing in found["extras"].items():
        state = (
            f"[yellow]missing {', '.join(missing)}[/yellow]: pip install 'tacg\\[{extra}]'"
            if missing
            else "[green]present[/green]"
        )
        lines.append((f"extra: {extra}", state))
    shown = [(Text(name, style="dim"), Text.from_markup(state)) for name, state in lines]
    draw(console_for_tables(), ("", ""), shown, left=2)


def _sandbox(found: dict[str, str]) -> str:
    colour = {"namespaces": "green", "process": "yellow", "none": "red"}[found["level"]]
    why = f" ({found['why']})" if found["why"] else ""
    return f"[{colour}]{found['level']}[/{colour}]: {found['means']}{why}"


def examine() -> dict[str, Any]:
    """The facts, as plain data."""
    import torch

    from tacg import sandbox

    level, why = sandbox.probe()
    core, extras = _requirements()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "tacg": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "kernels": _kernels(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
        "sandbox": {"level": level, "means": sandbox.LEVELS[level], "why": why},
        "packages": {name: _version(name) for name in core},
        "extras": {extra: [name for name in names if _version(name) is None] for extra, names in extras.items()},
    }


def _kernels(device: torch.device) -> dict[str, str]:
    """How forwards run on this device, in the type that is best for it."""
    import torch
    from torch.nn import functional as F

    from tacg.models import native_experts
    from tacg.models.lanes import has_varlen
    from tacg.models.products import is_good_at
    from tacg.scan.compiled import kernel

    native, how = kernel()
    fast = is_good_at(device, torch.bfloat16)
    rows = "all rows in one call, padded" if device.type != "cpu" else "row by row"
    experts = "all experts in one call" if hasattr(F, "grouped_mm") else "one by one: needs a newer PyTorch"
    if device.type == "cpu" and native_experts.kernel()[0]:
        experts = "native"
    return {
        "bfloat16": "fast" if fast else "computed in float32 here",
        "scan on a CPU": f"native, compiled by {how}" if native else f"PyTorch's operations ({how})",
        "attention": "all rows in one call" if has_varlen(device, torch.bfloat16) else rows,
        "graphs": "available with --graphs" if device.type == "cuda" else "need a CUDA device",
        "experts": experts,
    }


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Core and extra requirements by name, read from the installed package: pyproject.toml is the only list."""
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in metadata.requires("tacg") or []:
        name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0]
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        (extras.setdefault(extra.group(1), []) if extra else core).append(name)
    return core, extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
