"""Scan once: logits of the observed positions in, scalars out. The only place that reads the vocabulary axis."""

from tacg.scan.memory import Memory
from tacg.scan.reference import lowest, probability
from tacg.scan.step_scan import Hidden, StepScan
from tacg.scan.trajectories import Trajectories

__all__ = ["Hidden", "Memory", "StepScan", "Trajectories", "lowest", "probability"]
