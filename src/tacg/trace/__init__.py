"""Traces: every step of a decode as JSONL; a player that opens as a file; another policy on recorded signals."""

from tacg.trace.record import Trace, read_trace, record
from tacg.trace.replay import replay

__all__ = ["Trace", "read_trace", "record", "replay"]
