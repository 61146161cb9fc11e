"""The algorithm base of real SGLang releases, without SGLang: the wheel's few files, everything else a stand-in."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import tempfile
import types
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# The releases whose algorithm base differs, with the digest of that file; 0.5.17 to 0.5.19 have the base of 0.5.20.
RELEASES = {
    "0.5.16": "f45340b4ff78c1354f0d182ed19411fd5060e6022374318cf6860e2f246f520c",
    "0.5.20": "897aa76dbb78e5788bd3498832b852153042bc7afa65aa81ee935a981144af66",
    "0.5.21": "d190f2329fed535b14c6891e54a16f85a7772fad9b09e057595700de598d6d2a",
    "0.5.22": "8b1db28a93e1c667ff099f90d73972f71278ec3609801c5acc3068f60659458d",
    "0.5.23": "44e9d9abe2b8f4237f4954cbd2acdc348e2acc312fef72bac2b6e68f977a1b38",
}
BASE = "sglang/srt/dllm/algorithm/base.py"
CACHE = Path(os.environ.get("TACG_TEST_CACHE", "~/.cache/tacg-test")).expanduser()
WANTED = ("sglang/srt/dllm/", "sglang/srt/plugins/hook_registry.py")


def release(version: str) -> Path:
    """The directory with the wanted files of a release; downloaded once, skips the test if that cannot be done."""
    home = CACHE / f"sglang-{version}"
    if (home / WANTED[1]).is_file():
        return home
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        ask = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--retries", "0", "--timeout", "20"]
        command = [sys.executable, "-m", "pip", *ask, "--dest", scratch, f"sglang=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            pytest.skip(f"sglang {version} cannot be downloaded here: {done.stderr.strip()[-200:]}")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(unpacked, [name for name in wheel.namelist() if name.startswith(WANTED)])
        if not home.exists():
            unpacked.rename(home)
        else:
            for file in unpacked.rglob("*.py"):
                (place := home / file.relative_to(unpacked)).parent.mkdir(parents=True, exist_ok=True)
                file.replace(place)
    return home


class StandIn(types.ModuleType):
    """A module in which every name is some class."""

    __path__: list[str] = []  # noqa: RUF012 (what makes it a package)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last resort for the modules of SGLang that were not unpacked."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        ours = name.startswith("sglang.") and not name.startswith("sglang.srt.dllm.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> StandIn:
        made = StandIn(spec.name)
        made.is_npu = lambda: False
        made.resolving_view = lambda args: args
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


@contextmanager
def installed(home: Path) -> Iterator[None]:
    """As if that release were installed."""
    finder = StandIns()
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "sglang"}
    sys.path.insert(0, str(home))
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(str(home))
        for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
            del sys.modules[name]
        sys.modules.update(before)
