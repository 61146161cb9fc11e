"""Compiling the native kernel: never in the way, never twice, and never code that others may have written."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tacg
from tacg.scan import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

HAS_COMPILER = compiled.kernel()[0] is not None


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A user's cache of our own, and no kernel yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "kernel", compiled.kernel.__wrapped__)
    return tmp_path / "tacg"


@pytest.mark.skipif(not HAS_COMPILER, reason="needs a C compiler")
def test_it_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.kernel()[0] is not None
    (library,) = cache.iterdir()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    monkeypatch.setattr(compiled, "_compile", None)
    assert compiled.kernel()[0] is not None
    assert [*cache.iterdir()] == [library]


@pytest.mark.skipif(not HAS_COMPILER, reason="needs a C compiler")
def test_processes_that_race_all_get_it(cache: Path) -> None:
    code = "from tacg.scan.compiled import kernel; assert kernel()[0], kernel()[1]"
    source = str(Path(tacg.__file__).parents[1])
    command, given = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": source}
    racers = [subprocess.Popen(command, env=given) for _ in range(3)]
    assert [racer.wait(timeout=120) for racer in racers] == [0, 0, 0]
    assert [file.suffix for file in cache.iterdir()] == [".so"]


@pytest.mark.skipif(not HAS_COMPILER, reason="needs a C compiler")
def test_a_folder_that_others_can_write_to_is_not_used(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    assert compiled.kernel()[0] is not None
    assert not [*cache.iterdir()]


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("no-such-compiler", "no C compiler: no-such-compiler is not installed"),
        ("false", "false failed"),
        ("true", ""),  # writes nothing
        ("'", "No closing quotation"),
    ],
)
def test_a_compiler_that_fails_is_no_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, why: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    found, reason = compiled.kernel()
    assert found is None
    assert reason
    assert why in reason
    assert not cache.exists() or not [*cache.iterdir()], "nothing is left, so it is tried again"


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("TACG_NATIVE", "0")
    assert compiled.kernel() == (None, "TACG_NATIVE=0")
    assert not cache.exists()
