"""A device guard that does nothing. With it, a build of PyTorch without CUDA can hold tensors that say `cuda`.

PyTorch asks such a guard whenever a tensor's device is named, and a CPU build has none for CUDA. Ours is three lines of
C++, compiled when it is first needed and kept in the user's cache directory.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from tacg.errors import TacgError

SOURCE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
using Guard = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>;
static c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, new Guard());
"""
COMPILERS = ("c++", "g++", "clang++")


@functools.cache
def register_guard() -> None:
    """Register the guard for the life of this process. A CUDA build of PyTorch has its own and needs none."""
    if torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return
    try:
        ctypes.CDLL(str(_library()))
    except OSError as error:
        raise TacgError(f"The simulated device's guard cannot be loaded: {error}.") from None


def _library() -> Path:
    """The compiled guard, made unless it is there already for this PyTorch."""
    kind = hashlib.sha256(f"{SOURCE} {torch.__version__} {torch.__file__}".encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tacg"
    library = folder / f"cuda-guard-{kind}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "guard.so"
            _compile(made)
            made.replace(library)  # renamed when complete: another process may load it at any time
    return library


def _compile(library: Path) -> None:
    named = os.environ.get("CXX")
    compiler = next((found for name in ([named] if named else COMPILERS) if (found := shutil.which(name))), None)
    if compiler is None:
        wanted = f"`CXX` names {named!r}, which is not there" if named else f"none of {', '.join(COMPILERS)} is there"
        raise TacgError(f"The simulated device needs a C++ compiler, but {wanted}: install g++ or set `CXX`.")
    home = Path(torch.__file__).parent
    words = [
        compiler, "-x", "c++", "-", "-std=c++20", "-O1", "-shared", "-fPIC", "-o", str(library),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{home / 'include'}",
        f"-L{home / 'lib'}", f"-Wl,-rpath,{home / 'lib'}", "-lc10",
    ]  # fmt: skip
    done = subprocess.run(words, input=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode:
        told = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        raise TacgError(f"The simulated device's guard cannot be compiled with {compiler}: {told}")
