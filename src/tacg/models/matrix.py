"""Which checkpoints load, and how each network was checked: `tacg models` prints it, tests/parity checks it.

The checks use random weights in the official layouts and under the official tensor names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A family of checkpoints, by the `model_type` of its config.json.

    checkpoints  their names
    against      classes of `transformers` that give the same logits with the same weights
    ways         how they were compared, in float32, to 1e-5: rows in a batch, with a cache, with blocks of size n.
                 Empty: in a test of its own, whole rows only
    decoded      the authors' loop that it decodes as, written anew over those classes: same tokens, steps and order
    """

    checkpoints: str
    against: tuple[str, ...]
    ways: tuple[str, ...] = ()
    decoded: str = ""


KNOWN = {
    "llada": Known(
        "LLaDA-8B Base and Instruct, LLaDA-1.5, LLaDA-MoE-7B-A1B", ("Llama", "Qwen3Moe"), ("batch", "cache")
    ),
    "Dream": Known("Dream-7B, Dream-Coder, DiffuCoder", ("Qwen2",), ("batch", "cache")),
    "llada2_moe": Known(
        "LLaDA2.0-mini and -flash, LLaDA2.1 (edits with `joint`), LLaDA2.2 (fills only)",
        ("Glm4Moe",), ("batch", "cache", "blocks of 32"),
    ),
    "a2d-qwen3": Known(
        "Tiny-A2D: Qwen3-0.6B-diffusion-mdlm and -bd3lm", ("Qwen3",), ("batch", "cache", "blocks of 32"),
        "dllm's for bd3lm",
    ),
    "sdar": Known(
        "SDAR and TraDo, 1.7B to 8B; blocks of 4, or as config.json says",
        ("Qwen3",), ("batch", "cache", "blocks of 4", "blocks of 32"),
    ),
    "sdar_moe": Known("SDAR-30B-A3B", ("Qwen3Moe",), ("batch", "cache", "blocks of 4")),
    "rnd1": Known("RND1-Base", ("Qwen3Moe",), ("batch", "cache")),
    "Fast_dLLM_Qwen": Known(
        "Fast-dLLM v2, 1.5B and 7B", ("Qwen2",), ("batch", "cache", "blocks of 8", "blocks of 32"),
        "its own, without a cache within blocks",
    ),
    "qwen2": Known(
        "Qwen2 and Qwen2.5, which are autoregressive: as --verifier of Dream", ("Qwen2",), ("batch", "cache")
    ),
    "bert": Known("BERT and its relatives (BertForMaskedLM)", ("Bert",)),
    "roberta": Known("RoBERTa", ("Roberta",)),
    "albert": Known("ALBERT", ("Albert",)),
    "modernbert": Known("ModernBERT", ("ModernBert",)),
}  # fmt: skip
