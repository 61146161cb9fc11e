"""How much the server accepts, per request and in total."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tacg.errors import TacgError


@dataclass(frozen=True)
class Limits:
    """Requests beyond a limit are refused with a message that names it.

    rows            rows decoded together
    memory          GiB that these may take, as estimated (`tacg.engine.footprint`); 0: what the device has to spare
    queue           rows that may wait for a place; more are refused with 429
    answers         rows of one request: `n` times its prompts
    prompt_tokens   tokens of one prompt
    gen_length      positions of one answer
    body_bytes      bytes of a request; `replay_bytes` for one with traces
    flight_bytes    bytes of all bodies that are being received or parsed
    head            seconds that a client may take to send its headers
    deadline        seconds until an answer must be complete, including waiting
    stall           seconds that a client may take to send its body, or to read a chunk
    grace           seconds that running requests get when the server is told to stop
    connections     connections open at once
    """

    rows: int = 32
    memory: float = 0.0
    queue: int = 128
    answers: int = 16
    prompt_tokens: int = 4096
    gen_length: int = 1024
    body_bytes: int = 1 << 20
    replay_bytes: int = 1 << 24
    flight_bytes: int = 1 << 26
    head: float = 10.0
    deadline: float = 300.0
    stall: float = 30.0
    grace: float = 30.0
    connections: int = 1024

    def body_of(self, path: str) -> int:
        """Maximum body size in bytes for this path."""
        return self.replay_bytes if path == "/v1/replay" else self.body_bytes

    def __post_init__(self) -> None:
        for each in fields(self):
            least = 0 if each.name in ("queue", "grace", "memory") else 1 if each.type == "int" else 0.001
            if getattr(self, each.name) < least:
                raise TacgError(f"`{each.name}` must be >= {least}, got {getattr(self, each.name)}.")
        object.__setattr__(self, "answers", min(self.answers, self.rows + self.queue))  # more would never be admitted
