"""List the models that can be loaded."""

from __future__ import annotations

from tacg.cli.common import Json, print_json

EPILOG = """[bold]Examples[/bold]

tacg models

tacg generate "Hello" --model pocket

tacg generate "Hello" --model ./LLaDA-8B-Instruct --dtype bfloat16 --device cuda"""

# What people ask for, by the `model_type` of its config.json; whether it loads is read off the loader.
KNOWN = {
    "llada": "LLaDA-8B Base and Instruct, LLaDA-1.5, LLaDA-MoE-7B-A1B",
    "Dream": "Dream-7B, Dream-Coder, DiffuCoder",
    "llada2_moe": "LLaDA2.0-mini and -flash",
    "qwen2": "Qwen2 and Qwen2.5, which are autoregressive: as --verifier of Dream",
    "bert": "BERT and its relatives (BertForMaskedLM)",
    "roberta": "RoBERTa",
    "albert": "ALBERT",
    "modernbert": "ModernBERT",
}


def main(
    as_json: Json = False,
) -> None:
    """List built-in models and the families that load from a directory or hub id; `tacg judges` lists more."""
    from tacg.models.loading import BUILT_IN, FAMILIES

    families = {kind: {"checkpoints": names, "supported": kind in FAMILIES} for kind, names in KNOWN.items()}
    if as_json:
        print_json({"built_in": BUILT_IN, "families": families})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what", "loads", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, about in BUILT_IN.items():
        table.add_row(f"[cyan]{name}[/cyan]", about, "built in")
    for kind, facts in families.items():
        table.add_row(kind, str(facts["checkpoints"]), "yes" if facts["supported"] else "[dim]not yet[/dim]")
    Console().print(table, highlight=False)
