"""Published settings of policies (`presets.toml`), and preset files such as those that `tacg tune` writes."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from tacg.errors import TacgError, unknown
from tacg.files import read_text
from tacg.shapes import misfit


def presets() -> dict[str, dict[str, Any]]:
    """Published settings by full name, `tacg:llada/gsm8k`: {"knobs": …, "decode": …}."""
    text = resources.files("tacg.policies").joinpath("presets.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    models = tables.pop("models")
    return {
        f"{policy}:{task}": {"knobs": knobs, "decode": models[task.partition("/")[0]]}
        for policy, tasks in tables.items()
        for task, knobs in tasks.items()
    }


def find_preset(policy: str, task: str) -> dict[str, Any]:
    """One entry of `presets()`, or a preset file (`tacg:path.toml`, as written by `tacg tune`)."""
    if task.endswith(".toml"):
        return _preset_file(policy, Path(task))
    known = presets()
    full = f"{policy}:{task}"
    if full not in known:
        raise unknown("preset", full, known, "tacg policies --presets")
    return known[full]


def _preset_file(policy: str, path: Path) -> dict[str, Any]:
    try:
        preset = tomllib.loads(read_text(path, "preset file"))
    except (ValueError, RecursionError) as error:  # TOML errors, and nesting too deep for the parser
        if isinstance(error, TacgError):
            raise
        raise TacgError(f"The preset file {str(path)!r} is not valid TOML: {str(error)[:200]}.") from None
    if wrong := misfit(preset, {"policy": str, "knobs?": dict, "decode?": dict}):
        raise TacgError(f"The preset file {str(path)!r}: {wrong}; `tacg tune` writes such files.")
    if preset.get("policy") != policy:
        theirs = preset["policy"][:80]
        raise TacgError(f"{path} is a preset of {theirs!r}: write {theirs}:{path}.")
    return {"knobs": preset.get("knobs", {}), "decode": preset.get("decode", {})}
