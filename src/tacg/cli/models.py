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

# What people ask for, by the `model_type` of its config.json; whether it loads is read off the loader.
# Beside it the class of `transformers` whose logits it gives with the same weights; random ones in official layouts.
KNOWN = {
    "llada": ("LLaDA-8B Base and Instruct, LLaDA-1.5, LLaDA-MoE-7B-A1B", "Llama, Qwen3Moe"),
    "Dream": ("Dream-7B, Dream-Coder, DiffuCoder", "Qwen2"),
    "llada2_moe": ("LLaDA2.0-mini and -flash, LLaDA2.1 (edits with `joint`), LLaDA2.2 (fills only)", "Glm4Moe"),
    "a2d-qwen3": ("Tiny-A2D: Qwen3-0.6B-diffusion-mdlm and -bd3lm", "Qwen3"),
    "sdar": ("SDAR and TraDo, 1.7B to 8B; blocks of 4, or as config.json says", "Qwen3"),
    "sdar_moe": ("SDAR-30B-A3B", "Qwen3Moe"),
    "rnd1": ("RND1-Base", "Qwen3Moe"),
    "Fast_dLLM_Qwen": ("Fast-dLLM v2, 1.5B and 7B", "Qwen2"),
    "qwen2": ("Qwen2 and Qwen2.5, which are autoregressive: as --verifier of Dream", "Qwen2"),
    "bert": ("BERT and its relatives (BertForMaskedLM)", "Bert"),
    "roberta": ("RoBERTa", "Roberta"),
    "albert": ("ALBERT", "Albert"),
    "modernbert": ("ModernBERT", "ModernBert"),
}


def main(
    as_json: Json = False,
) -> None:
    """List built-in models and the families that load from a directory or hub id; `tacg judges` lists more."""
    from tacg.models.loading import BUILT_IN, FAMILIES

    families = {
        kind: {"checkpoints": names, "supported": kind in FAMILIES, "checked_against": theirs}
        for kind, (names, theirs) in KNOWN.items()
    }
    if as_json:
        print_json({"built_in": BUILT_IN, "families": families})
        return
    lines: list[tuple[Text | str, ...]] = [
        (Text(name, style="cyan"), about, "built in", "") for name, about in BUILT_IN.items()
    ]
    for kind, facts in families.items():
        loads = "yes" if facts["supported"] else "not yet"
        lines.append((kind, str(facts["checkpoints"]), loads, str(facts["checked_against"])))
    draw(console_for_tables(), ("name", "what", "loads", "checked against"), lines, left=4)
