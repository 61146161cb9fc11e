"""The simulated device: it refuses what CUDA refuses, counts what CUDA does, computes what the CPU computes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tacg
from tacg.bench.simulated_device import DeviceTensor, MixedDevicesError, SimulatedDevice, guard
from tacg.errors import TacgError
from tacg.models.loading import locate
from tacg.models.tiny import write_checkpoint
from tacg.policies import policy_names
from tacg.scan import Trajectories
from tacg.tasks import get_task
from tacg.types import EmaContrast, Needs
from tests.worlds import scan, trajectory

KINDS = ("kernel", "read", "upload")


def given(device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Six numbers, two indices into them, and one more number."""
    return torch.arange(6.0, device=device), torch.tensor([0, 2], device=device), torch.arange(3.0, device=device)[2]


def six() -> Tensor:
    return given()[0]


def groups(x: Tensor, ends: Tensor) -> Tensor:
    return F.grouped_mm(x.new_ones(2, 8), x.new_ones(2, 8, 8), offs=ends.int())


# What happens to six numbers on the device (x), two places among them (i) and a number (n): kernels, reads, uploads.
COSTS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], object], tuple[int, int, int]]] = {
    "sum of two": (lambda x, i, n: x + x, (1, 0, 0)),
    "number from Python": (lambda x, i, n: x * 2.0, (1, 0, 0)),
    "number from the CPU": (lambda x, i, n: x * torch.tensor(2.0), (1, 0, 0)),
    "in place": (lambda x, i, n: x.add_(1).clamp_(min=2), (2, 0, 0)),
    "views": (lambda x, i, n: x.view(2, 3).t()[1:].unsqueeze(0).expand(4, 2, 2).chunk(2), (0, 0, 0)),
    "room": (lambda x, i, n: (torch.empty(3, device=x.device), x.new_empty(4), torch.empty_like(x)), (0, 0, 0)),
    "nothing at all": (lambda x, i, n: x[:0] + 1, (0, 0, 0)),
    "made there": (lambda x, i, n: (torch.zeros(3, device=x.device), torch.arange(3, device=x.device)), (2, 0, 0)),
    "same type": (lambda x, i, n: x.to(torch.float32).to(x.device), (0, 0, 0)),
    "another type": (lambda x, i, n: x.to(torch.float64), (1, 0, 0)),
    "attention": (lambda x, i, n: F.scaled_dot_product_attention(*[x.view(1, 1, 3, 2)] * 3), (1, 0, 0)),
    "two results": (lambda x, i, n: x.view(2, 3).max(dim=1), (1, 0, 0)),
    "product of groups": (lambda x, i, n: groups(x.bfloat16(), i), (5, 0, 0)),
    "product of groups, one by one": (lambda x, i, n: groups(x, i), (5, 1, 0)),
    "gather": (lambda x, i, n: x[i], (1, 0, 0)),
    "scatter": (lambda x, i, n: x.scatter_(0, i, 1.0), (1, 0, 0)),
    "item": (lambda x, i, n: n.item(), (0, 1, 0)),
    "float": (lambda x, i, n: float(n), (0, 1, 0)),
    "truth": (lambda x, i, n: bool((x > 9).any()), (2, 1, 0)),
    "list": (lambda x, i, n: x.tolist(), (0, 1, 0)),
    "list of what is not dense": (lambda x, i, n: x.view(2, 3)[:, 1:].tolist(), (1, 1, 0)),
    "to the CPU": (lambda x, i, n: x.cpu(), (0, 1, 0)),
    "copied to the CPU": (lambda x, i, n: torch.zeros(6).copy_(x), (0, 1, 0)),
    "equal": (lambda x, i, n: torch.equal(x, x), (1, 1, 0)),
    "nonzero": (lambda x, i, n: x.nonzero(), (1, 1, 0)),
    "nonzero of nothing": (lambda x, i, n: (x > 9).nonzero(), (2, 1, 0)),
    "masked_select": (lambda x, i, n: x.masked_select(x > 1), (2, 1, 0)),
    "unique": (lambda x, i, n: x.unique(), (1, 1, 0)),
    "repeat_interleave": (lambda x, i, n: torch.repeat_interleave(i, i), (2, 1, 0)),
    "repeat_interleave, size known": (lambda x, i, n: torch.repeat_interleave(i, i, output_size=2), (2, 0, 0)),
    "bincount": (lambda x, i, n: torch.bincount(i), (1, 2, 0)),
    "boolean index": (lambda x, i, n: x[x > 1], (3, 1, 0)),
    "written under a mask": (lambda x, i, n: x.__setitem__(x > 1, -x[:4]), (4, 1, 0)),
    "number under a mask": (lambda x, i, n: x.__setitem__(x > 1, 7.0), (2, 0, 0)),
    "masked_fill": (lambda x, i, n: x.masked_fill(x > 1, 7.0), (2, 0, 0)),
    "masked_fill with the device's number": (lambda x, i, n: x.masked_fill(x > 1, n), (2, 1, 0)),
    "the device's number as index": (lambda x, i, n: x[i[1]], (0, 1, 0)),
    "synchronize": (lambda x, i, n: torch.cuda.synchronize(), (0, 1, 0)),
    "tensor of a list": (lambda x, i, n: torch.tensor([1, 2], device=x.device), (0, 0, 1)),
    "tensor of nothing": (lambda x, i, n: torch.tensor([], device=x.device), (0, 0, 0)),
    "to the device": (lambda x, i, n: torch.ones(3).to(x.device), (0, 0, 1)),
    "copied to the device": (lambda x, i, n: x.copy_(torch.ones(6)), (0, 0, 1)),
    "list as index": (lambda x, i, n: x[[0, 2]], (1, 0, 1)),
    "index from the CPU": (lambda x, i, n: x[torch.tensor([0, 2])], (1, 0, 1)),
    "one number written": (lambda x, i, n: x.__setitem__(1, 7.0), (0, 0, 1)),
    "one number all over a slice": (lambda x, i, n: x.__setitem__(slice(1, 3), 7.0), (1, 0, 0)),
    "one number at some places": (lambda x, i, n: x.__setitem__(i, 7.0), (1, 0, 1)),
}


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_cost(name: str, mode: Callable[[], torch.no_grad]) -> None:
    action, expected = COSTS[name]
    with SimulatedDevice() as device, mode():
        subjects = given()
        device.tally.clear()
        action(*subjects)
        assert tuple(device.tally.count(kind) for kind in KINDS) == expected, dict(device.tally)


@pytest.mark.parametrize("name", COSTS)
def test_value_is_the_cpus(name: str) -> None:
    """What an operation gives, and what it leaves in its arguments."""

    def plain(made: object) -> object:
        if isinstance(made, DeviceTensor):
            return made.host.tolist()
        return made.tolist() if isinstance(made, Tensor) else [*map(plain, made)] if isinstance(made, tuple) else made

    if name in ("room", "synchronize"):
        pytest.skip("gives nothing that could be compared")
    action = COSTS[name][0]
    with SimulatedDevice():
        subjects = given()
        found = plain(action(*subjects)), plain(subjects)
    subjects = given("cpu")
    assert found == (plain(action(*subjects)), plain(subjects))


MIXES: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x + torch.ones(6),
    "sum, the other way": lambda x: torch.ones(6) + x[0],
    "written to the CPU's": lambda x: torch.tensor(1.0).add_(x[0]),
    "cat": lambda x: torch.cat([x, torch.ones(1)]),
    "stack with a number": lambda x: torch.stack([x[0], torch.tensor(1.0)]),
    "gather": lambda x: x.gather(0, torch.tensor([1])),
    "scatter": lambda x: x.scatter_(0, torch.tensor([1]), 1.0),
    "where": lambda x: torch.where(torch.ones(6) > 0, x, x),
    "product": lambda x: x.view(2, 3) @ torch.ones(3, 2),
    "mask": lambda x: x.masked_fill(torch.ones(6) > 0, 1.0),
    "values written": lambda x: x.__setitem__(torch.tensor([0, 1], device="cuda"), torch.ones(2)),
    "the device's index": lambda x: torch.ones(6)[x.long()],
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, 3, 2)] * 2, torch.ones(1, 1, 3, 2)),
    "another device": lambda x: x + x.to("cuda:1"),
    "the CPU's generator": lambda x: torch.rand(3, device="cuda", generator=torch.Generator()),
    "the device's generator": lambda x: torch.rand(3, generator=torch.Generator("cuda")),
}


@pytest.mark.parametrize("name", MIXES)
@torch.no_grad()
def test_mixed_devices_are_refused(name: str) -> None:
    with SimulatedDevice(), pytest.raises(MixedDevicesError, match=r"Expected .*(one device|generator)"):
        MIXES[name](six())


@torch.no_grad()
def test_two_devices() -> None:
    with SimulatedDevice() as device:
        here = torch.arange(6.0, device="cuda")
        there = here.to("cuda:1")
        assert (here.device, there.device) == (torch.device("cuda:0"), torch.device("cuda:1"))
        assert (there + 1).device == there.device
        assert device.tally.count("read") == device.tally.count("upload") == 0


@torch.no_grad()
def test_phases_and_lines() -> None:
    """The innermost phase counts; labels of the profiler are phases if they are ours."""
    with SimulatedDevice() as device:
        x = six()
        device.tally.clear()
        with device.phase("outer"):
            x + 1
            with torch.profiler.record_function("tacg.scan"), torch.profiler.record_function("theirs"):
                x.tolist()
            x[0] = 1.0
        x + 1
    assert {phase: dict(counts) for phase, counts in device.tally.by("phase").items()} == {
        "outer": {"kernel": 1, "upload": 1},
        "scan": {"read": 1},
        "other": {"kernel": 1},
    }
    assert device.tally.count("kernel", outside="outer") == device.tally.count("kernel", phase="outer") == 1
    (line,) = {site.line for site in device.tally if site.kind == "read"}
    source, number = line.split(":")
    assert source == Path(__file__).name
    assert "x.tolist()" in Path(__file__).read_text(encoding="utf-8").splitlines()[int(number) - 1]
    before = device.tally.copy()
    assert not device.tally.since(before)


def test_shapes_do_not_change_underneath() -> None:
    with SimulatedDevice(), pytest.raises(NotImplementedError, match="changes a tensor's shape"):
        six().unsqueeze_(0)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(fails: bool) -> None:
    module = pytest.importorskip("tacg.scan.triton")

    def world() -> tuple[object, ...]:
        lifting = torch._C._only_lift_cpu_tensors()  # type: ignore[attr-defined]
        return torch.Generator, torch.cuda._lazy_init, torch.cuda.synchronize, module.scan_kernel, lifting

    before = world()
    kept = []
    try:
        with SimulatedDevice():
            assert world() != before
            with pytest.raises(TacgError, match="open already"):
                SimulatedDevice().__enter__()
            kept.append(six())
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert world() == before
    assert DeviceTensor.current is None
    with pytest.raises(RuntimeError, match="the simulation has ended"):
        kept[0] + 1
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(1, device="cuda")
    assert type(torch.zeros(1) + 1) is Tensor
    with SimulatedDevice() as another:  # what was put on a device can be used on the next
        assert (kept[0] + 1).tolist() == [1, 2, 3, 4, 5, 6]
        assert another.tally.count("kernel") == 1


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(TacgError, match=r"C\+\+ compiler.*no-such-compiler"):
        guard._library()
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'error: out of order' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(TacgError, match=r"cannot be compiled.*out of order"):
        guard._library()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of history that is not there yet, and not used
@pytest.mark.parametrize("sampled", [False, True])
@torch.no_grad()
def test_emulated_scan_is_the_kernel(sampled: bool) -> None:
    """Against the kernel itself in Triton's interpreter: signals, and the history that they come from."""
    pytest.importorskip("triton")
    needs = Needs("margin", "entropy", "kl", "reference", "readout", contrast=EmaContrast(0.7, 0.6))

    def scanned(device: str) -> list[dict[str, Tensor]]:
        memory, slots = Trajectories(2, 3, device), torch.arange(6, device=device)
        proposal = torch.tensor([3, 1, 4, 1, 5, 2], device=device) if sampled else None
        frames = [frame.float().to(device) for frame in trajectory(3, 4, 6, 1000, scale=3.0)]
        return [scan(frame, slots, memory, needs, proposal, backend="triton") for frame in frames]

    expected = scanned("cpu")
    with SimulatedDevice() as device:
        found = [{name: values.cpu() for name, values in each.items()} for each in scanned("cuda")]
    assert device.tally.by("operation")["scan_kernel"] == {"kernel": 4}
    torch.testing.assert_close(found, expected, atol=3e-6, rtol=2e-5)


@pytest.fixture(scope="module")
def pocket(tmp_path_factory: pytest.TempPathFactory) -> tuple[tacg.LLM, tacg.LLM]:
    """With a verifier that has learned nothing but pocket's vocabulary."""
    home = locate("pocket")
    verifier = write_checkpoint(tmp_path_factory.mktemp("verifier"), family="qwen2", liveliness=1.0, vocab_size=640)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(home / name, verifier / name)
    with SimulatedDevice():
        return tacg.load("pocket", verifier=verifier), tacg.load("pocket", device="cuda", verifier=verifier)


@dataclass(frozen=True)
class Forgetful(tacg.Policy):
    """Right on a CPU, wrong on a GPU: it makes a tensor without saying where."""

    name: ClassVar[str] = "forgetful"

    def decide(self, signals: tacg.Signals, state: tacg.State) -> tuple[tacg.Decision, tacg.State]:
        floor = torch.full((signals.confidence.shape[1],), 0.5)
        return tacg.Decision(signals.eligible & (signals.confidence > floor), rank=signals.confidence), state


def test_a_planted_mix_is_caught(pocket: tuple[tacg.LLM, tacg.LLM]) -> None:
    home, away = pocket
    assert home.generate("1 + 1", Forgetful(), gen_length=8).tokens
    with SimulatedDevice(), pytest.raises(MixedDevicesError, match=r"cuda:0 \(1, 8\) and cpu \(8,\)"):
        away.generate("1 + 1", Forgetful(), gen_length=8)


def _plain(commit: tacg.Commit) -> tuple[object, ...]:
    return commit.position, commit.token, commit.step, commit.reason


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        *((name, {}) for name in policy_names()),
        ("tacg+klass", {}),
        ("tacg", {"temperature": 0.7}),
        ("schedule", {"rank_by": "random", "steps": 6}),
        ("tacg", {"cache": "dual"}),
        ("attention", {"cache": "dual"}),
        ("tacg", {"observe": "sequence"}),
        ("tacg", {"memory": "hidden"}),
        ("hierarchy", {"remask": 0.6}),
        ("lopa", {"add": 0.3, "block_length": 8}),
        ("prophet", {"region_start": 20}),
        ("tacg", {"regex": "[a-z]+( [0-9]+)*"}),
        ("joint", {"schema": {"type": "object", "properties": {"answer": {"type": "integer"}}}}),
    ],
    ids=str,
)
def test_decodes_equal_the_cpus(policy: str, settings: dict[str, object], pocket: tuple[tacg.LLM, tacg.LLM]) -> None:
    """Every commit: token, step, reason; confidence up to rounding, as attention is computed differently there."""
    task = get_task("pocket-math")
    prompts = [problem.prompt for problem in task.problems("dev", 3)]
    home, away = pocket
    settings = {**task.decode, "gen_length": 32, **settings}
    expected = home.generate(prompts, policy, **settings, scan="reference")
    with SimulatedDevice() as device:
        found = away.generate(prompts, policy, **settings)
    for one, other in zip(found, expected, strict=True):
        assert [_plain(c) for c in one.commits] == [_plain(c) for c in other.commits]
        sure = [c.confidence for c in other.commits]
        assert [c.confidence for c in one.commits] == pytest.approx(sure, rel=1e-3, abs=1e-5)
        assert one.cut == pytest.approx(other.cut, rel=1e-3, abs=1e-5)
        assert replace(one, commits=[], cut=0) == replace(other, commits=[], cut=0)
    launched = device.tally.by("operation").get("scan_kernel", {})
    assert bool(launched) == (settings.get("memory") != "hidden"), "the emulated kernel was taken where it can be"
