"""Our LLaDA against `transformers`' Llama made bidirectional, with the same weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

import tacg
from tacg.models import products
from tacg.models.tiny import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

LLAMA_NAMES = {
    r"model\.transformer\.wte\.weight": "model.embed_tokens.weight",
    r"model\.transformer\.ln_f\.weight": "model.norm.weight",
    r"model\.transformer\.ff_out\.weight": "lm_head.weight",
    r"model\.transformer\.blocks\.(\d+)\.attn_norm\.": r"model.layers.\1.input_layernorm.",
    r"model\.transformer\.blocks\.(\d+)\.ff_norm\.": r"model.layers.\1.post_attention_layernorm.",
    r"model\.transformer\.blocks\.(\d+)\.([qkv])_proj\.": r"model.layers.\1.self_attn.\2_proj.",
    r"model\.transformer\.blocks\.(\d+)\.attn_out\.": r"model.layers.\1.self_attn.o_proj.",
    r"model\.transformer\.blocks\.(\d+)\.ff_proj\.": r"model.layers.\1.mlp.gate_proj.",
    r"model\.transformer\.blocks\.(\d+)\.up_proj\.": r"model.layers.\1.mlp.up_proj.",
    r"model\.transformer\.blocks\.(\d+)\.ff_out\.": r"model.layers.\1.mlp.down_proj.",
}


def oracle(directory: Path, llm: tacg.LLM) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    ours = llm.model.config  # type: ignore[attr-defined]
    config = LlamaConfig(
        vocab_size=ours.table_size,
        hidden_size=ours.d_model,
        intermediate_size=ours.mlp_hidden_size,
        num_hidden_layers=ours.n_layers,
        num_attention_heads=ours.n_heads,
        num_key_value_heads=ours.n_kv_heads,
        rms_norm_eps=ours.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": ours.rope_theta},
        max_position_embeddings=ours.max_length,
        tie_word_embeddings=False,
    )
    config.is_causal = False
    model = LlamaForCausalLM(config).eval()
    weights = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        (new,) = {re.sub(old, to, name) for old, to in LLAMA_NAMES.items() if re.match(old, name)}
        weights[new] = tensor
    assert not model.load_state_dict(weights, strict=True).missing_keys
    return model


@pytest.mark.parametrize(
    "shape", [{}, {"n_kv_heads": 2, "n_layers": 3}, {"d_model": 96, "n_heads": 6, "n_kv_heads": 6}]
)
def test_logits_equal_bidirectional_llama(tmp_path: Path, shape: dict[str, int]) -> None:
    directory = write_checkpoint(tmp_path, seed=3, liveliness=1.0, **shape)
    llm = tacg.load(directory)
    ids = torch.randint(6, 100, (3, 41), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = oracle(directory, llm)(input_ids=ids).logits
        causal = oracle(directory, llm)(input_ids=ids[:, :20]).logits
    ours = llm.logits(ids)
    assert float((ours - theirs).abs().max()) <= 1e-5
    assert float((causal - theirs[:, :20]).abs().max()) > 1e-2, "the oracle looks both ways"


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(tmp_path: Path, side: str) -> None:
    directory = write_checkpoint(tmp_path, seed=4, liveliness=1.0)
    llm = tacg.load(directory)
    lengths = [41, 9, 17, 1]
    ids = torch.randint(6, 100, (4, 41), generator=torch.Generator().manual_seed(2))
    place = torch.arange(41)
    valid = torch.stack([place < n if side == "right" else place >= 41 - n for n in lengths])
    with torch.no_grad():
        theirs = oracle(directory, llm)(input_ids=ids, attention_mask=valid.long()).logits
    ours = llm.logits(ids, valid)
    assert float((ours - theirs)[valid].abs().max()) <= 1e-5
    for row, mask in enumerate(valid):  # and to the last bit what the row gives alone
        assert torch.equal(llm.logits(ids[row : row + 1, mask])[0], ours[row, mask])


def test_bfloat16_stays_close(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, liveliness=1.0)
    wide, narrow = tacg.load(directory), tacg.load(directory, dtype="bfloat16")
    ids = torch.randint(6, 100, (2, 30), generator=torch.Generator().manual_seed(1))
    assert next(iter(narrow.model.parameters())).dtype == torch.bfloat16  # type: ignore[attr-defined]
    assert float((wide.logits(ids) - narrow.logits(ids)).abs().max()) < 0.1


def test_bfloat16_is_theirs_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama turns q and k in their own type; LLaDA's code widens them first, and so must the oracle."""
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(products, "WIDENED", frozenset())  # with PyTorch's own products, as theirs
    narrow_turn = modeling_llama.apply_rotary_pos_emb

    def turn(q: torch.Tensor, k: torch.Tensor, *angles: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(each.to(q.dtype) for each in narrow_turn(q.float(), k.float(), *angles))

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", turn)
    directory = write_checkpoint(tmp_path, liveliness=1.0)
    llm = tacg.load(directory, dtype="bfloat16")
    theirs = oracle(directory, llm)
    rotary = theirs.model.rotary_emb
    frequencies, angles = rotary.inv_freq.clone(), rotary.forward
    theirs.to(torch.bfloat16)
    rotary.inv_freq = frequencies  # `to` rounds these too; loading does not
    rotary.forward = lambda x, *rest, **named: angles(x.float(), *rest, **named)
    ids = torch.randint(6, 100, (2, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(theirs(input_ids=ids).logits, llm.logits(ids))


def test_tied_head(tmp_path: Path) -> None:
    llm = tacg.load(write_checkpoint(tmp_path, weight_tying=True))
    assert llm.logits(torch.full((1, 5), 7)).shape == (1, 5, llm.model.spec.vocab_size)
