"""One scan per step: logits of the observed positions in, scalars out. No other code reads the vocabulary axis."""

from tacg.scan.memory import Memory
from tacg.scan.reference import lowest, probability
from tacg.scan.step_scan import Hidden, StepScan
from tacg.scan.trajectories import Trajectories

__all__ = ["Hidden", "Memory", "StepScan", "Trajectories", "lowest", "probability"]
