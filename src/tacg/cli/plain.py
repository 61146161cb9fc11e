"""Terminals that cannot show every letter, and input that is not what it says: nothing of it ends in a traceback."""

from __future__ import annotations

import codecs
import io
import sys

# Signs that we like, each as one letter so that tables stay straight; other letters are spelled as Python spells them.
PLAIN = str.maketrans("·…–—×±Δτλβμ■∎›−", ".~--x+dtlbm#$>-")


def speak_to_any_terminal() -> None:
    """Whatever is printed can be printed; bytes that are no text come through and are refused where text is needed."""
    codecs.register_error("tacg-plain", _plain)
    for stream, errors in ((sys.stdout, "tacg-plain"), (sys.stderr, "tacg-plain"), (sys.stdin, "surrogateescape")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(PLAIN)
    return text.encode("ascii", "backslashreplace").decode(), error.end
