"""The sandbox in which model-written code runs; `trial.py` describes what the code may do there."""

from tacg.sandbox.trial import LEVELS, ResourceLimits, Trial, Verdict, level, probe, refuse_weaker, run, wanted

__all__ = ["LEVELS", "ResourceLimits", "Trial", "Verdict", "level", "probe", "refuse_weaker", "run", "wanted"]
