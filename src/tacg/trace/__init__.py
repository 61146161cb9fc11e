"""Traces: every step of a decode as JSONL; a player that opens as a file; another policy on recorded signals."""

from tacg.trace.record import Lines, Trace, read_trace, record, trace_of
from tacg.trace.replay import replay

__all__ = ["Lines", "Trace", "read_trace", "record", "replay", "trace_of"]
