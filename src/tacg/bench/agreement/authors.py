"""How to call the authors' loops, and which knobs make ours the same rule. None of their code is in this file.

Each call takes their module, our model in their shape (`SeenModel`), the prompt's ids [1, P] and the settings of the
decode. It returns the finished canvas [1, P + gen_length].
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tacg.bench.agreement.model import SeenModel
    from tacg.engine.request import Decode

    Call = Callable[[ModuleType, SeenModel, Tensor, Decode], Tensor]


@dataclass(frozen=True)
class Source:
    """A module in a public repository.

    repo     owner and name on GitHub; the checkout is looked for under the name
    folder   what to put on the import path, below the checkout
    module   its dotted name below that
    without  modules it imports at the top but does not need to decode
    """

    repo: str
    folder: str
    module: str
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The checkout's folder."""
        return self.repo.partition("/")[2]


@dataclass(frozen=True)
class Difference:
    """The first step in which two decodes differ: the canvas before it, and the canvas that each made of it."""

    before: tuple[int, ...]
    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    block_length: int
    mask_id: int

    @property
    def positions(self) -> tuple[int, ...]:
        """Where the two differ."""
        return tuple(at for at, (mine, other) in enumerate(zip(self.ours, self.theirs, strict=True)) if mine != other)


@dataclass(frozen=True)
class Pair:
    """One of the authors' decoders and the policy of ours that should do the same.

    label   what is compared
    policy  our spelling, with `knobs`; `decode` changes settings of the task's decode ("whole": no blocks)
    known   whether a difference has the cause given in `why`
    why     what explains a difference, or what makes the two comparable
    """

    label: str
    source: Source
    call: Call
    policy: str
    knobs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    decode: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    shift: bool = False
    known: Callable[[Difference], bool] | None = None
    why: str = ""


FAST = Source("NVlabs/Fast-dLLM", "llada", "generate", ("model",))
FAST_DREAM = Source("NVlabs/Fast-dLLM", "dream/model", "generation_utils")
FRECHET = Source("Ringo-Star/FastdLLM_plusplus", "v1/llada", "generate", ("model",))
LLADA = Source("ML-GSAI/LLaDA", "", "generate")
KLASS = Source("shkim0116/KLASS", "src/model", "llada_klass")
KLASS_DREAM = Source("shkim0116/KLASS", "src/model", "dream_klass")
TACG = Source("Clarence-CV/TACG-DLLM", "src", "model.llada_klass")
TACG_DREAM = Source("Clarence-CV/TACG-DLLM", "src", "model.dream_klass")
PROPHET = Source("pixeli99/Prophet", "", "generate_earlyexit")
SABER = Source("zhaoyMa/Saber", "", "decoding")
WINO = Source("Feng-Hong/WINO-DLLM", "LLaDA", "decoding")
STREAMING = Source("xiaoshideta/Streaming-dLLM", "LLaDA-1.5", "generate", ("model",))
D3LLM = Source("hao-ai-lab/d3LLM", "", "d3llm.d3llm_LLaDA.d3llm_llada_generate_util", ("utils",))
PC_SAMPLER = Source("NEUIR/PC-Sampler", "src", "generate")
_UNUSED = ("src.models", "src.third_party", "omegaconf", "accelerate", "loguru", "dotenv", "hydra", "dill")
D2CACHE = Source("Kamichanw/d2Cache", "", "src.generation.vanilla", _UNUSED)
DINFER = Source("inclusionAI/dInfer", "python", "dinfer.decoding", ("vllm", "sglang"))


def _blocks(function: str, **knobs: Any) -> Call:
    """The signature that LLaDA's `generate` set and most repositories kept."""

    def call(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
        steps = knobs.get("steps") or decode.steps or decode.gen_length
        sizes = {"steps": steps, "gen_length": decode.gen_length, "block_length": decode.block_length}
        result = getattr(theirs, function)(model, prompt, mask_id=model.spec.mask_id, **sizes, **knobs)
        canvas: Tensor = result[0] if isinstance(result, tuple) else result
        return canvas

    return call


def _klass(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
    canvas, _ = theirs.stable_confident_decode(
        model, None, prompt, decode.gen_length, decode.gen_length, decode.block_length,
        conf_threshold=0.9, kl_threshold=0.01, kl_history_length=2, alg="klass",
    )  # fmt: skip
    return canvas  # type: ignore[no-any-return]


def _released(**knobs: Any) -> Call:
    def call(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
        canvas, *_ = theirs.stable_confident_decode(
            model, None, prompt, decode.gen_length, decode.gen_length, decode.block_length, conf_threshold=0.9,
            alg="confidence_threshold_tilg_history_gate_capped_extra", guidance_weight=0.3, tilg_ema_decay=0.95,
            history_gate_min_streak=3, history_gate_confidence_escape=0.95, **knobs,
        )  # fmt: skip
        return canvas  # type: ignore[no-any-return]

    return call


def _prophet(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
    start = prompt.shape[1] + REGION
    return _blocks("generate", analyze_gap=True, answer_start_pos=start)(theirs, model, prompt, decode)


def _unblocked(function: str, **knobs: Any) -> Call:
    """Loops without a number of steps."""

    def call(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
        sizes = {"gen_length": decode.gen_length, "mask_id": model.spec.mask_id}
        result = getattr(theirs, function)(model, prompt, **sizes, **knobs)
        canvas: Tensor = result[0] if isinstance(result, tuple) else result
        return canvas

    return call


def _by_blocks(function: str, **knobs: Any) -> Call:
    def call(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
        return _unblocked(function, block_length=decode.block_length, **knobs)(theirs, model, prompt, decode)

    return call


def _d3llm(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
    canvas, _ = theirs.generate_multi_block(
        model, prompt, max_new_tokens=decode.gen_length, block_size=decode.block_length, mask_id=model.spec.mask_id,
        threshold=0.5, block_add_threshold=0.1, decoded_token_threshold=0.95,
    )  # fmt: skip
    return canvas  # type: ignore[no-any-return]


def _d2cache(**knobs: Any) -> Call:
    def call(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
        vars(theirs)["prepare_logits_for_generation"] = lambda model, logits: logits  # for two models
        mask = model.spec.mask_id
        with patch.dict(os.environ, MASK_TOKEN_ID=str(mask)):
            record = theirs.vanilla_generate(
                model,
                prompt,
                block_length=decode.block_length,
                gen_length=decode.gen_length,
                mask_token_id=mask,
                **knobs,
            )
            return torch.cat([prompt, record[-1].generated_tokens], dim=1)

    return call


def _dream(alg: str, **knobs: Any) -> Call:
    """Dream's loop; `knobs` are further fields of its settings."""

    def call(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
        settings = SimpleNamespace(
            output_history=False, return_dict_in_generate=False, max_length=prompt.shape[1] + decode.gen_length,
            mask_token_id=model.spec.mask_id, steps=decode.steps or decode.gen_length, eps=1e-3, alg=alg, alg_temp=None,
            **{"temperature": 0.0, "top_p": None, "top_k": None} | knobs,
        )  # fmt: skip
        keep = lambda step, canvas, logits: canvas  # noqa: E731
        pass_on = lambda step, canvas, logits: logits  # noqa: E731
        sample = theirs.DreamGenerationMixin._sample
        result = sample(model, prompt, None, settings, keep, pass_on)
        canvas: Tensor = result[0] if isinstance(result, tuple) else result
        return canvas

    return call


def _as_run(alg: str, threshold: float, kl_threshold: float, history: int) -> Call:
    """As KLASS and TACG run Dream, without randomness: sampling returns the most probable token."""
    run = _dream(
        alg, temperature=0.2, top_p=0.95, conf_threshold=threshold, kl_threshold=kl_threshold,
        kl_history_length=history, unmask_strategy="all", save_steps=False,
    )  # fmt: skip

    def call(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
        with patch.object(torch.distributions, "Categorical", MostProbable):
            return run(theirs, model, prompt, decode)

    return call


class MostProbable:
    """Stands in for `torch.distributions.Categorical`."""

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs

    def sample(self) -> Tensor:
        """The most probable outcome."""
        return self.probs.argmax(dim=-1)


def _dinfer(rule: str, **knobs: Any) -> Call:
    """Its block-wise runner without cache. EOS is set to an id that never occurs: no early stop, nothing removed."""

    def call(theirs: ModuleType, model: SeenModel, prompt: Tensor, decode: Decode) -> Tensor:
        decoder = getattr(theirs, rule)(temperature=0.0, mask_id=model.spec.mask_id, eos_id=-1, **knobs)
        blocks = theirs.BlockIteratorFactory()
        runner = theirs.BlockWiseDiffusionLLM(model, decoder, blocks, early_stop=False, maximum_unroll=1)
        return runner.generate(prompt, decode.gen_length, decode.block_length)  # type: ignore[no-any-return]

    return call


DREAM = (
    "The copy of its loop in Fast-dLLM, with half as many steps as positions. Where the number to commit rounds down "
    "to zero, Dream spends a forward; we commit one position."
)


def _last_of_the_block(difference: Difference) -> bool:
    """They fill the block, we leave exactly one position of it masked."""
    if len(difference.positions) != 1 or difference.ours[difference.positions[0]] != difference.mask_id:
        return False
    start = difference.positions[0] // difference.block_length * difference.block_length
    return difference.mask_id not in difference.theirs[start : start + difference.block_length]


REGION = 20  # where Prophet's answer region begins here
AS_PUBLISHED = MappingProxyType({"observe": "sequence", "whole": True})
DRAWN = (
    "With their preset. If nothing is ready, they sample tokens at temperature 0.2, top-p 0.95. Here the most probable "
    "token is taken, so some prompts differ by chance."
)
WHOLE = "With `observe=sequence`: they follow trajectories over the whole sequence, not over the block."
IDLE = "Their loop forwards once more when the first forward of a block has filled it."

PAIRS: tuple[Pair, ...] = (
    Pair("LLaDA, one token per step", LLADA, _blocks("generate"), "schedule"),
    Pair("LLaDA, two tokens per step", LLADA, _blocks("generate"), "schedule", decode={"steps": "half"}),
    Pair("Dream, maskgit_plus", FAST_DREAM, _dream("maskgit_plus"), "schedule", {"pace": "linspace"},
         {"steps": "half", "whole": True}, shift=True, why=DREAM),
    Pair("Dream, topk_margin", FAST_DREAM, _dream("topk_margin"), "schedule",
         {"pace": "linspace", "rank_by": "margin"}, {"steps": "half", "whole": True}, shift=True, why=DREAM),
    Pair("Dream, entropy", FAST_DREAM, _dream("entropy"), "schedule", {"pace": "linspace", "rank_by": "entropy"},
         {"steps": "half", "whole": True}, shift=True, why=DREAM),
    Pair("Fast-dLLM, threshold", FAST, _blocks("generate", threshold=0.9), "confidence"),
    Pair("Fast-dLLM, threshold, prefix cache", FAST, _blocks("generate_with_prefix_cache", threshold=0.9),
         "confidence", decode={"cache": "prefix"}, why=IDLE),
    Pair("Fast-dLLM, threshold, dual cache", FAST, _blocks("generate_with_dual_cache", threshold=0.9),
         "confidence", decode={"cache": "dual"}, why=IDLE),
    Pair("Fast-dLLM, factor", FRECHET, _blocks("generate", factor=1.0), "confidence", {"factor": 1.0},
         known=_last_of_the_block,
         why="If the last mask of a block fails its threshold, their scan ends there and commits it anyway. We follow "
             "the paper."),
    Pair("Fast-dLLM++, Fréchet", FRECHET, _blocks("generate", frechet_margin=0.25), "frechet"),
    Pair("KLASS", KLASS, _klass, "klass", decode={"observe": "sequence"},
         why=WHOLE),
    Pair("TACG for LLaDA, over a threshold", TACG,
         _released(kl_threshold=1e6, kl_history_length=1, tilg_rerank_lambda=0.05, tilg_extra_conf_floor=0.8),
         "tacg-released", {"strict": True}, {"observe": "sequence"}, why=WHOLE),
    Pair("TACG for LLaDA, over KLASS", TACG,
         _released(kl_threshold=0.01, kl_history_length=2, tilg_rerank_lambda=0.03, tilg_extra_conf_floor=0.6,
                   tilg_extra_max=1, tilg_extra_allow_empty_base=0),
         "tacg-released+klass", {"support_lambda": 0.03, "tau_floor": 0.6, "k_extra": 1, "allow_empty": False},
         {"observe": "sequence"}, why=WHOLE),
    Pair("KLASS for Dream", KLASS_DREAM, _as_run("klass", 0.9, 0.001, 2), "klass:dream/gsm8k", decode=AS_PUBLISHED,
         shift=True, why=DRAWN),
    Pair("TACG for Dream, over a threshold", TACG_DREAM,
         _as_run("confidence_threshold_tilg_history_gate_capped_extra", 0.9, 9999, 1),
         "tacg-released-dream:dream/gsm8k", decode=AS_PUBLISHED, shift=True, why=DRAWN),
    Pair("TACG for Dream, over KLASS", TACG_DREAM, _as_run("dream_klass_tilg", 0.9, 0.001, 2),
         "tacg-released-dream+klass:dream/gsm8k", decode=AS_PUBLISHED, shift=True, why=DRAWN),
    Pair("TACG for Dream, averaged, over KLASS", TACG_DREAM, _as_run("klass_ours_full", 0.8, 0.001, 2),
         "tacg-released-dream-ema+klass:dream/humaneval", decode=AS_PUBLISHED, shift=True, why=DRAWN),
    Pair("EB-Sampler (PC-Sampler's copy)", PC_SAMPLER, _unblocked("generate_with_eb_sampler", gamma=0.01), "eb",
         decode={"whole": True}, why="Without blocks, as there."),
    Pair("EB-Sampler (d2Cache's copy)", D2CACHE, _d2cache(gamma=0.01, alg="entropy"), "eb",
         why='Called with `alg="entropy"`; by default it orders by confidence and bounds the sum of what is before.'),
    Pair("Prophet", PROPHET, _prophet, "prophet+schedule", {"region_start": REGION},
         why="The answer region is given by its position; no template is forced."),
    Pair("Saber", SABER, _by_blocks("generate_with_saber", n=2), "saber", decode={"whole": True},
         why="Without blocks, as published: with blocks their loop re-masks in finished ones, too."),
    Pair("d3LLM, multi-block", D3LLM, _d3llm, "d3llm"),
    Pair("CreditDecoding", DINFER, _dinfer("CreditThresholdParallelDecoder", threshold=0.9), "credit",
         why="dInfer would also commit what is within 1e-5 of the surest, which did not occur."),
    Pair("Hierarchy", DINFER, _dinfer("HierarchyDecoder", threshold=0.9, low_threshold=0.4), "hierarchy",
         {"threshold": 0.9, "low": 0.4}),
    Pair("WINO", WINO, _by_blocks("decoding_wino", threshold=0.6, threshold_back=0.9), "wino"),
    Pair("Streaming-dLLM", STREAMING,
         _blocks("generate_with_prefix_cache", threshold=0.9, window_size=8, confidence_alpha=0.4, eos_id=-1),
         "streaming", {"suffix": 8, "alpha": 0.4}, {"cache": "prefix"},
         why="Without its early exit: an answer that ends early has no later canvases to compare."),
)  # fmt: skip

NOT_COMPARED: tuple[Mapping[str, str], ...] = (
    {"decoder": "LoPA", "policy": "lopa", "source": "zhijie-group/LoPA",
     "skipped": "Released only for its D2F host, whose canvas grows by blocks behind a block-causal cache."},
)  # fmt: skip
