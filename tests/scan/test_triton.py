"""The GPU's kernel in Triton's interpreter against the readable scan; and compiled ahead of time for real GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tacg.scan import Trajectories
from tacg.types import EmaContrast, Needs, Past
from tests.worlds import scan, trajectory

pytest.importorskip("triton")

EVERYTHING = Needs(
    "margin", "gap", "entropy", "kl", "others", "sharp", "reverse_kl", "drift", "reference", "readout",
    contrast=EmaContrast(0.7, 0.6), past=Past(2, 0.5),
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocabulary", [2, 63, 1000, 4097, 9001])
@pytest.mark.parametrize("sampled", [False, True])
def test_equals_the_reference(dtype: torch.dtype, vocabulary: int, sampled: bool) -> None:
    """Strided rows, a vocabulary that fits no tile, suppressed tokens, positions that come and go."""
    frames = trajectory(3, 4, 6, vocabulary, scale=3.0)
    memories = {name: Trajectories(2, 3) for name in ("reference", "triton")}
    generator = torch.Generator().manual_seed(vocabulary)
    for number, frame in enumerate(frames):
        z = torch.full((6, 2 * vocabulary), torch.nan, dtype=dtype)[:, ::2]
        z.copy_(frame.to(dtype) + 5 * number)  # logits are known up to a constant
        if vocabulary > 2:
            z[:, 1] = -torch.inf
        slots = torch.arange(6) if number != 2 else torch.tensor([0, 2, 5])
        proposal = torch.randint(2 if vocabulary > 2 else 0, vocabulary, (len(slots),), generator=generator)
        told = {
            name: scan(z[slots], slots, memory, EVERYTHING, proposal if sampled else None, backend=name)
            for name, memory in memories.items()
        }
        assert told["triton"].keys() == told["reference"].keys()
        assert torch.equal(told["triton"]["token"], told["reference"]["token"])
        assert torch.equal(told["triton"]["first"], told["reference"]["first"])
        for name in (
            "confidence",
            "margin",
            "gap",
            "entropy",
            "kl",
            "others",
            "sharp",
            "reverse_kl",
            "drift",
            "reference",
            "readout",
        ):
            torch.testing.assert_close(told["triton"][name], told["reference"][name], atol=3e-6, rtol=2e-5)


def test_ties_go_to_the_first_token_and_nan_is_seen() -> None:
    from tacg.errors import LogitsError

    z = torch.zeros(2, 9000)
    assert scan(z, torch.arange(2), Trajectories(1, 2), Needs(), backend="triton")["token"].tolist() == [0, 0]
    z[1, 8000] = torch.nan
    with pytest.raises(LogitsError, match="position 1 hold nan"):
        scan(z, torch.arange(2), Trajectories(1, 2), Needs(), backend="triton")


COMPILE = """
import json, re, subprocess, sys, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tacg.scan.triton import TILE, WARPS, scan_kernel

def usage(arch, logits, kept):
    pointers = {"logits": logits, "slots": "i64", "first": "i8", "wanted": "i8", "proposal": "i64", "gauge": "fp32",
                "reference": kept, "previous": kept, "norm": "fp32", "token_out": "i64", "scalars_out": "fp32"}
    signature = {name: "*" + pointers[name] if name in pointers else "fp32" if name in ("w", "beta") else "i32"
                 for name in scan_kernel.arg_names}
    fixed = {"proposed": False, "contrast": True, "divergence": True, "tile": TILE}
    signature |= dict.fromkeys(fixed, "constexpr")
    made = triton.compile(ASTSource(scan_kernel, signature, fixed), target=GPUTarget("cuda", arch, 32),
                          options={"num_warps": WARPS})
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "scan.cubin"
        cubin.write_bytes(made.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        told = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\\d+)", told.stdout + told.stderr))
    return {"arch": f"sm_{arch}", "logits": logits, "shared": made.metadata.shared,
            "registers": int(found["REG"]), "stack": int(found["STACK"]), "local": int(found["LOCAL"])}

print(json.dumps([usage(arch, *kinds) for arch in (80, 90, 100) for kinds in (("bf16", "fp32"), ("fp32", "bf16"))]))
"""


def test_compiles_for_real_gpus_without_spills(record_property: pytest.RecordProperty) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    for row in rows:
        print(row)
        record_property(f"{row['arch']} {row['logits']}", row)
        assert row["local"] == 0, "nothing is spilled"
        assert row["shared"] < 48 * 1024
    assert len(rows) == 6
