"""The likelihood of an answer under a masked diffusion model: the Monte-Carlo estimate of LLaDA's evaluation.

    log p(answer | context)  ≈  mean over samples of  T / l · Σ log p(hidden token | all that is not hidden)

A sample hides l of the T answer tokens at random; l is spread evenly over 1 … T. The expectation is a lower bound of
the log-likelihood, and exact for an answer of one token. (Nie et al., "Large Language Diffusion Models", 2025.)
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from tacg.errors import TacgError
from tacg.models.base import whole

if TYPE_CHECKING:
    from torch import Tensor

    from tacg.llm import LLM


@torch.no_grad()
def monte_carlo(llm: LLM, context: list[int], answer: list[int], samples: int = 128, batch_size: int = 32) -> float:
    """The estimate, in nats. It is deterministic for a given context and answer."""
    spec = llm.model.spec
    if spec.causal_block is not None:
        raise TacgError(f"The estimate is for models that see the whole text; {spec.name!r} is block-causal.")
    if not answer:
        raise TacgError("The answer is empty; a log-likelihood needs at least one token.")
    if len(context) + len(answer) > spec.max_length:
        context = context[len(context) + len(answer) - spec.max_length :]
    hidden, weight = _hidden(len(answer), samples, zlib.crc32(repr((context, answer)).encode()))
    total = 0.0
    for start in range(0, samples, batch_size):
        part = hidden[start : start + batch_size]
        scores = _scores(llm, context, answer, part)
        total += float((scores * weight[start : start + batch_size]).sum())
    return total / samples


def _hidden(length: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """The hidden positions of each sample, bool [samples, T], and its weight T / l, float64 [samples]."""
    rng = torch.Generator().manual_seed(seed)
    first = int(torch.randint(length, (1,), generator=rng))
    count = (first + torch.arange(samples) * length // samples) % length + 1
    rank = torch.rand(samples, length, generator=rng).argsort(dim=1).argsort(dim=1)
    return rank < count[:, None], length / count.double()


def _scores(llm: LLM, context: list[int], answer: list[int], hidden: Tensor) -> Tensor:
    """The sum of the hidden tokens' log-probabilities, float64 [samples]."""
    device = llm.model.device
    target = torch.tensor(answer).expand_as(hidden)
    rows = torch.cat(
        [torch.tensor(context).expand(len(hidden), -1), target.masked_fill(hidden, llm.model.spec.mask_id)], dim=1
    )
    where = torch.nn.functional.pad(hidden, (len(context), 0)).flatten().nonzero().squeeze(1)
    lengths = [rows.shape[1]] * len(rows)
    logits = llm.model(rows.flatten().to(device), whole(lengths), where.to(device)).double()
    found = logits.log_softmax(dim=1).cpu().gather(1, target[hidden][:, None]).squeeze(1)
    return torch.zeros(hidden.shape, dtype=torch.float64).masked_scatter(hidden, found).sum(dim=1)
