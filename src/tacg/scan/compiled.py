"""Compile a kernel in C for this machine on first use, and keep the result in the user's cache.

Nothing depends on success: without a compiler, or with TACG_NATIVE=0, the scan uses PyTorch's operations (`cpu.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE, *SHARED = (Path(__file__).with_name(name) for name in ("native.c", "floats.h", "top.h"))
# Sums may be taken in the order that suits vectors (omp simd), but NaN and infinities keep their meaning.
FLAGS = ("-O3", "-std=c99", "-ffp-contract=fast", "-fopenmp-simd", "-fPIC", "-shared")
# For this very CPU, as far as the compiler can; the first that works.
TUNED = (("-march=native", "-mprefer-vector-width=512"), ("-mcpu=native",), ())
PATIENCE = 60  # seconds for a compiler; it takes about one


@functools.cache
def kernel() -> tuple[ctypes.CDLL | None, str]:
    """native.c, compiled, and by what; or None, and why."""
    found, how = library(SOURCE)
    if found is not None:
        number, address, real = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float
        found.tacg_scan.restype = number
        found.tacg_scan.argtypes = [
            address, number, ctypes.c_int, ctypes.c_int, number, *[address] * 9, real, real, address, address,
            number, ctypes.c_int, number, number,
        ]  # fmt: skip
        found.tacg_blank.argtypes = [address, address, number]
    return found, how


def library(source: Path, *flags: str) -> tuple[ctypes.CDLL | None, str]:
    """A file in C, compiled (with these flags as well), and by what; or None, and why."""
    if os.environ.get("TACG_NATIVE") == "0":
        return None, "TACG_NATIVE=0"
    try:
        compiler = _compiler()
        with _folder() as folder:
            made = folder / f"{source.stem}-{_fingerprint(compiler, source, flags)}.so"
            if not made.exists():
                _compile(compiler, source, made, flags)
            return _opened(made), " ".join(compiler)
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as error:
        return None, " ".join(str(error).split())[:200]


def _opened(made: Path) -> ctypes.CDLL:
    """The library. One that cannot be loaded goes away, so that the next process compiles it again."""
    try:
        return ctypes.CDLL(str(made))
    except OSError:
        made.unlink(missing_ok=True)
        raise


def _compiler() -> list[str]:
    """The C compiler's command: $CC, or the first that is installed."""
    for command in (os.environ["CC"],) if os.environ.get("CC") else ("cc", "gcc", "clang"):
        words = shlex.split(command)
        if path := shutil.which(words[0]):
            return [path, *words[1:]]
    raise OSError(f"no C compiler: {os.environ.get('CC') or 'cc, gcc or clang'} is not installed")


def _fingerprint(compiler: list[str], source: Path, flags: tuple[str, ...]) -> str:
    """Whatever the machine code depends on; a home directory may be shared by different machines."""
    real = os.path.realpath(compiler[0])  # its name often has the version
    code = [file.read_text("utf-8") for file in (source, *SHARED)]
    parts = [*code, repr((compiler, real, FLAGS, flags, TUNED)), platform.platform(), _cpu()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _cpu() -> str:
    """The CPU's name and abilities."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").split("\n\n")[0].splitlines()
        return "\n".join(line for line in lines if line.startswith(("model name", "flags", "CPU ", "Features", "isa")))
    return platform.processor()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder that nobody else can write to, because code is loaded from it: the user's cache, or a passing one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacg"
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner, mode = cache.stat().st_uid, cache.stat().st_mode
        private = not hasattr(os, "getuid") or (owner == os.getuid() and not mode & 0o022)
        usable = private and os.access(cache, os.W_OK)
    except (OSError, RuntimeError):
        usable = False
    if usable:
        yield cache
    else:
        with tempfile.TemporaryDirectory(prefix="tacg-", ignore_cleanup_errors=True) as passing:
            yield Path(passing)


def _compile(compiler: list[str], source: Path, library: Path, flags: tuple[str, ...]) -> None:
    """Compile next to the library, then move it there at once: other processes may be doing the same."""
    handle, made = tempfile.mkstemp(dir=library.parent, suffix=".part")
    os.close(handle)
    try:
        for tuned in TUNED:
            command = [*compiler, *FLAGS, *flags, *tuned, str(source), "-o", made, "-lm"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PATIENCE
            )
            if done.returncode == 0:
                os.replace(made, library)
                return
        raise OSError(f"{compiler[0]} failed: {done.stderr.strip() or done.returncode}")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(made)
