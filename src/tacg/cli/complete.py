"""Shell completion: names of policies, tasks and models. Nothing heavy is imported, so that it is quick."""

from __future__ import annotations

from importlib import metadata, resources
from pathlib import Path

BUILT_IN_MODELS = ("pocket", "pocket-free", "tiny")
JUDGE_MODELS = ("rxnmapper", "rxnfp", "antiberty")
GATE = "tacg+"


def policies(incomplete: str) -> list[str]:
    """Policies, and TACG over each. Names come from their pages; other packages register theirs as entry points."""
    pages = resources.files("tacg").joinpath("policies", "about").iterdir()
    names = {page.name.removesuffix(".md") for page in pages if page.name.endswith(".md")}
    names |= {point.name for point in metadata.entry_points(group="tacg.policies")}
    gated = [GATE + name for name in sorted(names) if not name.startswith("tacg")]
    return [name for name in (*sorted(names), *gated) if name.startswith(incomplete)] + _files(incomplete, ".py")


def tasks(incomplete: str) -> list[str]:
    """Every task."""
    from tacg.tasks import all_names

    return [name for name in all_names() if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Built-in models, judges and directories."""
    named = [name for name in (*BUILT_IN_MODELS, *JUDGE_MODELS) if name.startswith(incomplete)]
    return named + _files(incomplete, "/")


def _files(incomplete: str, ending: str) -> list[str]:
    """Paths that begin like this: directories, or files that end in `.py` and the directories on the way."""
    parent = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    try:
        there = sorted(parent.iterdir()) if incomplete else []
    except OSError:
        return []
    found = [f"{each}/" if each.is_dir() else str(each) for each in there]
    lead = "./" if incomplete.startswith("./") else ""
    return [lead + each for each in found if (lead + each).startswith(incomplete) and each.endswith((ending, "/"))]
