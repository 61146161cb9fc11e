"""Users' files. They are read whole, from regular files only; they are written atomically.

An error is one sentence that names the file, what was expected and the next step.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import stat
import zlib
from pathlib import Path
from typing import Any

from tacg.errors import TacgError

LARGEST = 1 << 30  # maximum bytes, unpacked; every file that we read is far smaller
# Fields by which a benchmark's problems are recognized.
SETS = {
    "gsm8k": {"question", "answer"},
    "math500": {"problem", "solution"},
    "humaneval": {"task_id", "entry_point"},
    "mbpp": {"task_id", "test_list"},
}
DEEPEST = 64  # maximum levels of JSON; our files have a handful, and much of the code that handles values is recursive


def read_bytes(path: Path, what: str, hint: str = "") -> bytes:
    """A regular file's content, unpacked if its name ends in .gz. `what` it should be and `hint` are for the error."""
    refuse_irregular(path, what, hint)
    begins = f"The {what} {str(path)!r}"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TacgError(f"{begins} cannot be read: {_why(error)}.{_next(hint)}") from None
    if len(content) > LARGEST:
        raise TacgError(f"{begins} must not be larger than {LARGEST} bytes.{_next(hint)}")
    return content


def refuse_irregular(path: Path, what: str, hint: str = "") -> None:
    """Raise unless there is a regular file: a directory cannot be read, and a pipe may block forever."""
    begins = f"The {what} {str(path)!r}"
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # the latter: a name with a zero byte
        raise TacgError(f"{begins} cannot be read: {_why(error)}.{_next(hint)}") from None
    if not stat.S_ISREG(mode):
        raise TacgError(f"{begins} must be a regular file, but it is {_kind(mode)}.{_next(hint)}")


def read_text(path: Path, what: str, hint: str = "") -> str:
    """As `read_bytes`, decoded."""
    try:
        return read_bytes(path, what, hint).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TacgError(f"The {what} {str(path)!r} is not a text in UTF-8: {error}.{_next(hint)}") from None


def read_json(path: Path, what: str, hint: str = "") -> Any:
    """The JSON value of a file."""
    return parse_json(read_text(path, what, hint), f"The {what} {str(path)!r}", hint)


def parse_json(text: str | bytes, where: str, hint: str = "") -> Any:
    """A JSON value that is safe to process and print: not nested deeply, and its strings are valid Unicode."""
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        value = json.loads(text)
    except RecursionError:
        raise _too_deep(where, hint) from None
    except json.JSONDecodeError as error:
        raise TacgError(f"{where} is not valid JSON: {error.msg} (character {error.pos + 1}).{_next(hint)}") from None
    except ValueError as error:  # Unicode's, and integers of thousands of digits
        raise TacgError(f"{where} is not valid JSON: {error}.{_next(hint)}") from None
    if text.count("[") + text.count("{") > DEEPEST and _deeper(value, DEEPEST):
        raise _too_deep(where, hint)
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise TacgError(f"{where} has a string with half of a surrogate pair.{_next(hint)}") from None
    return value


def what_is(row: object) -> str:
    """What a file is, by its first JSON value: for errors about a file of the wrong kind."""
    if not isinstance(row, dict):
        return "no JSON objects"
    known = row.keys()
    if isinstance(row.get("run"), dict):
        return "a results file (`tacg eval --out` writes such files, `tacg table` shows them)"
    if row.get("kind") == "start":
        return "a trace (`tacg trace` shows it)"
    if isinstance(row.get("bench"), str):
        return f"rows of `tacg bench {row['bench'][:40]}`"
    if {"accuracy", "policy"} <= known or "key" in known:
        return "rows of an experiment (`tacg table` shows them)"
    for name, fields in SETS.items():
        if fields <= known:
            return f"problems of {name}"
    if {"id", "answer"} <= known:
        return "a file of answers (`tacg grade --answers`)"
    return f"JSON objects with {', '.join(map(str, known))[:120] or 'no fields'}"


def make_room(path: Path) -> Path:
    """Raise now, before hours of decoding, unless a file can be written at `path`.

    Missing directories are created. Returns where the file really is: a symbolic link stays one.
    """
    real = place_of(path)
    try:
        if real.exists():
            real.open("ab").close()
        draft = _draft(real)
        _write(draft, b"\n" * 4096)  # fails on a full disk
        draft.unlink()
    except OSError as error:
        raise not_written(path, error) from None
    return real


def write_file(path: Path, content: bytes | str) -> Path:
    """Write or replace a file atomically: readers see the old content or the new one. Symbolic links stay links."""
    real = place_of(path)
    draft = _draft(real)
    try:
        _write(draft, content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
        if real.exists():
            shutil.copymode(real, draft)
        draft.replace(real)
    except OSError as error:
        raise not_written(path, error) from None
    return path


def place_of(path: Path) -> Path:
    """Where a file really is; creates its directory, and raises if something other than a regular file is there."""
    try:
        real = Path(os.path.realpath(path))
        real.parent.mkdir(parents=True, exist_ok=True)
        mode = real.lstat().st_mode if os.path.lexists(real) else stat.S_IFREG
    except OSError as error:
        raise not_written(path, error) from None
    if not stat.S_ISREG(mode):
        raise TacgError(f"{str(path)!r} must be a regular file, but it is {_kind(mode)}; name another file.")
    return real


def _write(draft: Path, content: bytes) -> None:
    """Flush the content to disk."""
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def not_written(path: Path, error: OSError) -> TacgError:
    """The error for a file that cannot be written."""
    return TacgError(f"{str(path)!r} cannot be written: {_why(error)}; fix that, or choose another path.")


def _draft(real: Path) -> Path:
    return real.with_name(f"{real.name[:200]}.{os.getpid()}.part")


def _why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


def _next(hint: str) -> str:
    return f" {hint[0].upper()}{hint[1:]}." if hint else ""


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kinds[stat.S_IFLNK] = "a link that leads back to itself"
    return kinds.get(stat.S_IFMT(mode), "a device")


def _too_deep(where: str, hint: str) -> TacgError:
    return TacgError(f"{where} is nested more than {DEEPEST} levels deep, which is too deep.{_next(hint)}")


def _deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels + 1):
        layer = [
            each
            for outer in layer
            if isinstance(outer, dict | list)
            for each in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(layer)
