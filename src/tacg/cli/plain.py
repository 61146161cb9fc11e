"""Terminals that cannot show every character, and input that is not valid text: neither causes a traceback."""

from __future__ import annotations

import codecs
import io
import sys

# Symbols that we use, each replaced by one character so that tables stay aligned; others are escaped as in Python.
PLAIN = str.maketrans("·…–—×±Δτλβμ■∎›−", ".~--x+dtlbm#$>-")


def speak_to_any_terminal() -> None:
    """Make every output printable. Invalid bytes of the input pass through, and are refused where text is needed."""
    codecs.register_error("tacg-plain", _plain)
    for stream, errors in ((sys.stdout, "tacg-plain"), (sys.stderr, "tacg-plain"), (sys.stdin, "surrogateescape")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(PLAIN)
    return text.encode("ascii", "backslashreplace").decode(), error.end
