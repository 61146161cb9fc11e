"""Dream, LLaDA2 and Qwen bodies against the classes of `transformers` that are the same, with the same weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

import tacg
from tacg.cache import Cache
from tacg.models import products
from tacg.models.base import Span
from tacg.models.loading import FAMILIES
from tacg.models.matrix import KNOWN
from tacg.models.tiny import SHAPES, write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.randint(6, 100, (3, 77), generator=torch.Generator().manual_seed(1))


def stacked(weights: dict[str, torch.Tensor], old: str, new: str) -> dict[str, torch.Tensor]:
    """Experts in the layout of `transformers` 5: gate and up in one tensor, all experts in one stack."""
    made, parts = {}, {}
    for name, tensor in weights.items():
        found = re.fullmatch(rf"(.*\.{old})\.(\d+)\.(gate|up|down)_proj\.weight", name)
        if found:
            parts.setdefault(found[1], {})[int(found[2]), found[3]] = tensor
        else:
            made[name] = tensor
    for stem, found in parts.items():
        count = 1 + max(number for number, _ in found)
        pairs = [torch.cat([found[number, "gate"], found[number, "up"]]) for number in range(count)]
        made[f"{stem.removesuffix(old)}{new}.gate_up_proj"] = torch.stack(pairs)
        made[f"{stem.removesuffix(old)}{new}.down_proj"] = torch.stack([found[n, "down"] for n in range(count)])
    return made


def common(config: Any) -> dict[str, Any]:
    return {
        "vocab_size": config.table_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_length,
        "tie_word_embeddings": False,
    }


def qwen2_model(config: Any, *, causal: bool) -> torch.nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    theirs = Qwen2Config(
        **common(config), intermediate_size=config.inner,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )  # fmt: skip
    theirs.is_causal = causal
    return Qwen2ForCausalLM(theirs).eval()


def qwen2(directory: Path, config: Any) -> torch.nn.Module:
    model = qwen2_model(config, causal=False)
    model.load_state_dict(load_file(directory / "model.safetensors"), strict=True)
    return model


def qwen3(directory: Path, config: Any) -> torch.nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    theirs = Qwen3Config(
        **common(config), head_dim=config.head_dim, intermediate_size=config.inner,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )  # fmt: skip
    theirs.is_causal = False
    model = Qwen3ForCausalLM(theirs).eval()
    weights = load_file(directory / "model.safetensors")
    model.load_state_dict({"lm_head.weight": weights["model.embed_tokens.weight"]} | weights, strict=True)
    return model


def qwen3_moe(directory: Path, config: Any) -> torch.nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    theirs = Qwen3MoeConfig(
        **common(config), head_dim=config.head_dim, moe_intermediate_size=config.expert_inner,
        intermediate_size=1, num_experts=config.experts, num_experts_per_tok=config.chosen,
        norm_topk_prob=config.renormalised,
        decoder_sparse_step=1, mlp_only_layers=[],
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )  # fmt: skip
    theirs.is_causal = False
    model = Qwen3MoeForCausalLM(theirs).eval()
    weights = stacked(load_file(directory / "model.safetensors"), "experts", "experts")
    model.load_state_dict(weights, strict=True)
    return model


def glm4_moe(directory: Path, config: Any) -> torch.nn.Module:
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

    theirs = Glm4MoeConfig(
        **common(config), head_dim=config.head_dim, intermediate_size=config.inner,
        moe_intermediate_size=config.expert_inner, n_routed_experts=config.experts,
        num_experts_per_tok=config.chosen, n_shared_experts=config.shared, n_group=config.groups,
        topk_group=config.kept_groups, routed_scaling_factor=config.scaling, norm_topk_prob=True,
        first_k_dense_replace=config.dense_layers, use_qk_norm=True, attention_bias=False,
        rope_parameters={
            "rope_type": "default", "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rotary / config.head_dim,
        },
    )  # fmt: skip
    model = Glm4MoeForCausalLM(theirs).eval()
    sizes = [config.heads * config.head_dim, config.kv_heads * config.head_dim, config.kv_heads * config.head_dim]
    weights = {}
    for name, tensor in stacked(load_file(directory / "model.safetensors"), "experts", "experts").items():
        new = name.replace("word_embeddings", "embed_tokens").replace("attention.dense", "self_attn.o_proj")
        new = new.replace("attention.query_layernorm", "self_attn.q_norm")
        new = new.replace("attention.key_layernorm", "self_attn.k_norm")
        new = new.replace("gate.expert_bias", "gate.e_score_correction_bias")
        if "query_key_value" in name:
            for letter, part in zip("qkv", torch.split(tensor, sizes), strict=True):
                weights[new.replace("attention.query_key_value", f"self_attn.{letter}_proj")] = part
        else:
            weights[new] = tensor
    model.load_state_dict(weights, strict=True)
    return model


def block_causal(length: int, block: int = 32) -> torch.Tensor:
    """float [1, 1, T, T], as `transformers` adds it to the scores."""
    place = torch.arange(length) // block
    return torch.zeros(length, length).masked_fill(place[None, :] > place[:, None], torch.finfo(torch.float32).min)[
        None, None
    ]


@pytest.mark.parametrize("tied", [True, False])
def test_qwen2_sees_what_is_before_and_is_shifted_by_one(tmp_path: Path, tied: bool) -> None:
    directory = write_checkpoint(tmp_path, family="qwen2", liveliness=1.0, tie_word_embeddings=tied)
    llm = tacg.load(directory)
    weights = load_file(directory / "model.safetensors")
    theirs = qwen2_model(llm.model.config, causal=True)  # type: ignore[attr-defined]
    theirs.load_state_dict({"lm_head.weight": weights["model.embed_tokens.weight"]} | weights, strict=True)
    with torch.no_grad():
        raw = theirs(input_ids=IDS).logits
    assert float((llm.logits(IDS)[:, 1:] - raw[:, :-1]).abs().max()) <= 2e-5
    twice = {"lm_head.weight": weights["model.embed_tokens.weight"].clone()} | weights
    save_file(twice, directory / "model.safetensors")  # as some checkpoints of tied models are
    assert torch.equal(tacg.load(directory).logits(IDS), llm.logits(IDS))
    with pytest.raises(tacg.TacgError, match=r"writes from left to right.*verifier"):
        llm.generate([7, 8])


def fast_dllm(directory: Path, config: Any) -> torch.nn.Module:
    model = qwen2_model(config, causal=False)
    weights = load_file(directory / "model.safetensors")
    model.load_state_dict({"lm_head.weight": weights["model.embed_tokens.weight"]} | weights, strict=True)
    return model


def causal_qwen2(directory: Path, config: Any) -> torch.nn.Module:
    model = qwen2_model(config, causal=True)
    model.load_state_dict(fast_dllm(directory, config).state_dict(), strict=True)
    return model


class Compared(NamedTuple):
    """A small checkpoint and the class of `transformers` with its weights; `block` as in `ModelSpec.causal_block`."""

    family: str
    shape: dict[str, Any]
    oracle: Callable[..., Any]
    block: int | None
    shift: int


UNTIED = {"tie_word_embeddings": False}  # a random table that is tied makes logits of 60, whose last digit is 1e-5
COMPARED = [
    Compared("a2d", {}, qwen3, None, 0),
    Compared("a2d", {"block_size": 32, **UNTIED}, qwen3, 32, 0),
    Compared("sdar", {}, qwen3, 4, 0),
    Compared("sdar", {"block_size": 32, "num_key_value_heads": 1}, qwen3, 32, 0),
    Compared("sdar-moe", {}, qwen3_moe, 4, 0),
    Compared("rnd1", {}, qwen3_moe, None, 1),
    Compared("fast-dllm-v2", UNTIED, fast_dllm, 32, 1),
    Compared("fast-dllm-v2", {"bd_size": 8, **UNTIED}, fast_dllm, 8, 1),
    Compared("dream", {}, qwen2, None, 1),
    Compared("dream", {"num_key_value_heads": 4, "num_hidden_layers": 3}, qwen2, None, 1),
    Compared("qwen2", UNTIED, causal_qwen2, 1, 1),
    Compared("llada-moe", {}, qwen3_moe, None, 0),
    Compared("llada-moe", {"num_experts": 4, "num_experts_per_tok": 3, "num_key_value_heads": 2}, qwen3_moe, None, 0),
    Compared("llada2", {}, glm4_moe, 32, 0),
    Compared("llada2", {"n_group": 1, "topk_group": 1, "partial_rotary_factor": 1.0}, glm4_moe, 32, 0),
]


def from_a_cache(llm: tacg.LLM, ids: torch.Tensor, step: int) -> torch.Tensor:
    """Logits [B, T, V], `step` positions of all rows at a time; a model that looks ahead first fills the caches."""
    spec, (rows, length) = llm.model.spec, ids.shape
    caches = [Cache(length) for _ in range(rows)]
    if spec.causal_block is None:
        llm.model(ids.flatten(), [Span(0, length, length, cache) for cache in caches], torch.arange(1))
    parts = []
    for first in range(0, length, step):
        stop = min(first + step, length)
        start = max(0, first - spec.logit_shift)  # where the first prediction is read
        spans = [Span(start, stop, length if spec.causal_block is None else stop, cache) for cache in caches]
        select = torch.arange(rows * (stop - start)).view(rows, -1)[:, first - start :]
        found = llm.model(ids[:, start:stop].flatten(), spans, select.flatten())
        parts.append(found.view(rows, stop - first, -1))
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("case", COMPARED, ids=lambda case: f"{case.family}-{case.block}")
def test_logits_are_those_of_transformers(tmp_path: Path, case: Compared) -> None:
    """To 1e-5, in a batch of three rows, whole and from a cache; position 0 of a shifted model reads its own logits."""
    directory = write_checkpoint(tmp_path, family=case.family, liveliness=1.0, **case.shape)
    llm = tacg.load(directory)
    spec = llm.model.spec
    assert (spec.causal_block, spec.logit_shift) == (case.block, case.shift)
    blocks = {"attention_mask": block_causal(IDS.shape[1], case.block)} if case.block and case.block > 1 else {}
    with torch.no_grad():
        raw = case.oracle(directory, llm.model.config)(input_ids=IDS, **blocks).logits  # type: ignore[attr-defined]
        cached = from_a_cache(llm, IDS, step=-(-20 // (case.block or 1)) * (case.block or 1))
    aligned = torch.cat([raw[:, :1], raw[:, :-1]], dim=1) if case.shift else raw
    assert float((llm.logits(IDS) - aligned).abs().max()) <= 1e-5
    assert float((cached - aligned).abs().max()) <= 1e-5


def test_the_matrix_of_models_says_what_is_compared_here() -> None:
    ways: dict[str, dict[str, None]] = {}
    for case in COMPARED:
        more = {f"blocks of {case.block}": None} if case.block and case.block > 1 else {}
        ways.setdefault(SHAPES[case.family]["model_type"], {"batch": None, "cache": None}).update(more)
    for kind, known in KNOWN.items():
        assert kind in FAMILIES
        assert sorted(known.ways) == sorted(ways.get(kind, {}))


@pytest.mark.parametrize(("name", "block"), [("Qwen3-0.6B-diffusion-bd3lm-v0.1", 32), ("Qwen3-0.6B-mdlm", None)])
def test_the_name_tells_what_a_tiny_a2d_sees(tmp_path: Path, name: str, block: int | None) -> None:
    assert tacg.load(write_checkpoint(tmp_path / name, family="a2d")).model.spec.causal_block == block


@pytest.mark.parametrize(
    ("family", "oracle", "equal", "agree"),
    [("dream", qwen2, 1.0, 1.0), ("llada2", glm4_moe, 0.9, 0.98), ("llada-moe", qwen3_moe, 0.0, 0.97)],
)
def test_bfloat16_is_theirs_but_for_the_order_of_sums(
    tmp_path: Path, family: str, oracle: Callable[..., Any], equal: float, agree: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions equal to the last bit, and proposals that agree: rounding may send a token to another expert.

    How many depends on the CPU: of LLaDA2's positions 98 % on one with instructions for bfloat16, 94 % on one without.
    """
    monkeypatch.setattr(products, "WIDENED", frozenset())  # with PyTorch's own products, as theirs
    llm = tacg.load(write_checkpoint(tmp_path, family=family, liveliness=1.0), dtype="bfloat16")
    theirs = oracle(tmp_path, llm.model.config)  # type: ignore[attr-defined]
    frequencies = theirs.model.rotary_emb.inv_freq.clone()
    theirs.to(torch.bfloat16).model.rotary_emb.inv_freq = frequencies  # `to` rounds these too; loading does not
    mask = {"attention_mask": block_causal(IDS.shape[1]).bfloat16()} if family == "llada2" else {}
    with torch.no_grad():
        raw = theirs(input_ids=IDS, **mask).logits
    if family == "dream":
        raw = torch.cat([raw[:, :1], raw[:, :-1]], dim=1)
    ours = llm.logits(IDS)
    assert float((ours == raw).all(dim=-1).float().mean()) >= equal
    assert float((ours.argmax(dim=-1) == raw.argmax(dim=-1)).float().mean()) >= agree
    assert float((ours.float() - raw.float()).abs().amax(dim=-1).median()) <= 0.03


def test_what_a_token_can_change(tmp_path: Path) -> None:
    """A later block changes nothing before it, nor its own first prediction if shifted; elsewhere every token may."""
    changed = IDS.clone()
    changed[:, 70] += 1
    families = (
        ("llada2", 64),
        ("sdar", 68),
        ("fast-dllm-v2", 65),
        *((name, 0) for name in ("llada", "dream", "a2d", "rnd1")),
    )
    for family, frozen in families:
        llm = tacg.load(write_checkpoint(tmp_path / family, family=family))
        before, after = llm.logits(IDS), llm.logits(changed)
        assert torch.equal(before[:, :frozen], after[:, :frozen])
        assert (before != after).any(dim=-1)[:, frozen:].all()


def test_router_bias_chooses_but_does_not_weigh(tmp_path: Path) -> None:
    llm = tacg.load(write_checkpoint(tmp_path, family="llada2"))
    gate = llm.model.model["layers"][1].mlp.gate  # type: ignore[attr-defined]
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    chosen, weight = gate(x)
    assert torch.allclose(weight.sum(dim=1), torch.tensor(2.5), atol=1e-4)
    gate.expert_bias += torch.tensor([10.0] + [0.0] * 15)
    again, weight = gate(x)
    assert (again == 0).any(dim=1).all()
    assert not torch.equal(chosen, again)
    assert torch.allclose(weight.sum(dim=1), torch.tensor(2.5), atol=1e-4)
    score = (x @ gate.weight.T).sigmoid().gather(1, again)
    assert torch.allclose(weight, score / score.sum(dim=1, keepdim=True) * 2.5, atol=1e-5)
