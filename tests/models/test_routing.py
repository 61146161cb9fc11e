"""The choice of experts in one kernel: in Triton's interpreter against the rule, and compiled ahead of time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tacg.models.routing import step_by_step

pytest.importorskip("triton")

# Experts, groups, groups that are kept, chosen experts: LLaDA2-mini's; no groups; groups of one; a count of its own.
SHAPES = [(256, 8, 4, 8), (64, 1, 1, 6), (8, 8, 3, 2), (16, 4, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_follows_the_rule(shape: tuple[int, int, int, int]) -> None:
    from tacg.models.triton_routing import route

    experts, groups, kept, count = shape
    generator = torch.Generator().manual_seed(experts)
    logits = torch.randn(5, 2 * experts, generator=generator)[:, :experts]  # rows that do not touch
    bias = torch.randn(experts, generator=generator) * 0.3
    chosen, weight = route(logits, bias, groups, kept, count, 2.5)
    expected, weights = step_by_step(logits, bias, groups, kept, count, 2.5)
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(weight, weights)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tacg.models.triton_routing import route_kernel

fixed = {"experts": 256, "groups": 8, "kept_groups": 4, "count": 8, "width": 8}
kinds = {"logits": "*fp32", "row_stride": "i32", "bias": "*fp32", "chosen_out": "*i64", "weight_out": "*fp32",
         "scaling": "fp32"} | dict.fromkeys(fixed, "constexpr")
for arch in (80, 90, 100):
    made = triton.compile(ASTSource(route_kernel, kinds, fixed), target=GPUTarget("cuda", arch, 32),
                          options={"num_warps": 1})
    assert made.asm["cubin"] and made.metadata.shared < 48 * 1024
"""


def test_it_compiles_for_real_gpus() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
