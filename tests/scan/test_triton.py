"""The GPU's kernel in Triton's interpreter against the readable scan; and compiled ahead of time for real GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(max_examples=30)
@given(
    vocabulary=st.integers(2, 130),
    positions=st.integers(1, 5),
    programs=st.integers(1, 40),
    contrast=st.none()
    | st.builds(EmaContrast, st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 0.6, 1.0]), st.booleans()),
    divergence=st.booleans(),
    sampled=st.booleans(),
    gathered=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_number_of_parts_equals_the_reference(
    vocabulary: int, positions: int, programs: int, contrast: EmaContrast | None, divergence: bool, sampled: bool,
    gathered: bool, seed: int,
) -> None:  # fmt: skip
    """Tiles of 16 columns; parts by chance; ties, suppressed tokens, positions that are not observed for a step."""
    from tacg.scan import triton

    names = ("margin", "gap", "entropy", "others", *(["kl"] if divergence else []))
    needs = Needs(*names, *(["reference", "readout"] if contrast else []), contrast=contrast)
    frames = trajectory(seed, 3, 2 * positions, vocabulary, scale=3.0).mul(2).round().div(2).float()
    generator = torch.Generator().manual_seed(seed)
    memories = {name: Trajectories(positions, 1) for name in ("reference", "triton")}
    with mock.patch.object(triton, "TILE", 16), mock.patch.object(triton, "PROGRAMS", programs):
        for number, frame in enumerate(frames):
            frame[:, vocabulary // 2 :: 7] = -torch.inf
            frame[:, 0] = 1.0
            places = torch.arange(positions) if number != 1 else torch.arange(0, positions, 2)
            rows = torch.randperm(2 * positions, generator=generator)[: len(places)]
            proposal = torch.zeros(len(places), dtype=torch.int64) if sampled else None
            if proposal is not None and vocabulary > 1:
                proposal = torch.multinomial(frame[rows].softmax(dim=1), 1, generator=generator).squeeze(1)
            observed = torch.zeros(positions, 1, dtype=torch.bool)
            observed[places] = True
            found = {}
            for name, memory in memories.items():
                given_rows = {"rows": rows} if gathered else {}
                logits = frame if gathered else frame[rows]
                step = memory.scan(
                    logits, needs, observed, places=places, proposal=proposal, backend=name, **given_rows
                )
                found[name] = dict(step.at_places)
                if contrast is not None and not step.fused:
                    every = torch.arange(len(places))
                    found[name] |= step.contrast(every, ("reference", "readout"))
                memory.follow(step, observed)
            assert torch.equal(found["triton"]["token"], found["reference"]["token"])
            torch.testing.assert_close(found["triton"], found["reference"], atol=5e-6, rtol=3e-5, check_dtype=False)


def test_rows_may_differ_in_their_knobs() -> None:
    """One value of w and beta per row gives what each row has alone."""
    from tacg.scan import triton

    frames = trajectory(5, 3, 6, 100, scale=3.0).float()
    knobs = [(0.3, 0.9), (0.8, 0.4), (0.0, 0.0)]
    w, beta = (torch.tensor(each) for each in zip(*knobs, strict=True))
    for programs in (1, 20):
        with mock.patch.object(triton, "TILE", 16), mock.patch.object(triton, "PROGRAMS", programs):
            together, alone = Trajectories(3, 2), [Trajectories(1, 2) for _ in knobs]
            for frame in frames:
                needs = Needs("reference", "readout", contrast=EmaContrast(w, beta))  # type: ignore[arg-type]
                found = scan(frame, torch.arange(6), together, needs, backend="triton")
                for row, (memory, pair) in enumerate(zip(alone, knobs, strict=True)):
                    here = slice(2 * row, 2 * row + 2)
                    needs = Needs("reference", "readout", contrast=EmaContrast(*pair))
                    own = scan(frame[here], torch.arange(2), memory, needs, backend="triton")
                    for name in ("token", "reference", "readout"):
                        torch.testing.assert_close(found[name][here], own[name])


COMPILE = """
import json, re, subprocess, sys, tempfile
from pathlib import Path
import torch, triton
from triton.backends.compiler import GPUTarget
from tacg.engine import triton_draws
from tacg.scan import Trajectories, triton as scan
from tacg.types import EmaContrast, Needs

class Driver:
    # A GPU that is not there: kernels are specialised for the arguments of real calls, compiled, and not launched.
    def get_current_device(self): return self.arch
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", self.arch, 32)
    def get_active_torch_device(self): return torch.device("cpu")

driver, made = Driver(), []
triton.runtime.driver.set_active(driver)
for module, names in ((scan, ("scan_kernel", "combine_kernel")), (triton_draws, ("weigh_kernel", "draw_kernel"))):
    for name in names:
        def compiled(*words, grid, warmup, kernel=getattr(module, name), run=getattr(module, name).run, **named):
            made.append((driver.arch, kernel.__name__, run(*words, grid=grid, warmup=True, **named)))
        getattr(module, name).run = compiled

def usage(arch, name, kernel):
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        told = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\\d+)", told.stdout + told.stderr))
    return {"arch": f"sm_{arch}", "kernel": name, "shared": kernel.metadata.shared,
            "wide_loads": len(re.findall(r"ld.global[.a-z0-9:]*.v[48]", kernel.asm["ptx"])),
            "registers": int(found["REG"]), "local": int(found["LOCAL"])}

needs = Needs("kl", "reference", "readout", contrast=EmaContrast(0.3, 0.95))
flags = torch.ones(1, 32, dtype=torch.bool)
board = torch.zeros(1, dtype=torch.int64)
for driver.arch in (80, 90, 100):
    for rows, dtype, kept in ((1, torch.bfloat16, "fp32"), (32, torch.float32, "bf16")):  # several parts, and one
        z = torch.empty(rows * 32, 126464, dtype=dtype)  # never touched, so it takes no memory
        memory = Trajectories(rows, 32, kind=kept)
        memory.scan(z, needs, flags.expand(rows, -1).contiguous(), backend="triton")
    triton_draws.drawn(z, None, 32, *[board] * 3, torch.ones(1))
print(json.dumps([usage(*each) for each in made]))
"""


def test_compiles_for_real_gpus_without_spills(record_property: pytest.RecordProperty) -> None:
    """With the specialisations of real calls: aligned pointers, sizes that 16 divides, a stride of 1."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=900, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    for row in rows:
        print(row)
        record_property(f"{row['arch']} {row['kernel']}", row)
        assert row["local"] == 0, "nothing is spilled"
        assert row["shared"] < 48 * 1024
        assert row["wide_loads"] or row["kernel"] == "combine_kernel", "16 bytes and more at a time"
    kernels = ["scan_kernel", "combine_kernel", "scan_kernel", "weigh_kernel", "draw_kernel"]
    assert [row["kernel"] for row in rows] == 3 * kernels
