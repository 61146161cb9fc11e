"""GGUF: files written here with llama.cpp's names and order of rows give the logits of their checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tacg
from tacg.models.tiny import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

FAMILIES = {"llada": gguf.MODEL_ARCH.LLADA, "dream": gguf.MODEL_ARCH.DREAM, "llada-moe": gguf.MODEL_ARCH.LLADA_MOE}
IDS = torch.arange(6, 54).reshape(2, 24)


def reordered(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp wants them for LLaDA: the two halves of a head in turn."""
    halves = weight.reshape(heads, 2, -1, weight.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def stacked(weights: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Experts as one tensor, as the converter writes them."""
    plain = {name: each.numpy() for name, each in weights.items() if ".experts." not in name}
    stems = {(name.split(".experts.")[0], name.split(".")[-2]) for name in weights if ".experts." in name}
    for stem, part in stems:
        count = sum(name.startswith(f"{stem}.experts.") and part in name for name in weights)
        parts = [weights[f"{stem}.experts.{number}.{part}.weight"].numpy() for number in range(count)]
        plain[f"{stem}.experts.{part}.weight"] = np.stack(parts)
    return plain


def describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    moe, first = "num_experts" in config, "d_model" in config
    writer.add_embedding_length(config["d_model" if first else "hidden_size"])
    writer.add_block_count(config["n_layers" if first else "num_hidden_layers"])
    writer.add_head_count(config["n_heads" if first else "num_attention_heads"])
    writer.add_head_count_kv(config["n_kv_heads" if first else "num_key_value_heads"])
    writer.add_context_length(config["max_sequence_length" if first else "max_position_embeddings"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if moe:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["expert_intermediate_size"])
    else:
        writer.add_feed_forward_length(config["mlp_hidden_size" if first else "intermediate_size"])
    writer.add_mask_token_id(config["mask_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def write_gguf(source: Path, family: str, file: Path, kind: str = "F32", **vocabulary: Any) -> Path:
    """What llama.cpp's converter makes of a checkpoint, by the names of the `gguf` package itself."""
    config = json.loads((source / "config.json").read_text())
    writer, arch = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[FAMILIES[family]]), FAMILIES[family]
    describe(writer, config)
    for name, value in vocabulary.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(arch, 4)
    for name, weight in stacked(load_file(source / "model.safetensors")).items():
        if family == "llada" and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = reordered(weight, config["n_kv_heads" if "k_proj" in name else "n_heads"])
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        if kind == "F32" or weight.ndim == 1:
            writer.add_tensor(target, weight)
        else:
            packing = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(target, gguf.quants.quantize(weight, packing), raw_dtype=packing)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return file


def round_trip(source: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Pack and unpack the weights of a checkpoint, by the package."""
    weights = load_file(source / "model.safetensors")
    there = {name: gguf.quants.quantize(each.numpy(), kind) for name, each in weights.items() if each.dim() > 1}
    back = {name: torch.from_numpy(gguf.quants.dequantize(each, kind)) for name, each in there.items()}
    save_file(weights | back, source / "model.safetensors")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return tmp_path / "made"


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_checkpoint(family: str, made: Path) -> None:
    shape = {"n_kv_heads": 2} if family == "llada" else {}
    source = write_checkpoint(made, family=family, liveliness=1.0, **shape)
    full = tacg.load(source)
    file = write_gguf(source, family, made / "model.gguf")  # tokenizer.json lies beside it
    llm = tacg.load(file)
    assert torch.equal(llm.logits(IDS), full.logits(IDS))
    assert (llm.model.spec.mask_id, llm.model.spec.eos_ids) == (full.model.spec.mask_id, full.model.spec.eos_ids)
    assert llm.generate("Hello", gen_length=8).tokens == full.generate("Hello", gen_length=8).tokens
    half = tacg.load(write_gguf(source, family, made / "half.gguf", "F16"), dtype="float16").logits(IDS)
    assert float((half - full.logits(IDS)).norm() / full.logits(IDS).norm()) < 0.02
    packed = tacg.load(write_gguf(source, family, made / "packed.gguf", "Q8_0")).logits(IDS)
    off = float((packed - full.logits(IDS)).norm() / full.logits(IDS).norm())
    assert 0 < off < (0.35 if family == "llada-moe" else 0.08), "a token may change its expert"
    again = tacg.load(file, quantize="int8").logits(IDS)
    assert torch.equal(again, tacg.load(source, quantize="int8").logits(IDS))
    round_trip(source, gguf.GGMLQuantizationType.Q8_0)
    assert torch.equal(packed, tacg.load(source).logits(IDS)), "what the package itself unpacks"


def test_the_tokenizer_comes_from_the_file(made: Path) -> None:
    source = write_checkpoint(made)
    size = json.loads((source / "config.json").read_text())["vocab_size"]
    tokens = ["<|endoftext|>", "<|mdm_mask|>", "a", "b", "ab", "Ġ", "c", "Ġc", "<x>"]
    kinds = [3, 3, 1, 1, 1, 1, 1, 1, 4] + [5] * (size - 9)
    vocabulary = {
        "tokenizer_model": "gpt2", "tokenizer_pre": "qwen2",
        "token_list": tokens + [f"[PAD{n}]" for n in range(9, size)],
        "token_types": kinds, "token_merges": ["a b", "Ġ c"], "chat_template": "{{ messages[0].content }}",
    }  # fmt: skip
    made.joinpath("alone").mkdir()
    llm = tacg.load(write_gguf(source, "llada", made / "alone" / "model.gguf", **vocabulary))
    assert llm.tokenizer.encode("ab c<x>a<|mdm_mask|>") == [4, 7, 8, 2, 1]
    assert llm.tokenizer.decode([4, 7, 8]) == "ab c<x>"
    assert llm.encode("ab") == [4]
    assert set(range(9, size)) <= {*llm.model.spec.unwritable}
    for broken, told in (
        (
            {"tokenizer_pre": "viking"},
            "by the rule 'viking', which is not supported .*copy the checkpoint's",
        ),
        ({"tokenizer_model": "llama"}, r"lacks tokens, token types and merges .*copy the checkpoint's tokenizer\.json"),
    ):
        file = write_gguf(source, "llada", made / "alone" / "broken.gguf", **vocabulary | broken)
        with pytest.raises(tacg.TacgError, match=told):
            tacg.load(file)


def test_broken_files_are_named(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.mkdir()
    file = made / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(9))
    with pytest.raises(tacg.TacgError, match=r"model\.gguf cannot be read as GGUF .*download it again"):
        tacg.load(file)
    writer = gguf.GGUFWriter(file, "lada")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(tacg.TacgError, match=r"Unknown architecture in .*model\.gguf: 'lada'. Did you mean 'llada'"):
        tacg.load(file)
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(tacg.TacgError, match=r"pip install 'tacg\[gguf\]'"):
        tacg.load(file)
