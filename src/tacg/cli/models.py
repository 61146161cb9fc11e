"""List the models that can be loaded."""

from __future__ import annotations

from rich.text import Text

from tacg.cli.common import Json
from tacg.cli.draw import console_for_tables, draw
from tacg.cli.shown import print_json

EPILOG = """[bold]Examples[/bold]

tacg models

tacg eval --model pocket --task pocket-sudoku --n 1 --watch

tacg generate "Who wrote Faust?" --model ./LLaDA-8B-Instruct --dtype auto --device auto

tacg generate "Who wrote Faust?" --model ./LLaDA-8B-Instruct --quantize int8     half the memory of bfloat16; or int4

tacg generate "Who wrote Faust?" --model ./llada-8b-q8_0.gguf      GGUF of LLaDA, Dream or LLaDA-MoE"""


def main(
    as_json: Json = False,
) -> None:
    """List built-in models and the families that load from a directory or hub id; `tacg judges` lists more."""
    from tacg.models.loading import BUILT_IN, FAMILIES
    from tacg.models.matrix import KNOWN

    families = {
        kind: {
            "checkpoints": known.checkpoints,
            "supported": kind in FAMILIES,
            "checked_against": list(known.against),
            "ways": list(known.ways),
            "decoded": known.decoded,
        }
        for kind, known in KNOWN.items()
    }
    if as_json:
        print_json({"built_in": BUILT_IN, "families": families})
        return
    lines: list[tuple[Text | str, ...]] = [
        (Text(name, style="cyan"), about, "built in", "", "") for name, about in BUILT_IN.items()
    ]
    for kind, known in KNOWN.items():
        loads, ways = "yes" if kind in FAMILIES else "not yet", ", ".join(known.ways) or "whole rows"
        ways += f"; loop: {known.decoded}" if known.decoded else ""
        lines.append((kind, known.checkpoints, loads, ", ".join(known.against), ways))
    draw(console_for_tables(), ("name", "what", "loads", "checked against", "how"), lines, left=5)
